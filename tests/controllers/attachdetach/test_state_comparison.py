"""Where a volume is needed beside where it is attached, and the step between the two."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.controllers.attachdetach.test_attachdetach_plan import at, view
from volplane.controllers.attachdetach.plan import AttachDetachView, NodeFacts, plan
from volplane.controllers.attachdetach.state_comparison import compare
from volplane.loops.queue import WaitingKey
from volplane.rules.waits import Wait, WaitData, WaitReason

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
DOWN = NodeFacts(ready=False, in_use=True, listed=True)

CASES: dict[str, tuple[AttachDetachView, list[str]]] = {
    "needed and not attached": (view("a"), ["a: attached | - | create a VolumeAttachment"]),
    "being attached": (
        view("a", at("a", attached=False)),
        ["a: attached | attaching | waiting for the external-attacher of d to attach the volume to a"],
    ),
    "attached and not listed": (
        view("a", at("a"), nodes={"a": NodeFacts()}),
        ["a: attached | attached | add it to volumesAttached"],
    ),
    "attached and mounted": (
        view("a", at("a"), nodes={"a": NodeFacts(listed=True, in_use=True)}),
        ["a: attached | attached, in use | -"],
    ),
    "attached elsewhere": (
        view("a b", at("a")),
        [
            "a: attached | attached | -",
            "b: attached | - | cannot attach the volume to b: it is attached to a",
        ],
    ),
    "needed by no pod": (view("", at("a")), ["a: - | attached | remove it from volumesAttached"]),
    "needed by no pod, and not listed any more": (
        view("", at("a"), nodes={"a": NodeFacts()}),
        ["a: - | attached | delete the VolumeAttachment"],
    ),
    "still mounted": (
        view("", at("a"), nodes={"a": NodeFacts(listed=True, in_use=True)}),
        ["a: - | attached, in use | a still has the volume mounted"],
    ),
    "on a node that is down": (
        view("", at("a"), nodes={"a": DOWN}),
        [
            "a: - | attached, in use | a is not ready and may still have the volume mounted; "
            "forced detach after the grace period"
        ],
    ),
    "being detached": (
        view("", at("a", deleting=True), nodes={"a": NodeFacts()}),
        ["a: - | detaching | waiting for the external-attacher of d to detach the volume from a"],
    ),
    "listed without an attachment": (
        view("", nodes={"a": NodeFacts(listed=True)}),
        ["a: - | in volumesAttached | remove it from volumesAttached"],
    ),
    "the attacher failed": (
        view("a", at("a", attached=False, attach_error="no such disk")),
        ["a: attached | attaching | no such disk"],
    ),
}


@pytest.mark.parametrize(("seen", "lines"), CASES.values(), ids=CASES)
def test_the_states_of_a_volume(seen: AttachDetachView, lines: list[str]) -> None:
    found = compare("key", "plugin", seen, plan(seen))
    assert [
        f"{row.node}: {row.desired or '-'} | {row.actual or '-'} | {row.pending.text if row.pending else '-'}"
        for row in found
    ] == lines


def test_the_pods_that_need_it_are_named() -> None:
    seen = view("a")
    (row,) = compare("kubernetes.io/csi/d^h", "kubernetes.io/csi:d", seen, plan(seen))
    assert (row.volume, row.name, row.plugin) == ("kubernetes.io/csi/d^h", "pv", "kubernetes.io/csi:d")
    assert row.pods == ("default/p-a",)


def waiting(wait: Wait, **more: Any) -> WaitingKey[str]:
    return WaitingKey("key", wait, NOW, NOW + timedelta(seconds=5), **more)


def test_the_queue_knows_since_when_and_until_when() -> None:
    seen = view("a b", at("a"))
    other = waiting(Wait(WaitReason.MOUNTED_ON_NODE, WaitData(node="a")))
    mine = waiting(Wait(WaitReason.ATTACHED_TO_OTHER_NODE, WaitData(node="b", nodes=("a",))))
    pending = [row.pending for row in compare("key", "", seen, plan(seen), [other, mine]) if row.pending]
    assert [(p.reason, p.since, p.next_try) for p in pending] == [
        ("AttachedToOtherNode", mine.since, mine.next_try)
    ]


def test_a_failed_step_shows_its_error_and_its_next_try() -> None:
    seen = view("", at("a"), nodes={"a": NodeFacts()})
    failed = waiting(Wait(WaitReason.RETRY, message="volume is still in use by node"))
    (row,) = compare("key", "", seen, plan(seen), [failed])
    assert row.pending is not None
    assert row.pending.text == "delete the VolumeAttachment: volume is still in use by node"
    assert (row.pending.reason, row.pending.next_try) == ("Retry", failed.next_try)


def test_a_reported_attach_failure_shows_when_it_is_reported_again() -> None:
    seen = view("a", at("a", attached=False, attach_error="no such disk"))
    reported = waiting(Wait(WaitReason.ATTACH_FAILED, WaitData(node="a"), 5.0, message="no such disk"))
    (row,) = compare("key", "", seen, plan(seen), [reported])
    assert row.pending is not None
    assert (row.pending.text, row.pending.next_try) == ("no such disk", reported.next_try)
