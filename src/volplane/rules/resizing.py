"""How far the growth of a claim's volume has come: the marks that resizer and node leave on the claim.

The control plane's part and the node's part hand over through `allocatedResourceStatuses`; people read the
conditions. The subtle thing: `allocatedResources` is the size that is being worked towards, which is not
what the claim asks for once its request was lowered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from volplane.api import quantity
from volplane.api.core import PersistentVolumeClaim, PersistentVolumeClaimCondition

RESIZER = "volume.kubernetes.io/storage-resizer"
NODE_NOT_REQUIRED = "volume.kubernetes.io/node-expansion-not-required"

RESIZING = "Resizing"
FILE_SYSTEM_PENDING = "FileSystemResizePending"
CONTROLLER_ERROR = "ControllerResizeError"
NODE_ERROR = "NodeResizeError"
WAITING = "Waiting for user to (re-)start a pod to finish file system resize of volume on node."
CONDITIONS = (RESIZING, FILE_SYSTEM_PENDING, CONTROLLER_ERROR, NODE_ERROR)


class ResizeState(StrEnum):
    """`status.allocatedResourceStatuses.storage`."""

    NONE = ""
    CONTROLLER_IN_PROGRESS = "ControllerResizeInProgress"
    CONTROLLER_INFEASIBLE = "ControllerResizeInfeasible"
    NODE_PENDING = "NodeResizePending"
    NODE_IN_PROGRESS = "NodeResizeInProgress"
    NODE_INFEASIBLE = "NodeResizeInfeasible"


def state(claim: PersistentVolumeClaim) -> ResizeState:
    try:
        return ResizeState(claim.status.allocated_resource_statuses.get("storage", ""))
    except ValueError:  # a word of a newer version: as if nothing was said
        return ResizeState.NONE


def actual_size(claim: PersistentVolumeClaim) -> int:
    """The size that the claim's user sees."""
    return quantity.value(claim.status.capacity.get("storage", "0"))


def allocated_size(claim: PersistentVolumeClaim) -> int | None:
    """The size that is being worked towards, if anything ever was."""
    size = claim.status.allocated_resources.get("storage")
    return None if size is None else quantity.value(size)


def has_condition(claim: PersistentVolumeClaim, type: str) -> bool:
    return any(c.type == type and c.status == "True" for c in claim.status.conditions)


def conditions(
    claim: PersistentVolumeClaim,
    wanted: Iterable[Mapping[str, Any]] = (),
    *,
    drop: Iterable[str] = (),
) -> list[Mapping[str, Any]]:
    """The strategic patch of a claim's conditions that sets some and drops others; [] if nothing changes."""
    there = {c.type: c for c in claim.status.conditions}
    changes = [new for new in wanted if not _is_same_condition(there.get(new["type"]), new)]
    told = {new["type"] for new in wanted}
    gone = [{"$patch": "delete", "type": t} for t in drop if t in there and t not in told]
    return [*gone, *changes]


def _is_same_condition(old: PersistentVolumeClaimCondition | None, new: Mapping[str, Any]) -> bool:
    """It is there already, whenever it was said."""
    if old is None or old.status != new["status"]:
        return False
    return (old.reason, old.message) == (new.get("reason", ""), new.get("message", ""))
