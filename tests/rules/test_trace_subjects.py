"""Which trace the objects of a volume belong to."""

from __future__ import annotations

from typing import Any

import pytest

from volplane.api import codec
from volplane.api.core import ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import Resource
from volplane.api.storage import VolumeAttachment
from volplane.rules.trace_subjects import Fact, list_trace_facts, subject_of_unique_name

UID = "aebdded0-e326-4bae-aa34-e5df8082d22e"
TRACE = "aebdded0e3264baeaa34e5df8082d22e"


def make(kind: type[Resource], name: str, namespace: str = "", **content: Any) -> Resource:
    meta = {"name": name, "namespace": namespace, "uid": UID}
    return codec.convert(kind, {"metadata": meta, **content})


def pod(*volumes: dict[str, Any]) -> Resource:
    named = [{"name": f"v{number}", **volume} for number, volume in enumerate(volumes)]
    return make(Pod, "web", "default", spec={"volumes": named})


CLAIM = {"persistentVolumeClaim": {"claimName": "data"}}
EPHEMERAL: dict[str, Any] = {"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
REF = {"namespace": "default", "name": "data", "uid": UID}
CSI = {"driver": "d", "volumeHandle": "vol-1"}

FACTS: dict[str, tuple[Resource, list[Fact]]] = {
    "a claim has the trace of its uid": (
        make(PersistentVolumeClaim, "data", "default"),
        [("pvc/default/data", (TRACE,))],
    ),
    "a bound volume has its claim's, and names its handle": (
        make(PersistentVolume, "pv-1", spec={"claimRef": REF, "csi": CSI}),
        [("pv/pv-1", (TRACE,)), ("volume/vol-1", ("pv/pv-1",))],
    ),
    "a volume without a claim has none": (
        make(PersistentVolume, "pv-1", spec={"csi": CSI}),
        [("volume/vol-1", ("pv/pv-1",))],
    ),
    "a volume of another type has no handle": (
        make(PersistentVolume, "pv-1", spec={"claimRef": REF}),
        [("pv/pv-1", (TRACE,))],
    ),
    "an attachment belongs to its volume": (
        make(VolumeAttachment, "csi-1", spec={"source": {"persistentVolumeName": "pv-1"}}),
        [("va/csi-1", ("pv/pv-1",))],
    ),
    "an attachment of an inline volume belongs to nothing": (
        make(VolumeAttachment, "csi-1"),
        [("va/csi-1", ())],
    ),
    "a pod belongs to its claims, each once": (
        pod(CLAIM, EPHEMERAL, CLAIM, {"emptyDir": {}}),
        [("pod/default/web", ("pvc/default/data", "pvc/default/web-v1"))],
    ),
    "a pod without claims has a trace of its own": (pod({"emptyDir": {}}), [("pod/default/web", (TRACE,))]),
    "other kinds tell nothing": (make(ConfigMap, "x", "default"), []),
}


@pytest.mark.parametrize(("obj", "facts"), FACTS.values(), ids=FACTS)
def test_objects_tell_which_trace_they_belong_to(obj: Resource, facts: list[Fact]) -> None:
    assert list(list_trace_facts(obj)) == facts


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("kubernetes.io/csi/ebs.csi.aws.com^vol-1", "volume/vol-1"),
        ("kubernetes.io/local-volume/pv-1", "volume/kubernetes.io/local-volume/pv-1"),
    ],
)
def test_a_node_names_volumes_by_their_handle(name: str, subject: str) -> None:
    assert subject_of_unique_name(name) == subject
