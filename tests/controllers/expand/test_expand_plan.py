"""Events and steps for claims that request more storage, by the kind of their volume."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from tests.controllers.objects import claim, volume
from volplane.api import codec
from volplane.api.annotations import STORAGE_RESIZER_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.controllers.expand.plan import SetResizer, StartNodeExpansion, plan, relevant_fields
from volplane.rules.steps import RecordEvent

EBS: dict[str, Any] = {"csi": None, "awsElasticBlockStore": {"volumeID": "vol-1"}}
FLEX: dict[str, Any] = {"csi": None, "flexVolume": {"driver": "example.com/lvm"}}


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


def test_a_flex_volume_goes_on_to_its_node() -> None:
    assert list(plan(grown_claim(), bound_volume(**FLEX))) == [StartNodeExpansion("2Gi")]
    with_node = grown_claim(allocatedResourceStatuses={"storage": "NodeResizePending"})
    assert list(plan(with_node, bound_volume(**FLEX))) == []


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
