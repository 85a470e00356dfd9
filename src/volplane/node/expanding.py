"""NodeExpandVolume: the file system, or the pod's device, takes up the size that its disk has been given.

The claim's status says first that the node is at it and then how it ended, so that the resizer never changes
the target under a call. A driver that cannot do it while pods use the volume keeps nobody from mounting it.
"""

from __future__ import annotations

from typing import Any

from volplane.api import quantity
from volplane.api.core import PersistentVolumeClaim
from volplane.api.errors import APIError
from volplane.base import clock
from volplane.loops.events import EventRecorder
from volplane.node.growth import IN_PROGRESS, INFEASIBLE, STORAGE, ExpansionTarget
from volplane.node.world import VolumeEntry
from volplane.volumes.base import (
    InfeasibleExpansionError,
    InUseExpansionError,
    NodeContext,
    PodVolumeSpec,
    TransientOperationError,
    UncertainProgressError,
    VolumeOperationError,
)

RESIZING, PENDING_RESIZE = "Resizing", "FileSystemResizePending"
NODE_ERROR, CONTROLLER_ERROR = "NodeResizeError", "ControllerResizeError"


class Expander:
    def __init__(self, site: NodeContext, events: EventRecorder) -> None:
        self.site, self.events = site, events

    async def expand(self, entry: VolumeEntry, spec: PodVolumeSpec) -> None:
        """Raises VolumeFailure when it is to be tried again."""
        goal = entry.growth
        if goal is None or not await entry.plugin.requires_node_expansion(spec):
            entry.growth = None
            return
        if spec.readonly:
            failed = f'MountVolume.NodeExpandVolume failed for volume "{spec.name}"'
            text = f"{failed} requested read-only file system"
            self.events.warning(spec.pod, "FileSystemResizeFailed", text)
            return
        if goal.tracked and not goal.finished:
            await self._write(spec, {"allocatedResourceStatuses": {STORAGE: IN_PROGRESS}})
        try:
            await entry.plugin.expand(spec, goal.bytes)
        except (TransientOperationError, UncertainProgressError):
            raise
        except VolumeOperationError as error:
            await self._failed(entry, spec, goal, error)
            return
        await self._succeeded(entry, spec, goal)

    async def _failed(
        self, entry: VolumeEntry, spec: PodVolumeSpec, goal: ExpansionTarget, error: VolumeOperationError
    ) -> None:
        """A definite refusal. Only this one is told in the claim."""
        if not goal.finished:
            lowered = goal.tracked and _request(spec) != goal.bytes
            given_up = goal.tracked and (isinstance(error, InfeasibleExpansionError) or lowered)
            await self._write(spec, _failure(str(error), INFEASIBLE if given_up else ""))
            if given_up:
                entry.growth = None  # until the resizer has chosen another size
        if isinstance(error, InUseExpansionError):
            entry.growth, entry.unexpandable = None, True
            self._told_failure(spec, error)
            return
        raise error

    async def _succeeded(self, entry: VolumeEntry, spec: PodVolumeSpec, goal: ExpansionTarget) -> None:
        if not goal.finished:
            await self._write(spec, _success(goal))
        entry.size, entry.growth = goal.bytes, None
        text = f'MountVolume.NodeExpandVolume succeeded for volume "{spec.name}" {self.site.node}'
        self.events.normal(spec.pod, "FileSystemResizeSuccessful", text)
        if spec.claim is not None:
            self.events.normal(spec.claim, "FileSystemResizeSuccessful", text)

    def _told_failure(self, spec: PodVolumeSpec, error: Exception) -> None:
        text = f'NodeExpandVolume.NodeExpandVolume failed for volume "{spec.name}" : {error}'
        self.events.warning(spec.pod, "VolumeResizeFailed", text)

    async def _write(self, spec: PodVolumeSpec, status: dict[str, Any]) -> None:
        assert spec.claim is not None
        try:
            await self.site.client.patch(
                PersistentVolumeClaim,
                spec.claim.name,
                spec.claim.namespace,
                strategic={"status": status},
                subresource="status",
                uid=spec.claim.uid,
            )
        except APIError as error:
            raise TransientOperationError(f"the claim's status was not written: {error}") from error


def _request(spec: PodVolumeSpec) -> int:
    assert spec.claim is not None
    resources = spec.claim.spec.resources
    return quantity.value(resources.requests.get(STORAGE, "0")) if resources is not None else 0


def _success(goal: ExpansionTarget) -> dict[str, Any]:
    # Deleting what is not there is allowed, and saves reading the claim first.
    ended = (RESIZING, PENDING_RESIZE, NODE_ERROR, CONTROLLER_ERROR)
    return {
        "capacity": {STORAGE: goal.size},
        "allocatedResourceStatuses": {STORAGE: None},
        "conditions": [{"type": kind, "$patch": "delete"} for kind in ended],
    }


def _failure(message: str, status: str) -> dict[str, Any]:
    condition = {
        "type": NODE_ERROR,
        "status": "True",
        "lastTransitionTime": clock.stamp(),
        "message": message,
    }
    told: dict[str, Any] = {"conditions": [condition]}
    return {**told, "allocatedResourceStatuses": {STORAGE: status}} if status else told
