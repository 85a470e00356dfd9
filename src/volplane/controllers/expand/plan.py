"""What to do about a claim that requests more than it has.

Nothing is expanded here: the in-tree plugins that could are gone. A claim on a volume of such a plugin is
handed to the CSI driver that replaces it; a FlexVolume is expanded by its node alone; for all others the
driver's csi-resizer sees the claim by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from volplane.api.annotations import STORAGE_RESIZER_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.rules import binding, classes, resizing, sizes
from volplane.rules.resizing import ResizeState
from volplane.rules.steps import RecordEvent, normal

_IN_TREE = {
    "aws_elastic_block_store": "kubernetes.io/aws-ebs",
    "azure_disk": "kubernetes.io/azure-disk",
    "azure_file": "kubernetes.io/azure-file",
    "cinder": "kubernetes.io/cinder",
    "gce_persistent_disk": "kubernetes.io/gce-pd",
    "portworx_volume": "kubernetes.io/portworx-volume",
    "vsphere_volume": "kubernetes.io/vsphere-volume",
}


class SetResizer(Struct, frozen=True):
    """Name the driver whose resizer has to expand the volume."""

    driver: str


class StartNodeExpansion(Struct, frozen=True):
    """Nothing to do in the control plane: the node expands the file system."""

    size: str


Step = SetResizer | StartNodeExpansion


def plan(claim: PersistentVolumeClaim, volume: PersistentVolume | None) -> Iterator[Step | RecordEvent]:
    if volume is None or not is_wanted(claim) or not binding.is_pair(claim, volume):
        return
    if plugin := in_tree(volume):
        message = f"CSI migration enabled for {plugin}; waiting for external resizer to expand the pvc"
        yield normal("ExternalExpanding", message)
        driver = classes.MIGRATED[plugin]
        if claim.metadata.annotations.get(STORAGE_RESIZER_ANNOTATION) != driver:
            yield SetResizer(driver)
    elif volume.spec.flex_volume is not None:
        if resizing.state(claim) in (ResizeState.NONE, ResizeState.NODE_INFEASIBLE):
            yield StartNodeExpansion(claim.spec.resources.requests["storage"])
    else:
        yield normal("ExternalExpanding", "waiting for an external controller to expand this PVC")


def is_wanted(claim: PersistentVolumeClaim) -> bool:
    return claim.status.phase == "Bound" and sizes.requested_size(claim) > resizing.actual_size(claim)


def in_tree(volume: PersistentVolume) -> str:
    """The in-tree plugin which the volume was made for, if a driver has taken its place."""
    found = (plugin for source, plugin in _IN_TREE.items() if getattr(volume.spec, source, None) is not None)
    return next(found, "")


def relevant_fields(claim: PersistentVolumeClaim | None) -> object:
    """The fields whose change matters: other writes of the status must not repeat the events."""
    if claim is None:
        return None
    infeasible = resizing.state(claim) is ResizeState.NODE_INFEASIBLE
    return claim.uid, claim.status.phase, sizes.requested_size(claim), resizing.actual_size(claim), infeasible
