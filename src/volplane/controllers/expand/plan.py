"""What becomes of a claim that asks for more than it has.

Nothing is expanded here: the in-tree plugins that could are gone. A claim on a volume of such a plugin is
handed to the driver that stands in for it; a FlexVolume has nothing to do in the control plane and goes on
to its node; for all others a resizer beside the driver sees the claim by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.rules import binding, classes, resizing, sizes
from volplane.rules.resizing import State
from volplane.rules.steps import Say, normal

_IN_TREE = {
    "aws_elastic_block_store": "kubernetes.io/aws-ebs",
    "azure_disk": "kubernetes.io/azure-disk",
    "azure_file": "kubernetes.io/azure-file",
    "cinder": "kubernetes.io/cinder",
    "gce_persistent_disk": "kubernetes.io/gce-pd",
    "portworx_volume": "kubernetes.io/portworx-volume",
    "vsphere_volume": "kubernetes.io/vsphere-volume",
}


class HandOver(Struct, frozen=True):
    """Name the driver that is to do it."""

    driver: str


class PassOn(Struct, frozen=True):
    """The control plane has nothing to do: it is the node's turn."""

    size: str


Step = HandOver | PassOn | Say


def plan(claim: PersistentVolumeClaim, volume: PersistentVolume | None) -> Iterator[Step]:
    if volume is None or not is_wanted(claim) or not binding.is_pair(claim, volume):
        return
    if plugin := in_tree(volume):
        message = f"CSI migration enabled for {plugin}; waiting for external resizer to expand the pvc"
        yield normal("ExternalExpanding", message)
        driver = classes.MIGRATED[plugin]
        if claim.metadata.annotations.get(resizing.RESIZER) != driver:
            yield HandOver(driver)
    elif volume.spec.flex_volume is not None:
        if resizing.state(claim) in (State.NONE, State.NODE_INFEASIBLE):
            yield PassOn(claim.spec.resources.requests["storage"])
    else:
        yield normal("ExternalExpanding", "waiting for an external controller to expand this PVC")


def is_wanted(claim: PersistentVolumeClaim) -> bool:
    return claim.status.phase == "Bound" and sizes.requested(claim) > resizing.actual(claim)


def in_tree(volume: PersistentVolume) -> str:
    """The in-tree plugin which the volume was made for, if a driver has taken its place."""
    found = (plugin for source, plugin in _IN_TREE.items() if getattr(volume.spec, source, None) is not None)
    return next(found, "")


def facts(claim: PersistentVolumeClaim | None) -> object:
    """What of a claim is news: other writes of its status must not repeat what was said."""
    if claim is None:
        return None
    infeasible = resizing.state(claim) is State.NODE_INFEASIBLE
    return claim.uid, claim.status.phase, sizes.requested(claim), resizing.actual(claim), infeasible
