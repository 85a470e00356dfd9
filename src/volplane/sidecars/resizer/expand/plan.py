"""What a claim that requests more storage needs next from its driver.

The target size is written to the claim before the driver is called, because the outcome may stay unknown:
then the same size is requested until it is known. Only after a final error is the claim's present request
used. Only this process knows that an error was final; after a restart the outcome of an expansion in progress
counts as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from volplane.api.annotations import PRE_RESIZE_CAPACITY_ANNOTATION, STORAGE_RESIZER_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.rules import classes, resizing, sizes
from volplane.rules.resizing import ResizeState
from volplane.rules.steps import CommonStep, normal, warning
from volplane.rules.waits import Wait, WaitData, WaitReason


class ResizerDriverInfo(Struct, frozen=True):
    """What the plan must know of the driver."""

    name: str
    has_controller_expand: bool = True  # without it the node alone expands the volume
    annotates_capacity: bool = False  # gate AnnotateFsResize


class LastExpansion(Struct, frozen=True):
    """What this process remembers of the claim's last attempt."""

    is_final: bool = False  # it ended with a final error
    refused_in_use: bool = False  # the driver expands only volumes that are not in use
    retry_after: float = 0.0  # seconds before the next attempt after an infeasible error


class RecordTargetSize(Struct, frozen=True):
    """Write the target size to the claim."""

    size: int
    is_new_size: bool  # another size than before: conditions of the old one are removed


class ControllerExpand(Struct, frozen=True):
    size: int


class RemovePreResizeCapacity(Struct, frozen=True):
    """The node has finished: remove the annotation with the capacity before the expansion."""


class WatchPodsOfVolume(Struct, frozen=True):
    """Find out whether pods use the volume: the driver expands only volumes that are not in use."""


Step = RecordTargetSize | ControllerExpand | RemovePreResizeCapacity | WatchPodsOfVolume


def plan(
    claim: PersistentVolumeClaim,
    volume: PersistentVolume | None,
    driver: ResizerDriverInfo,
    last: LastExpansion,
    *,
    in_use: bool | None = False,  # None: not known yet
) -> Iterator[Step | CommonStep]:
    if not claim.spec.volume_name:
        return
    if volume is None:
        if needs_expansion(claim):
            yield Wait(WaitReason.VOLUME_NOT_FOUND, WaitData(volume=claim.spec.volume_name))
        return
    if driver.annotates_capacity and _is_complete(claim, volume):
        yield RemovePreResizeCapacity()
    if needs_expansion(claim) and is_ours(claim, volume, driver.name):
        yield from _expand(claim, volume, driver, last, in_use=in_use)


def _expand(
    claim: PersistentVolumeClaim,
    volume: PersistentVolume,
    driver: ResizerDriverInfo,
    last: LastExpansion,
    *,
    in_use: bool | None,
) -> Iterator[Step | CommonStep]:
    size = target_size(claim, volume, driver, last)
    if size is None:
        yield Wait(WaitReason.NODE_RESIZE)
        return
    data = WaitData(driver=driver.name)
    fresh = resizing.allocated_size(claim) != size
    if not fresh and last.retry_after > 0:
        yield Wait(WaitReason.RESIZE_INFEASIBLE, data, last.retry_after)
        return
    if last.refused_in_use and in_use is None:
        yield WatchPodsOfVolume()
        return
    yield RecordTargetSize(size, fresh)
    if last.refused_in_use and in_use:
        why = (
            f"Unable to expand {claim.key} because CSI driver {driver.name} only supports offline expansion "
            "and volume is currently in-use"
        )
        yield warning("VolumeResizeFailed", why)
        yield Wait(WaitReason.RESIZE_IN_USE, data)
        return
    yield normal("Resizing", f"External resizer is resizing volume {volume.name}")
    yield ControllerExpand(size)


def needs_expansion(claim: PersistentVolumeClaim) -> bool:
    """The claim is bound, and requests more than its capacity."""
    return claim.status.phase == "Bound" and sizes.requested_size(claim) > resizing.actual_size(claim)


def is_ours(claim: PersistentVolumeClaim, volume: PersistentVolume, driver: str) -> bool:
    """The volume is bound to this claim, and is handled by the driver: by its source, or because the driver
    replaces an in-tree plugin.
    """
    ref = volume.spec.claim_ref
    if ref is None or ref.namespace != claim.namespace or ref.uid != claim.uid:
        return False
    if volume.spec.csi is not None:
        return volume.spec.csi.driver == driver
    return (
        driver in classes.MIGRATION_DRIVERS
        and claim.metadata.annotations.get(STORAGE_RESIZER_ANNOTATION) == driver
    )


def target_size(
    claim: PersistentVolumeClaim, volume: PersistentVolume, driver: ResizerDriverInfo, last: LastExpansion
) -> int | None:
    """The size to request; None while the node expands the file system."""
    requested, state, allocated = (
        sizes.requested_size(claim),
        resizing.state(claim),
        resizing.allocated_size(claim),
    )
    noted = requested if allocated is None else allocated
    if sizes.capacity(volume) < requested:
        match state:
            # The node expands to the recorded size, or has failed to: finish that first.
            case ResizeState.NODE_PENDING | ResizeState.NODE_IN_PROGRESS:
                return None if sizes.capacity(volume) >= noted else noted
            case ResizeState.NODE_INFEASIBLE:
                return noted
            # Its outcome is unknown, unless we saw a final error: finish it before a new one.
            case ResizeState.CONTROLLER_IN_PROGRESS:
                return requested if last.is_final else noted
            case _:
                return requested
    match state:
        case ResizeState.NODE_PENDING | ResizeState.NODE_IN_PROGRESS:
            return None
        # The volume has grown and the node failed: calling the driver again lets the node retry safely.
        case ResizeState.NODE_INFEASIBLE:
            return noted if driver.has_controller_expand else requested
        # The volume has grown, and the claim was not updated, or requests less by now.
        case ResizeState.CONTROLLER_IN_PROGRESS | ResizeState.CONTROLLER_INFEASIBLE:
            return noted
        case _:
            if allocated is None and resizing.has_condition(claim, resizing.FILE_SYSTEM_PENDING):
                return None  # an older resizer has left it to the node
            return noted


def _is_complete(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    if PRE_RESIZE_CAPACITY_ANNOTATION not in volume.metadata.annotations:
        return False
    return resizing.actual_size(claim) >= sizes.capacity(volume)


def relevant_fields(claim: PersistentVolumeClaim | None) -> object:
    """The fields whose change wakes the claim. Our own writes must not cut a wait short."""
    if claim is None:
        return None
    state = resizing.state(claim)
    return (
        claim.uid,
        claim.status.phase,
        claim.spec.volume_name,
        sizes.requested_size(claim),
        resizing.actual_size(claim),
        claim.metadata.annotations.get(STORAGE_RESIZER_ANNOTATION),
        state if state.startswith("Node") else "",
    )
