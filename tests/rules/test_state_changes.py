"""What a write changes in the state of the objects of a volume."""

from __future__ import annotations

import pytest

from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import (
    AttachedVolume,
    ConfigMap,
    Node,
    NodeStatus,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimCondition,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeSpec,
    PersistentVolumeStatus,
    Pod,
    PodSpec,
    PodStatus,
)
from volplane.api.meta import ObjectMeta, Resource
from volplane.api.storage import VolumeAttachment, VolumeAttachmentStatus, VolumeError
from volplane.rules.state_changes import Change, changed_volumes, list_changes

UNIQUE = "kubernetes.io/csi/ebs.csi.aws.com^vol-1"


def claim(phase: str = "", volume: str = "", **meta: object) -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        metadata=ObjectMeta(name="data", namespace="default", **meta),  # type: ignore[arg-type]
        spec=PersistentVolumeClaimSpec(volume_name=volume),
        status=PersistentVolumeClaimStatus(phase=phase),
    )


def resizing(status: str) -> PersistentVolumeClaim:
    condition = PersistentVolumeClaimCondition(type="Resizing", status=status)
    return PersistentVolumeClaim(
        status=PersistentVolumeClaimStatus(conditions=(condition,) if status else ())
    )


def attachment(attached: bool, error: str = "") -> VolumeAttachment:
    failed = VolumeError(message=error) if error else None
    return VolumeAttachment(status=VolumeAttachmentStatus(attached=attached, attach_error=failed))


def node(*, used: tuple[str, ...] = (), attached: tuple[str, ...] = ()) -> Node:
    listed = tuple(AttachedVolume(name=name) for name in attached)
    return Node(status=NodeStatus(volumes_in_use=used, volumes_attached=listed))


BOUND = PersistentVolume(
    spec=PersistentVolumeSpec(claim_ref=ObjectReference(namespace="default", name="data", uid="u-1")),
    status=PersistentVolumeStatus(phase="Bound"),
)


def two_conditions(resizing: str) -> PersistentVolumeClaim:
    statuses = {"Resizing": resizing, "Other": "True"}
    conditions = tuple(PersistentVolumeClaimCondition(type=t, status=s) for t, s in statuses.items())
    return PersistentVolumeClaim(status=PersistentVolumeClaimStatus(conditions=conditions))


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        pytest.param(
            two_conditions("True"),
            two_conditions("False"),
            [("status.conditions[Resizing]", "True", "False")],
            id="one condition of two",
        ),
        pytest.param(
            node(), node(used=(UNIQUE,)), [(f"status.volumesInUse[{UNIQUE}]", "", "yes")], id="only in use"
        ),
        pytest.param(
            node(used=(UNIQUE,)),
            node(used=(UNIQUE,), attached=(UNIQUE,)),
            [(f"status.volumesAttached[{UNIQUE}]", "", "yes")],
            id="only attached",
        ),
        pytest.param(
            None, claim("Pending"), [("exists", "", "yes"), ("status.phase", "", "Pending")], id="created"
        ),
        pytest.param(
            claim("Bound", finalizers=("kubernetes.io/pvc-protection",)),
            None,
            [("metadata.finalizers[kubernetes.io/pvc-protection]", "yes", ""), ("exists", "yes", "")],
            id="removed",
        ),
        pytest.param(claim("Pending"), claim("Pending"), [], id="nothing"),
        pytest.param(
            claim("Pending"),
            claim("Bound", "pv-1"),
            [("status.phase", "Pending", "Bound"), ("spec.volumeName", "", "pv-1")],
            id="bound",
        ),
        pytest.param(
            claim(finalizers=("a", "b")),
            claim(finalizers=("b", "c")),
            [("metadata.finalizers[a]", "yes", ""), ("metadata.finalizers[c]", "", "yes")],
            id="finalizers",
        ),
        pytest.param(
            claim(),
            claim(deletion_timestamp="2026-01-01T00:00:00Z"),
            [("metadata.deletionTimestamp", "", "2026-01-01T00:00:00Z")],
            id="deletion",
        ),
        pytest.param(
            claim(),
            claim(annotations={SELECTED_NODE_ANNOTATION: "w-1"}),
            [("metadata.annotations[selected-node]", "", "w-1")],
            id="selected node",
        ),
        pytest.param(
            resizing("True"),
            resizing("False"),
            [("status.conditions[Resizing]", "True", "False")],
            id="condition",
        ),
        pytest.param(
            resizing("True"),
            resizing(""),
            [("status.conditions[Resizing]", "True", "")],
            id="condition removed",
        ),
        pytest.param(
            PersistentVolume(),
            BOUND,
            [("status.phase", "", "Bound"), ("spec.claimRef", "", "default/data (u-1)")],
            id="volume bound",
        ),
        pytest.param(attachment(False), attachment(True), [("status.attached", "", "true")], id="attached"),
        pytest.param(
            attachment(False),
            attachment(False, "busy"),
            [("status.attachError", "", "busy")],
            id="attach error",
        ),
        pytest.param(
            Pod(),
            Pod(spec=PodSpec(node_name="w-1"), status=PodStatus(phase="Running")),
            [("spec.nodeName", "", "w-1"), ("status.phase", "", "Running")],
            id="pod",
        ),
        pytest.param(
            node(used=(UNIQUE,)),
            node(attached=(UNIQUE,)),
            [(f"status.volumesInUse[{UNIQUE}]", "yes", ""), (f"status.volumesAttached[{UNIQUE}]", "", "yes")],
            id="node",
        ),
        pytest.param(None, node(used=(UNIQUE,)), [], id="new node"),
        pytest.param(None, ConfigMap(), [], id="another kind"),
    ],
)
def test_changes_of_state(old: Resource | None, new: Resource | None, changes: list[Change]) -> None:
    assert list_changes(old, new) == changes


def test_the_volumes_in_the_changes_of_a_node() -> None:
    changes = list_changes(node(), node(used=(UNIQUE,), attached=("flexvolume-x",)))
    assert list(changed_volumes(changes)) == [UNIQUE, "flexvolume-x"]
    assert list(changed_volumes([("status.phase", "", "Bound")])) == []
