"""What a claim that asks for more needs next of its driver.

The size to work towards is written on the claim before the driver is asked, because an answer may never
come: then that size, and no other, is asked for until it is known what became of it. Only after a final
error may the claim's present request take its place. That an error was final is known in this process alone;
after a restart an expansion in progress counts as one whose outcome is open.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.rules import binding, classes, resizing, sizes
from volplane.rules.resizing import ResizeState
from volplane.rules.steps import CommonStep, normal, warning
from volplane.rules.waits import Wait, WaitData, WaitReason


class ResizerDriverInfo(Struct, frozen=True):
    """What the plan must know of the driver."""

    name: str
    has_controller_expand: bool = True  # ControllerExpandVolume; without it the node alone does the work
    annotates_capacity: bool = False  # gate AnnotateFsResize


class LastExpansion(Struct, frozen=True):
    """What this process remembers of the claim's last attempt."""

    is_final: bool = False  # it failed for good, and nothing of it goes on
    refused_in_use: bool = False  # the driver expands only volumes that nobody uses
    retry_after: float = 0.0  # seconds before the next attempt, after the driver said that it cannot be done


class RecordTargetSize(Struct, frozen=True):
    """Write down what is about to be asked for."""

    size: int
    is_new_size: bool  # another size than before: what was said of that one goes


class ControllerExpand(Struct, frozen=True):
    size: int


class RemovePreResizeCapacity(Struct, frozen=True):
    """The node has finished: the note of the size before it goes."""


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
    """Bound, and asks for more than its user sees."""
    return claim.status.phase == "Bound" and sizes.requested_size(claim) > resizing.actual_size(claim)


def is_ours(claim: PersistentVolumeClaim, volume: PersistentVolume, driver: str) -> bool:
    """The volume is the driver's, by its source or because the driver stands in for an in-tree plugin, and
    belongs to this very claim.
    """
    ref = volume.spec.claim_ref
    if ref is None or ref.namespace != claim.namespace or ref.uid != claim.uid:
        return False
    if volume.spec.csi is not None:
        return volume.spec.csi.driver == driver
    return driver in classes.MIGRATION_DRIVERS and claim.metadata.annotations.get(resizing.RESIZER) == driver


def target_size(
    claim: PersistentVolumeClaim, volume: PersistentVolume, driver: ResizerDriverInfo, last: LastExpansion
) -> int | None:
    """The size to ask for; None while it is the node's turn."""
    requested, state, allocated = (
        sizes.requested_size(claim),
        resizing.state(claim),
        resizing.allocated_size(claim),
    )
    noted = requested if allocated is None else allocated
    if sizes.capacity(volume) < requested:
        match state:
            # The node works towards the noted size, or was told that it cannot: that is settled first.
            case ResizeState.NODE_PENDING | ResizeState.NODE_IN_PROGRESS:
                return None if sizes.capacity(volume) >= noted else noted
            case ResizeState.NODE_INFEASIBLE:
                return noted
            # Open, unless we saw it fail for good: an open one is finished before another begins.
            case ResizeState.CONTROLLER_IN_PROGRESS:
                return requested if last.is_final else noted
            case _:
                return requested
    match state:
        case ResizeState.NODE_PENDING | ResizeState.NODE_IN_PROGRESS:
            return None
        # The volume has grown and the node cannot follow: asking again makes it safe for the node to retry.
        case ResizeState.NODE_INFEASIBLE:
            return noted if driver.has_controller_expand else requested
        # The volume has grown, and that is all we know: the claim was not told, or was made smaller since.
        case ResizeState.CONTROLLER_IN_PROGRESS | ResizeState.CONTROLLER_INFEASIBLE:
            return noted
        case _:
            if allocated is None and resizing.has_condition(claim, resizing.FILE_SYSTEM_PENDING):
                return None  # an older resizer has handed it to the node
            return noted


def _is_complete(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    if binding.PRE_RESIZE_CAPACITY not in volume.metadata.annotations:
        return False
    return resizing.actual_size(claim) >= sizes.capacity(volume)


def relevant_fields(claim: PersistentVolumeClaim | None) -> object:
    """The fields whose change matters. Our own writes must not cut a pause short."""
    if claim is None:
        return None
    state = resizing.state(claim)
    return (
        claim.uid,
        claim.status.phase,
        claim.spec.volume_name,
        sizes.requested_size(claim),
        resizing.actual_size(claim),
        claim.metadata.annotations.get(resizing.RESIZER),
        state if state.startswith("Node") else "",
    )
