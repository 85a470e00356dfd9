"""What waits in a cluster, worst first: pure functions over the results of `explain`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import IntEnum
from typing import Any

from msgspec import Struct

from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.snapshot import VolumeSnapshot
from volplane.api.storage import VolumeAttachment
from volplane.dashboard.pieces import Tone
from volplane.explain.result import ExplainResult, ExplanationStep, StepState
from volplane.rules.pods import has_ended
from volplane.rules.taints import is_ready
from volplane.rules.waits import WaitReason


class WaitSeverity(IntEnum):
    """The order of the list."""

    NODE = 0  # a lost node holds up everything that it has
    FAILING = 1  # an attempt has failed, or nothing will happen without a change
    WAITING = 2
    EXPECTED = 3  # how it is meant to be until a user acts

    @property
    def tone(self) -> Tone:
        return {0: Tone.BAD, 1: Tone.BAD, 2: Tone.BUSY, 3: Tone.IDLE}[self]


FAILING = frozenset(
    {
        WaitReason.RETRY,
        WaitReason.PROVISIONING_DISABLED,
        WaitReason.STORAGE_CLASS_NOT_FOUND,
        WaitReason.NO_VOLUME_PLUGIN,
        WaitReason.NO_MATCHING_VOLUME,
        WaitReason.VOLUME_NOT_FOUND,
        WaitReason.VOLUME_MISMATCH,
        WaitReason.VOLUME_BOUND_TO_OTHER_CLAIM,
        WaitReason.CLAIM_LOST,
        WaitReason.RECLAIM_FAILED,
        WaitReason.ATTACHED_TO_OTHER_NODE,
        WaitReason.ATTACH_FAILED,
        WaitReason.NODE_NOT_READY,
        WaitReason.FORCE_DETACH,
        WaitReason.FLEX_DRIVER_MISSING,
        WaitReason.UNSCHEDULABLE,
        WaitReason.ATTACHMENT_INVALID,
        WaitReason.DRIVER_NOT_REGISTERED,
        WaitReason.PROVISIONING_IMPOSSIBLE,
        WaitReason.PROVISIONING_INFEASIBLE,
        WaitReason.RESIZE_INFEASIBLE,
        WaitReason.MODIFY_INFEASIBLE,
        WaitReason.ATTRIBUTES_CLASS_NOT_FOUND,
        WaitReason.SNAPSHOT_INVALID,
        WaitReason.SNAPSHOT_IMPOSSIBLE,
    }
)
EXPECTED = frozenset(
    {
        WaitReason.FIRST_CONSUMER,
        WaitReason.VOLUME_RETAINED,
        WaitReason.CLAIM_IN_USE,
        WaitReason.VOLUME_BOUND,
        WaitReason.SCHEDULING_GATES,
    }
)


class ListedWait(Struct, frozen=True):
    """One object that waits."""

    result: ExplainResult
    severity: WaitSeverity

    @property
    def first(self) -> ExplanationStep:
        return next(step for step in self.result.steps if step.state is StepState.WAITS)

    @property
    def since(self) -> datetime | None:
        return self.first.since


def may_wait(obj: Any) -> bool:
    """Whether an object is worth explaining: its status does not say that all is done."""
    if obj.is_deleting:
        return True
    match obj:
        case PersistentVolumeClaim():
            status = obj.status
            is_changing = bool(status.conditions or status.allocated_resource_statuses)
            return status.phase != "Bound" or is_changing or status.modify_volume_status is not None
        case PersistentVolume():
            return obj.status.phase not in ("Bound", "Available")
        case Pod():
            return not has_ended(obj) and not _is_pod_ready(obj)
        case VolumeAttachment():
            return not obj.status.attached
        case Node():
            return not is_ready(obj)
        case VolumeSnapshot():
            return obj.status is None or not obj.status.ready_to_use
    return False


def _is_pod_ready(pod: Pod) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)


def list_waits(results: Iterable[ExplainResult]) -> list[ListedWait]:
    """Those that wait, worst first, and the longest of equal severity first."""
    waits = [ListedWait(result, judge(result)) for result in results if result.waits]
    return sorted(waits, key=lambda wait: (wait.severity, _order(wait.since), wait.result.subject))


def judge(result: ExplainResult) -> WaitSeverity:
    reasons = {step.reason for step in result.steps if step.state is StepState.WAITS}
    if result.subject.startswith("node/"):
        return WaitSeverity.NODE
    if reasons & FAILING:
        return WaitSeverity.FAILING
    first = next((step.reason for step in result.steps if step.state is StepState.WAITS), "")
    return WaitSeverity.EXPECTED if first in EXPECTED else WaitSeverity.WAITING


def _order(since: datetime | None) -> float:
    return since.timestamp() if since is not None else float("inf")
