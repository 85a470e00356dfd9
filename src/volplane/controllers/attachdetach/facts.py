"""The fields and names that attaching depends on; functions that return lists are index functions."""

from __future__ import annotations

from volplane.api import names
from volplane.api.annotations import CONTROLLER_MANAGED_ATTACH_ANNOTATION
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment
from volplane.rules import pods, taints
from volplane.rules.binding import claim_key

CSI = "kubernetes.io/csi/"


def unique_name(volume: PersistentVolume) -> list[str]:
    """The unique name of a CSI volume; other volumes are not attached."""
    source = volume.spec.csi
    return [names.csi_volume_name(source.driver, source.volume_handle)] if source is not None else []


def volume_driver(volume: PersistentVolume) -> list[str]:
    return [volume.spec.csi.driver] if volume.spec.csi is not None else []


def claimed_by(volume: PersistentVolume) -> list[str]:
    return [claim_key(volume)] if volume.spec.claim_ref is not None else []


def attached_volume(attachment: VolumeAttachment) -> list[str]:
    name = attachment.spec.source.persistent_volume_name
    return [name] if name else []


def attached_node(attachment: VolumeAttachment) -> list[str]:
    return [attachment.spec.node_name]


def listed_volumes(node: Node) -> list[str]:
    return [v.name for v in node.status.volumes_attached]


def split(volume: str) -> tuple[str, str] | None:
    """Driver and handle of a unique name; None if that is ambiguous."""
    driver, separator, handle = volume.removeprefix(CSI).partition("^")
    return (driver, handle) if volume.startswith(CSI) and separator and "^" not in handle else None


def node_of(pod: Pod) -> list[str]:
    return [pod.spec.node_name] if pod.spec.node_name else []


def is_managed(node: Node) -> bool:
    return CONTROLLER_MANAGED_ATTACH_ANNOTATION in node.metadata.annotations


def relevant_pod_fields(pod: Pod) -> tuple[str, bool]:
    """The fields of a pod that decide about its volumes."""
    return pod.spec.node_name, pods.has_released_volumes(pod)


def relevant_node_fields(node: Node) -> tuple[bool, bool, bool]:
    """The fields of a node that decide about all its volumes."""
    return taints.is_ready(node), taints.is_out_of_service(node), is_managed(node)


def uses(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    return any(
        u.claim == claim.name and (not u.ephemeral or pods.owns(pod, claim)) for u in pods.claim_uses(pod)
    )
