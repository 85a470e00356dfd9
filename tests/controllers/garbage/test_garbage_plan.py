"""Owners and dependents: situation → steps."""

from __future__ import annotations

import pytest

from volplane.api.apps import ReplicaSet
from volplane.api.core import Pod
from volplane.api.meta import ObjectMeta, OwnerReference
from volplane.controllers.garbage.plan import (
    DeleteObject,
    Dependent,
    OwnerState,
    RemoveDeletionFinalizer,
    RemoveOwnerRef,
    plan,
)


def ref(uid: str, *, blocks: bool = True) -> OwnerReference:
    return OwnerReference(kind="ReplicaSet", name=uid, uid=uid, controller=True, block_owner_deletion=blocks)


def pod(*owners: str, going: bool = False) -> Pod:
    return Pod(
        metadata=ObjectMeta(
            name="p",
            uid="p",
            owner_references=tuple(ref(o) for o in owners),
            deletion_timestamp="now" if going else None,
        )
    )


def owner(*finalizers: str) -> ReplicaSet:
    return ReplicaSet(metadata=ObjectMeta(name="a", uid="a", finalizers=finalizers, deletion_timestamp="now"))


@pytest.mark.parametrize(
    ("owners", "steps"),
    [
        pytest.param({}, [], id="an object without owners stays"),
        pytest.param({"a": OwnerState.PRESENT}, [], id="its owner lives"),
        pytest.param(
            {"a": OwnerState.ABSENT},
            [DeleteObject(pod("a"), "Background", (ref("a"),))],
            id="its owner is gone",
        ),
        pytest.param(
            {"a": OwnerState.WAITING}, [DeleteObject(pod("a"), "Foreground")], id="its owner waits for it"
        ),
        pytest.param(
            {"a": OwnerState.ABSENT, "b": OwnerState.PRESENT},
            [RemoveOwnerRef(pod("a", "b"), ("a",))],
            id="one of two owners is gone",
        ),
        pytest.param(
            {"a": OwnerState.WAITING, "b": OwnerState.PRESENT},
            [],
            id="another owner still wants what one waits for",
        ),
    ],
)
def test_what_happens_to_a_dependent(owners: dict[str, OwnerState], steps: list[object]) -> None:
    assert list(plan(pod(*owners), owners, [])) == steps


def test_a_foreground_owner_deletes_its_dependents_and_waits_for_those_that_block() -> None:
    mine = owner("foregroundDeletion")
    held = Dependent(pod("a"), ref("a"))
    assert list(plan(mine, {}, [held])) == [DeleteObject(pod("a"), "Foreground")]
    going = Dependent(pod("a", going=True), ref("a"))
    assert list(plan(mine, {}, [going])) == []
    free = Dependent(pod("a", going=True), ref("a", blocks=False))
    assert list(plan(mine, {}, [free])) == [RemoveDeletionFinalizer(mine, "foregroundDeletion")]


def test_an_orphaning_owner_lets_its_dependents_go_before_it_goes() -> None:
    mine = owner("orphan")
    assert list(plan(mine, {}, [Dependent(pod("a"), ref("a"))])) == [RemoveOwnerRef(pod("a"), ("a",))]
    assert list(plan(mine, {}, [])) == [RemoveDeletionFinalizer(mine, "orphan")]


def test_an_owner_with_other_finalizers_is_left_alone() -> None:
    assert list(plan(owner("x/y"), {}, [Dependent(pod("a"), ref("a"))])) == []
