"""The fields and names that attaching depends on; functions that return lists are index functions."""

from __future__ import annotations

from collections.abc import Iterator

from volplane.api import names
from volplane.api.annotations import CONTROLLER_MANAGED_ATTACH_ANNOTATION
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.rules import pods, taints
from volplane.rules.csi_translation import find_csi_source
from volplane.rules.plugin_names import NOT_AVAILABLE, qualify_csi
from volplane.volumes.flex.attachment import split_unique_name
from volplane.volumes.flex.options import FlexVolume, find_flex_volume

CSI = "kubernetes.io/csi/"


def unique_name(volume: PersistentVolume) -> list[str]:
    """The unique name of a CSI volume or FlexVolume; other volumes are not attached."""
    source = find_csi_source(volume)
    if source is not None:
        return [names.csi_volume_name(source.driver, source.volume_handle)]
    flex = find_flex_volume(None, volume)
    return [flex.unique_name] if flex is not None else []


def volume_driver(volume: PersistentVolume) -> list[str]:
    """The CSI or FlexVolume driver."""
    source = find_csi_source(volume) or volume.spec.flex_volume
    return [source.driver] if source is not None else []


def inline_flex_volumes(pod: Pod) -> Iterator[FlexVolume]:
    for volume in pod.spec.volumes:
        flex = find_flex_volume(volume, None)
        if flex is not None:
            yield flex


def inline_unique_names(pod: Pod) -> list[str]:
    return [flex.unique_name for flex in inline_flex_volumes(pod)]


def inline_drivers(pod: Pod) -> list[str]:
    return [flex.driver for flex in inline_flex_volumes(pod)]


def listed_volumes(node: Node) -> list[str]:
    return [v.name for v in node.status.volumes_attached]


def is_flex(volume: str) -> bool:
    """Whether a unique name is that of a FlexVolume."""
    return not volume.startswith(CSI)


def split(volume: str) -> tuple[str, str] | None:
    """Driver and handle of a unique name; None if that is ambiguous."""
    if is_flex(volume):
        return split_unique_name(volume)
    driver, separator, handle = volume.removeprefix(CSI).partition("^")
    return (driver, handle) if separator and "^" not in handle else None


def plugin_of(volume: str) -> str:
    """The plugin of a unique name, as metrics name it."""
    driver, _ = split(volume) or (NOT_AVAILABLE, "")
    return driver if is_flex(volume) else qualify_csi(driver)


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


def only_reads(pod: Pod, claim: str) -> bool:
    """Whether every reference of the pod to the claim is read-only."""
    return all(use.read_only for use in pods.claim_uses(pod) if use.claim == claim)
