"""What to do about a claim that requests more than it has.

A FlexVolume is expanded by its driver, called from here, and then by its node. The other in-tree plugins that
could expand are gone: a claim on a volume of such a plugin is handed to the CSI driver that replaces it. For
all others the driver's csi-resizer sees the claim by itself.

The target of an expansion is stored on the claim before the driver is called. After a crash, the same target
is used again, even if the claim requests another size by then.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from volplane.api import quantity
from volplane.api.annotations import PRE_RESIZE_CAPACITY_ANNOTATION, STORAGE_RESIZER_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.rules import binding, in_tree, resizing, sizes
from volplane.rules.resizing import ResizeState
from volplane.rules.steps import RecordEvent, normal
from volplane.rules.waits import Wait, WaitData, WaitReason


class SetResizer(Struct, frozen=True):
    """Name the driver whose resizer has to expand the volume."""

    driver: str


class ExpandFlexVolume(Struct, frozen=True):
    """Store the target size on the claim, and call the driver."""

    size: str


class MarkNodeExpansionPending(Struct, frozen=True):
    """Ask the node once more to expand the file system."""


class RemovePreResizeAnnotation(Struct, frozen=True):
    """The node has expanded the file system: remove the old size from the volume."""


Step = SetResizer | ExpandFlexVolume | MarkNodeExpansionPending | RemovePreResizeAnnotation


class ExpandView(Struct, frozen=True):
    claim: PersistentVolumeClaim
    volume: PersistentVolume | None
    driver: str = ""  # of a FlexVolume
    flex_loading: str = ""  # it is not known yet whether there is a driver, in words


def plan(view: ExpandView) -> Iterator[Step | RecordEvent | Wait]:
    claim, volume = view.claim, view.volume
    if volume is None or not binding.is_pair(claim, volume):
        return
    plugin = in_tree.find_plugin(volume)
    if not resizing.needs_expansion(claim):
        if volume.spec.flex_volume is not None and has_old_size(volume):
            yield RemovePreResizeAnnotation()
    elif plugin is not None and plugin.driver:
        message = f"CSI migration enabled for {plugin.name}; waiting for external resizer to expand the pvc"
        yield normal("ExternalExpanding", message)
        if claim.metadata.annotations.get(STORAGE_RESIZER_ANNOTATION) != plugin.driver:
            yield SetResizer(plugin.driver)
    elif volume.spec.flex_volume is not None:
        yield from plan_flex(view, volume)
    else:
        yield normal("ExternalExpanding", "waiting for an external controller to expand this PVC")


def plan_flex(view: ExpandView, volume: PersistentVolume) -> Iterator[Step | Wait]:
    """The states of a claim as upstream's expandAndRecoverFunction has them."""
    claim, state = view.claim, resizing.state(view.claim)
    if sizes.capacity(volume) >= sizes.requested_size(claim):  # the driver has expanded it
        if state in (ResizeState.NODE_PENDING, ResizeState.NODE_IN_PROGRESS):
            yield Wait(WaitReason.NODE_RESIZE)
            return
        if state is ResizeState.NODE_INFEASIBLE:
            yield MarkNodeExpansionPending()
            return
    if view.flex_loading:
        data = WaitData(driver=view.driver)
        yield Wait(WaitReason.FLEX_DRIVER_MISSING, data, message=view.flex_loading)
    else:
        yield ExpandFlexVolume(target_size(claim, volume))


def target_size(claim: PersistentVolumeClaim, volume: PersistentVolume) -> str:
    """That of the expansion under way, else what the claim requests."""
    requested = claim.spec.resources.requests["storage"]
    allocated = claim.status.allocated_resources.get("storage", "0")
    if quantity.value(allocated) <= resizing.actual_size(claim):  # it belongs to an expansion that is done
        return requested
    is_new = resizing.state(claim) in (ResizeState.NONE, ResizeState.CONTROLLER_INFEASIBLE)
    if is_new and sizes.capacity(volume) < quantity.value(requested):
        return requested
    return allocated


def has_old_size(volume: PersistentVolume) -> bool:
    return PRE_RESIZE_CAPACITY_ANNOTATION in volume.metadata.annotations


def relevant_fields(claim: PersistentVolumeClaim | None) -> object:
    """The fields whose change matters: other writes of the status must not repeat the events."""
    if claim is None:
        return None
    infeasible = resizing.state(claim) is ResizeState.NODE_INFEASIBLE
    return claim.uid, claim.status.phase, sizes.requested_size(claim), resizing.actual_size(claim), infeasible
