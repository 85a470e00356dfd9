"""The state of a claim's expansion: what the resizer and the kubelet write on the claim.

The control plane and the node hand over through `allocatedResourceStatuses`; conditions are for people.
`allocatedResources` is the target of the running expansion. It differs from the claim's request once that
was lowered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from volplane.api import quantity
from volplane.api.core import PersistentVolumeClaim, PersistentVolumeClaimCondition
from volplane.rules import sizes

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
    except ValueError:  # a state of a newer version counts as none
        return ResizeState.NONE


def actual_size(claim: PersistentVolumeClaim) -> int:
    """The size in the claim's status."""
    return quantity.value(claim.status.capacity.get("storage", "0"))


def needs_expansion(claim: PersistentVolumeClaim) -> bool:
    """The claim is bound, and requests more than its capacity."""
    return claim.status.phase == "Bound" and sizes.requested_size(claim) > actual_size(claim)


def allocated_size(claim: PersistentVolumeClaim) -> int | None:
    """The target of the last expansion; None if there was none."""
    size = claim.status.allocated_resources.get("storage")
    return None if size is None else quantity.value(size)


def has_condition(claim: PersistentVolumeClaim, type: str) -> bool:
    return any(c.type == type and c.status == "True" for c in claim.status.conditions)


def true_condition(type: str, since: str, message: str = "") -> dict[str, str]:
    condition = {"type": type, "status": "True", "lastTransitionTime": since, "message": message}
    return {key: value for key, value in condition.items() if value}


def conditions(
    claim: PersistentVolumeClaim,
    wanted: Iterable[Mapping[str, Any]] = (),
    *,
    drop: Iterable[str] = (),
) -> list[Mapping[str, Any]]:
    """A strategic patch that sets some conditions and removes others; [] if nothing changes."""
    there = {c.type: c for c in claim.status.conditions}
    changes = [new for new in wanted if not _is_same_condition(there.get(new["type"]), new)]
    kept = {new["type"] for new in wanted}
    removed = [{"$patch": "delete", "type": t} for t in drop if t in there and t not in kept]
    return [*removed, *changes]


def _is_same_condition(old: PersistentVolumeClaimCondition | None, new: Mapping[str, Any]) -> bool:
    """Equal apart from the time."""
    if old is None or old.status != new["status"]:
        return False
    return (old.reason, old.message) == (new.get("reason", ""), new.get("message", ""))
