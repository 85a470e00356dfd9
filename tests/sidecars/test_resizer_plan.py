"""Which size is asked for next: every state of a claim, and whether its volume has grown already."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controllers.objects import claim, volume
from volplane.api import codec
from volplane.api.annotations import PRE_RESIZE_CAPACITY_ANNOTATION, STORAGE_RESIZER_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait, WaitReason
from volplane.sidecars.resizer.expand import plan as plans
from volplane.sidecars.resizer.expand.plan import (
    ControllerExpand,
    LastExpansion,
    RecordTargetSize,
    RemovePreResizeCapacity,
    ResizerDriverInfo,
    WatchPodsOfVolume,
    plan,
    target_size,
)

DRIVER = "ebs.csi.aws.com"
OURS, NODE_ONLY = ResizerDriverInfo(DRIVER), ResizerDriverInfo(DRIVER, has_controller_expand=False)
FINAL = LastExpansion(is_final=True)


def claim_requesting(
    request: int, state: str = "", allocated: int = 0, **status: Any
) -> PersistentVolumeClaim:
    made = codec.to_dict(claim("data", f"{request}Gi", volumeName="v"))
    made["metadata"]["uid"] = "u"
    made["status"] = {"phase": "Bound", "capacity": {"storage": "1Gi"}, **status}
    if state:
        made["status"]["allocatedResourceStatuses"] = {"storage": state}
    if allocated:
        made["status"]["allocatedResources"] = {"storage": f"{allocated}Gi"}
    return codec.convert(PersistentVolumeClaim, made)


def volume_of_size(size: int, **spec: Any) -> PersistentVolume:
    ref = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": "u"}
    return volume("v", f"{size}Gi", claimRef=ref, **spec)


# state, allocated, what is remembered → asked for; the claim asks for 5, its volume has 1.
SMALL = [
    ("", 0, LastExpansion(), 5),
    ("", 3, LastExpansion(), 5),
    ("ControllerResizeInProgress", 3, LastExpansion(), 3),  # open: finished first
    ("ControllerResizeInProgress", 3, FINAL, 5),
    ("ControllerResizeInProgress", 9, LastExpansion(), 9),  # the request was lowered
    ("ControllerResizeInProgress", 9, FINAL, 5),
    ("ControllerResizeInfeasible", 9, LastExpansion(), 5),
    ("NodeResizePending", 3, LastExpansion(), 3),
    ("NodeResizeInProgress", 3, LastExpansion(), 3),
    ("NodeResizeInfeasible", 3, LastExpansion(), 3),
    ("NewerWord", 3, LastExpansion(), 5),
]
# The same where the volume has the 5 already.
GROWN = [
    ("", 0, OURS, 5),
    ("", 5, OURS, 5),
    ("ControllerResizeInProgress", 5, OURS, 5),
    ("ControllerResizeInfeasible", 7, OURS, 7),
    ("NodeResizePending", 5, OURS, None),
    ("NodeResizeInProgress", 5, OURS, None),
    ("NodeResizeInfeasible", 6, OURS, 6),
    ("NodeResizeInfeasible", 6, NODE_ONLY, 5),
]


@pytest.mark.parametrize(("state", "allocated", "last", "expected"), SMALL)
def test_the_volume_is_smaller_than_the_request(
    state: str, allocated: int, last: LastExpansion, expected: int
) -> None:
    assert target_size(claim_requesting(5, state, allocated), volume_of_size(1), OURS, last) == expected << 30


@pytest.mark.parametrize(("state", "allocated", "driver", "expected"), GROWN)
def test_the_volume_has_grown(
    state: str, allocated: int, driver: ResizerDriverInfo, expected: int | None
) -> None:
    wanted = None if expected is None else expected << 30
    assert (
        target_size(claim_requesting(5, state, allocated), volume_of_size(5), driver, LastExpansion())
        == wanted
    )


def test_a_node_that_has_its_size_is_left_alone() -> None:
    assert (
        target_size(claim_requesting(5, "NodeResizePending", 3), volume_of_size(3), OURS, LastExpansion())
        is None
    )


def test_an_older_resizer_handed_it_to_the_node_without_a_note() -> None:
    pending = [{"type": "FileSystemResizePending", "status": "True"}]
    assert (
        target_size(claim_requesting(5, conditions=pending), volume_of_size(5), OURS, LastExpansion()) is None
    )


def test_an_infeasible_size_is_not_asked_for_again_before_its_time() -> None:
    claim = claim_requesting(5, "ControllerResizeInfeasible", 5)
    (step,) = plan(claim, volume_of_size(1), OURS, LastExpansion(is_final=True, retry_after=100.0))
    assert isinstance(step, Wait)
    assert step.seconds == 100.0
    smaller = claim_requesting(4, "ControllerResizeInfeasible", 5)
    assert not isinstance(
        next(plan(smaller, volume_of_size(1), OURS, LastExpansion(is_final=True, retry_after=100.0))), Wait
    )


def test_only_our_own_bound_claims_grow() -> None:
    assert list(plan(claim_requesting(5, phase="Lost"), volume_of_size(1), OURS, LastExpansion())) == []
    assert list(plan(claim_requesting(1), volume_of_size(1), OURS, LastExpansion())) == []
    other = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": "another"}
    assert list(plan(claim_requesting(5), volume("v", claimRef=other), OURS, LastExpansion())) == []
    assert (
        list(
            plan(
                claim_requesting(5),
                volume_of_size(1),
                ResizerDriverInfo("other.example.com"),
                LastExpansion(),
            )
        )
        == []
    )


def test_a_volume_that_is_not_seen_yet_is_waited_for() -> None:
    (step,) = plan(claim_requesting(5), None, OURS, LastExpansion())
    assert isinstance(step, Wait)
    assert list(plan(claim_requesting(1), None, OURS, LastExpansion())) == []


def test_what_we_write_is_no_news_and_what_the_node_writes_is() -> None:
    facts = plans.relevant_fields
    assert facts(claim_requesting(5)) == facts(claim_requesting(5, "ControllerResizeInProgress", 5))
    assert facts(claim_requesting(5)) == facts(claim_requesting(5, "ControllerResizeInfeasible", 5))
    assert facts(claim_requesting(5)) != facts(claim_requesting(5, "NodeResizeInfeasible", 5))
    assert facts(claim_requesting(5)) != facts(claim_requesting(6))


IN_USE = LastExpansion(refused_in_use=True)
GIB = 1 << 30


def test_the_target_is_recorded_before_the_driver_is_called() -> None:
    steps = list(plan(claim_requesting(5), volume_of_size(1), OURS, LastExpansion()))
    assert [step for step in steps if not isinstance(step, RecordEvent)] == [
        RecordTargetSize(5 * GIB, True),
        ControllerExpand(5 * GIB),
    ]


def test_a_claim_waits_for_its_volume() -> None:
    (step,) = plan(claim_requesting(5), None, OURS, LastExpansion())
    assert isinstance(step, Wait)
    assert list(plan(claim_requesting(1), None, OURS, LastExpansion())) == []
    assert list(plan(claim("data"), None, OURS, LastExpansion())) == []


def test_nothing_is_called_while_the_node_expands_the_file_system() -> None:
    pending = claim_requesting(5, "NodeResizePending", 5)
    assert list(plan(pending, volume_of_size(5), OURS, LastExpansion())) == [Wait(WaitReason.NODE_RESIZE)]


def test_after_a_refusal_for_a_volume_in_use_the_pods_are_looked_at_first() -> None:
    assert list(plan(claim_requesting(5), volume_of_size(1), OURS, IN_USE, in_use=None)) == [
        WatchPodsOfVolume()
    ]
    *_, warned, waits = plan(claim_requesting(5), volume_of_size(1), OURS, IN_USE, in_use=True)
    assert isinstance(warned, RecordEvent)
    assert isinstance(waits, Wait)
    *_, called = plan(claim_requesting(5), volume_of_size(1), OURS, IN_USE, in_use=False)
    assert called == ControllerExpand(5 * GIB)


def test_the_size_before_an_expansion_is_removed_when_the_node_has_finished() -> None:
    annotating = ResizerDriverInfo(DRIVER, annotates_capacity=True)
    marked = {"annotations": {PRE_RESIZE_CAPACITY_ANNOTATION: "1Gi"}}
    done = claim_requesting(1)
    assert list(plan(done, volume_of_size(1, metadata=marked), annotating, LastExpansion())) == [
        RemovePreResizeCapacity()
    ]
    assert list(plan(done, volume_of_size(1), annotating, LastExpansion())) == []


def test_a_driver_expands_the_in_tree_volumes_that_it_stands_in_for() -> None:
    in_tree = volume_of_size(1, csi=None)
    resized = codec.to_dict(claim_requesting(5))
    resized["metadata"]["annotations"] = {STORAGE_RESIZER_ANNOTATION: DRIVER}
    assert plans.is_ours(codec.convert(PersistentVolumeClaim, resized), in_tree, DRIVER)
    assert not plans.is_ours(claim_requesting(5), in_tree, DRIVER)


def test_no_claim_has_no_fields() -> None:
    assert plans.relevant_fields(None) is None
