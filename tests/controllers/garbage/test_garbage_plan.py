"""Owners and dependents: situation → steps."""

from __future__ import annotations

import pytest
from msgspec import structs

from volplane.api.apps import ReplicaSet
from volplane.api.core import Pod
from volplane.api.meta import ObjectMeta, OwnerReference
from volplane.controllers.garbage.plan import (
    DeleteObject,
    Dependent,
    OwnerState,
    RemoveDeletionFinalizer,
    RemoveOwnerRef,
    UnblockOwners,
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


BLOCKED = Dependent(pod("p", going=True), ref("p"))


@pytest.mark.parametrize(
    ("owners", "dependents", "steps"),
    [
        pytest.param({}, [], [], id="an object without owners stays"),
        pytest.param({"a": OwnerState.PRESENT}, [], [], id="its owner lives"),
        pytest.param(
            {"a": OwnerState.ABSENT},
            [],
            [DeleteObject(pod("a"), "Background", (ref("a"),))],
            id="its owner is gone",
        ),
        pytest.param(
            {"a": OwnerState.WAITING},
            [],
            [DeleteObject(pod("a"), "Background")],
            id="its owner waits for it",
        ),
        pytest.param(
            {"a": OwnerState.WAITING},
            [BLOCKED],
            [DeleteObject(pod("a"), "Foreground")],
            id="its owner waits for it, and it owns something",
        ),
        pytest.param(
            {"a": OwnerState.WAITING, "b": OwnerState.ABSENT},
            [BLOCKED],
            [DeleteObject(pod("a", "b"), "Foreground", (ref("b"),))],
            id="one owner waits for it, and the other is gone",
        ),
        pytest.param(
            {"a": OwnerState.ABSENT, "b": OwnerState.PRESENT},
            [],
            [RemoveOwnerRef(pod("a", "b"), ("a",), (ref("a"),))],
            id="one of two owners is gone",
        ),
        pytest.param(
            {"a": OwnerState.WAITING, "b": OwnerState.PRESENT},
            [],
            [RemoveOwnerRef(pod("a", "b"), ("a",))],
            id="another owner still wants what one waits for",
        ),
        pytest.param(
            {"a": OwnerState.WAITING, "b": OwnerState.PRESENT, "c": OwnerState.ABSENT},
            [],
            [RemoveOwnerRef(pod("a", "b", "c"), ("c", "a"), (ref("c"),))],
            id="another owner still wants what one waits for, and a third is gone",
        ),
    ],
)
def test_what_happens_to_a_dependent(
    owners: dict[str, OwnerState], dependents: list[Dependent], steps: list[object]
) -> None:
    assert list(plan(pod(*owners), owners, dependents)) == steps


@pytest.mark.parametrize(
    ("finalizer", "propagation"),
    [("orphan", "Orphan"), ("foregroundDeletion", "Foreground"), ("x/y", "Background")],
)
def test_an_object_without_owners_is_deleted_as_its_finalizers_say(finalizer: str, propagation: str) -> None:
    mine = pod("a")
    mine = structs.replace(mine, metadata=structs.replace(mine.metadata, finalizers=(finalizer,)))
    (step,) = plan(mine, {"a": OwnerState.ABSENT}, [])
    assert isinstance(step, DeleteObject)
    assert step.propagation == propagation


def test_a_foreground_owner_waits_for_the_dependents_that_block_it() -> None:
    mine = owner("foregroundDeletion")
    for going in (False, True):
        assert list(plan(mine, {}, [Dependent(pod("a", going=going), ref("a"))])) == []
    free = Dependent(pod("a", going=True), ref("a", blocks=False))
    assert list(plan(mine, {}, [free])) == [RemoveDeletionFinalizer(mine, "foregroundDeletion")]


def test_an_owner_that_waits_for_what_waits_for_it_no_longer_blocks() -> None:
    mine = pod("a", going=True)
    mine = structs.replace(mine, metadata=structs.replace(mine.metadata, finalizers=("foregroundDeletion",)))
    waiting = Dependent(owner("foregroundDeletion"), ref("p"))
    assert list(plan(mine, {"a": OwnerState.WAITING}, [waiting])) == [UnblockOwners(mine)]
    assert list(plan(mine, {"a": OwnerState.PRESENT}, [waiting])) == []


def test_an_owner_does_not_wait_for_itself() -> None:
    mine = owner("foregroundDeletion")
    assert list(plan(mine, {}, [Dependent(mine, ref("a"))])) == [
        RemoveDeletionFinalizer(mine, "foregroundDeletion")
    ]


def test_an_orphaning_owner_lets_its_dependents_go_before_it_goes() -> None:
    mine = owner("orphan")
    assert list(plan(mine, {}, [Dependent(pod("a"), ref("a"))])) == [RemoveOwnerRef(pod("a"), ("a",))]
    assert list(plan(mine, {}, [])) == [RemoveDeletionFinalizer(mine, "orphan")]


def test_an_owner_with_other_finalizers_is_left_alone() -> None:
    assert list(plan(owner("x/y"), {}, [Dependent(pod("a"), ref("a"))])) == []
