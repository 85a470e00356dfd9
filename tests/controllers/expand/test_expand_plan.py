"""Events and steps for claims that request more storage, by the kind of their volume."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from tests.controllers.objects import claim, volume
from volplane.api import codec
from volplane.api.annotations import PRE_RESIZE_CAPACITY_ANNOTATION, STORAGE_RESIZER_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.controllers.expand.plan import (
    ExpandFlexVolume,
    ExpandView,
    MarkNodeExpansionPending,
    RemovePreResizeAnnotation,
    SetResizer,
    Step,
    relevant_fields,
)
from volplane.controllers.expand.plan import plan as plan_view
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait, WaitData, WaitReason

EBS: dict[str, Any] = {"csi": None, "awsElasticBlockStore": {"volumeID": "vol-1"}}
FLEX: dict[str, Any] = {"csi": None, "flexVolume": {"driver": "example.com/lvm"}}


def plan(
    claim: PersistentVolumeClaim, volume: PersistentVolume | None, **more: str
) -> Iterator[Step | RecordEvent | Wait]:
    return plan_view(ExpandView(claim, volume, **more))


def grown_claim(request: str = "2Gi", **status: Any) -> PersistentVolumeClaim:
    made = codec.to_dict(claim("data", request, volumeName="v1"))
    made["metadata"]["uid"] = "u1"
    made["status"] = {"phase": "Bound", "capacity": {"storage": "1Gi"}, **status}
    return codec.convert(PersistentVolumeClaim, made)


def bound_volume(uid: str = "u1", **spec: Any) -> PersistentVolume:
    reference = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": uid}
    return volume("v1", claimRef=reference, **spec)


def test_a_csi_volume_is_left_to_its_resizer() -> None:
    event = RecordEvent(
        "Normal", "ExternalExpanding", "waiting for an external controller to expand this PVC"
    )
    assert list(plan(grown_claim(), bound_volume())) == [event]


def test_a_volume_of_a_plugin_that_is_gone_is_handed_to_the_driver_in_its_place() -> None:
    steps = list(plan(grown_claim(), bound_volume(**EBS)))
    message = (
        "CSI migration enabled for kubernetes.io/aws-ebs; waiting for external resizer to expand the pvc"
    )
    assert steps == [RecordEvent("Normal", "ExternalExpanding", message), SetResizer("ebs.csi.aws.com")]


def test_it_is_handed_over_once() -> None:
    noted = grown_claim()
    meta = structs.replace(noted.metadata, annotations={STORAGE_RESIZER_ANNOTATION: "ebs.csi.aws.com"})
    steps = list(plan(structs.replace(noted, metadata=meta), bound_volume(**EBS)))
    assert [type(step) for step in steps] == [RecordEvent]


def flex_volume(size: str = "1Gi", **more: Any) -> PersistentVolume:
    return bound_volume(capacity={"storage": size}, **FLEX, **more)


def flex_claim(state: str, allocated: str, request: str = "2Gi") -> PersistentVolumeClaim:
    statuses = {"storage": state} if state else {}
    return grown_claim(request, allocatedResources={"storage": allocated}, allocatedResourceStatuses=statuses)


def test_a_flex_volume_is_expanded_to_the_request() -> None:
    assert list(plan(grown_claim(), flex_volume())) == [ExpandFlexVolume("2Gi")]


@pytest.mark.parametrize(
    ("state", "allocated", "capacity", "size"),
    [
        ("", "1Gi", "1Gi", "3Gi"),  # the last expansion is done
        ("", "2Gi", "1Gi", "3Gi"),
        ("", "2Gi", "3Gi", "2Gi"),  # the state was lost
        ("ControllerResizeInProgress", "2Gi", "1Gi", "2Gi"),
        ("ControllerResizeInProgress", "4Gi", "4Gi", "4Gi"),  # the claim was lowered, or the write was lost
        ("ControllerResizeInfeasible", "9Gi", "1Gi", "3Gi"),
        ("ControllerResizeInfeasible", "4Gi", "4Gi", "4Gi"),
        ("NodeResizePending", "2Gi", "2Gi", "2Gi"),  # the claim grew while the node was asked
        ("NodeResizeInfeasible", "2Gi", "2Gi", "2Gi"),
    ],
)
def test_an_expansion_under_way_keeps_its_target(
    state: str, allocated: str, capacity: str, size: str
) -> None:
    claim = flex_claim(state, allocated, request="3Gi")
    assert list(plan(claim, flex_volume(capacity))) == [ExpandFlexVolume(size)]


@pytest.mark.parametrize("state", ["NodeResizePending", "NodeResizeInProgress"])
def test_a_flex_volume_that_is_expanded_waits_for_its_node(state: str) -> None:
    assert list(plan(flex_claim(state, "2Gi"), flex_volume("2Gi"))) == [Wait(WaitReason.NODE_RESIZE)]


def test_a_node_that_failed_is_asked_again() -> None:
    claim = flex_claim("NodeResizeInfeasible", "2Gi")
    assert list(plan(claim, flex_volume("2Gi"))) == [MarkNodeExpansionPending()]


def test_a_flex_volume_waits_while_its_driver_is_being_loaded() -> None:
    steps = list(plan(grown_claim(), flex_volume(), driver="example.com/lvm", flex_loading="loading"))
    data = WaitData(driver="example.com/lvm")
    assert steps == [Wait(WaitReason.FLEX_DRIVER_MISSING, data, message="loading")]


def test_the_old_size_is_removed_from_a_flex_volume_that_has_grown() -> None:
    annotations = {"annotations": {PRE_RESIZE_CAPACITY_ANNOTATION: "1Gi"}}
    grown = grown_claim("1Gi")
    assert list(plan(grown, flex_volume(metadata=annotations))) == [RemovePreResizeAnnotation()]
    assert list(plan(grown, flex_volume())) == []
    assert list(plan(grown, bound_volume(metadata=annotations))) == []  # the resizer's own


def test_nothing_is_said_of_who_has_enough_or_another_ones_volume() -> None:
    assert list(plan(grown_claim("1Gi"), bound_volume())) == []
    assert list(plan(grown_claim(phase="Pending"), bound_volume())) == []
    assert list(plan(grown_claim(), bound_volume("u2"))) == []
    assert list(plan(grown_claim(), None)) == []


def test_what_the_resizer_writes_is_no_news() -> None:
    busy = grown_claim(allocatedResourceStatuses={"storage": "ControllerResizeInProgress"})
    assert relevant_fields(grown_claim()) == relevant_fields(busy)
    assert relevant_fields(grown_claim()) != relevant_fields(grown_claim("3Gi"))
    assert relevant_fields(None) is None
