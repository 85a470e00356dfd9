"""Index functions, relevant fields and patches of the objects that the scheduler watches."""

from __future__ import annotations

from msgspec import structs

from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import Node, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import CSIStorageCapacity, VolumeAttachment
from volplane.base import clock
from volplane.rules.binding import claim_key, volume_class


def unclaimed_class(volume: PersistentVolume) -> list[str]:
    return [volume_class(volume)] if volume.spec.claim_ref is None else []


def claimant(volume: PersistentVolume) -> list[str]:
    return [claim_key(volume)] if volume.spec.claim_ref is not None else []


def capacity_class(capacity: CSIStorageCapacity) -> list[str]:
    return [capacity.storage_class_name]


def attached_node(attachment: VolumeAttachment) -> list[str]:
    return [attachment.spec.node_name]


def with_claim_ref(volume: PersistentVolume, claim: PersistentVolumeClaim) -> PersistentVolume:
    reference = ObjectReference(namespace=claim.namespace, name=claim.name, uid=claim.uid)
    return structs.replace(volume, spec=structs.replace(volume.spec, claim_ref=reference))


def with_selected_node(claim: PersistentVolumeClaim, node: str) -> PersistentVolumeClaim:
    notes = {**claim.metadata.annotations, SELECTED_NODE_ANNOTATION: node}
    return structs.replace(claim, metadata=structs.replace(claim.metadata, annotations=notes))


def relevant_node_fields(node: Node) -> tuple[object, ...]:
    """The fields of a node that filters read."""
    return node.metadata.labels, node.spec.taints, node.spec.unschedulable, node.status.allocatable


def relevant_volume_fields(volume: PersistentVolume) -> tuple[object, ...]:
    free = volume.spec.claim_ref is None and volume.status.phase == "Available"
    return free, volume.spec.node_affinity, volume.metadata.labels


def has_scheduled_condition(pod: Pod, reason: str, message: str) -> bool:
    return any(
        c.type == "PodScheduled" and (c.status, c.reason, c.message) == ("False", reason, message)
        for c in pod.status.conditions
    )


def build_condition_patch(pod: Pod, reason: str, message: str, cleared: str) -> dict[str, object]:
    before = next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)
    since = before.last_transition_time if before is not None and before.status == "False" else ""
    made: dict[str, object] = {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": since or clock.stamp(),
    }
    if pod.metadata.generation:
        made["observedGeneration"] = pod.metadata.generation
    status: dict[str, object] = {"conditions": [made]}
    if (pod.status.nominated_node_name or "") != cleared:
        status["nominatedNodeName"] = cleared or None
    return {"status": status}
