"""Node expansion: expand the file system, or the pod's device, to the new size of its disk.

The resizer enlarges the disk and writes the volume's capacity. The node expands the file system and writes
the claim's status: NodeResizeInProgress before the driver is called, so that the resizer never changes the
target during a call. A kubelet may get the claims of its pods but not watch them, so it reads them again from
time to time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

from msgspec import Struct

from volplane.api import quantity
from volplane.api.annotations import NODE_EXPANSION_NOT_REQUIRED_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.errors import APIError
from volplane.base import clock
from volplane.client.client import Client
from volplane.loops.events import EventRecorder
from volplane.rules import access
from volplane.rules.csi_translation import UntranslatableObject, translate_volume
from volplane.volumes.base import (
    InfeasibleExpansionError,
    InUseExpansionError,
    NodeContext,
    PodVolumeSpec,
    TransientOperationError,
    UncertainProgressError,
    VolumeOperationError,
    VolumePlugin,
)

log = logging.getLogger(__name__)

STORAGE = "storage"
PENDING, IN_PROGRESS, INFEASIBLE = "NodeResizePending", "NodeResizeInProgress", "NodeResizeInfeasible"
RESIZING, FILE_SYSTEM_PENDING = "Resizing", "FileSystemResizePending"
NODE_ERROR, CONTROLLER_ERROR = "NodeResizeError", "ControllerResizeError"
READ_TIMEOUT = 10.0


class ExpansionTarget(Struct, frozen=True):
    """The size to which this node has to expand a volume."""

    size: str
    tracked: bool = True  # the claim's status reports each step
    finished: bool = False  # another node has already written the claim's status

    @property
    def bytes(self) -> int:
        return quantity.value(self.size)


class ExpansionOutcome(StrEnum):
    EXPANDED = "expanded"
    NOT_REQUIRED = "not required"  # the driver has nothing to do on nodes
    READ_ONLY = "read-only"  # the pod's mount is read-only; another pod's may not be
    REFUSED_IN_USE = "refused in use"  # the driver expands only volumes that no pod uses
    GIVEN_UP = "given up"  # this size cannot be reached; the resizer has to choose another one
    FAILED = "failed"  # to be retried


class ExpansionResult(Struct, frozen=True):
    outcome: ExpansionOutcome
    error: Exception | None = None
    claim: PersistentVolumeClaim | None = None  # as written, if its status was


def find_expansion_target(
    claim: PersistentVolumeClaim | None, volume: PersistentVolume | None, size: int
) -> ExpansionTarget | None:
    """The expansion that this node has to do. `size`: the volume's bytes on this node, 0 if not known.

    If several nodes use the volume, the first one writes the claim's status. The others see only from `size`
    that they still have to expand.
    """
    if claim is None or volume is None:
        return None
    capacity, claimed = volume.spec.capacity.get(STORAGE, ""), claim.status.capacity.get(STORAGE, "")
    if not capacity or not claimed:
        return None
    if quantity.value(capacity) > quantity.value(claimed):
        return _pending_target(claim, capacity)
    shared = access.WRITE_MANY in volume.spec.access_modes
    behind = size and quantity.value(capacity) > size
    if shared and behind and claim.metadata.annotations.get(NODE_EXPANSION_NOT_REQUIRED_ANNOTATION) != "true":
        return ExpansionTarget(capacity, finished=True)
    return None


def _pending_target(claim: PersistentVolumeClaim, capacity: str) -> ExpansionTarget | None:
    allocated = claim.status.allocated_resources.get(STORAGE, "")
    if not allocated:  # an old resizer, which leaves everything to the node
        return ExpansionTarget(capacity, tracked=False)
    pending = claim.status.allocated_resource_statuses.get(STORAGE, "") in (PENDING, IN_PROGRESS)
    return ExpansionTarget(allocated) if pending else None


class NodeVolumeExpander:
    """Calls NodeExpandVolume and writes the claim's status."""

    def __init__(self, context: NodeContext, events: EventRecorder) -> None:
        self.context, self.events = context, events

    async def expand(
        self, plugin: VolumePlugin, spec: PodVolumeSpec, target: ExpansionTarget
    ) -> ExpansionResult:
        try:
            return await self._expand(plugin, spec, target)
        except VolumeOperationError as error:
            return ExpansionResult(ExpansionOutcome.FAILED, error)
        except Exception as error:
            log.warning("unexpected %s: %s", type(error).__name__, error, exc_info=True)
            return ExpansionResult(ExpansionOutcome.FAILED, error)

    async def _expand(
        self, plugin: VolumePlugin, spec: PodVolumeSpec, target: ExpansionTarget
    ) -> ExpansionResult:
        if not await plugin.requires_node_expansion(spec):
            return ExpansionResult(ExpansionOutcome.NOT_REQUIRED)
        if spec.readonly:
            failed = f'MountVolume.NodeExpandVolume failed for volume "{spec.name}"'
            text = f"{failed} requested read-only file system"
            self.events.warning(spec.pod, "FileSystemResizeFailed", text)
            return ExpansionResult(ExpansionOutcome.READ_ONLY)
        if target.tracked and not target.finished:
            await self._write(spec, {"allocatedResourceStatuses": {STORAGE: IN_PROGRESS}})
        try:
            await plugin.expand(spec, target.bytes)
        except (TransientOperationError, UncertainProgressError):
            raise
        except VolumeOperationError as error:
            return await self._report_refusal(spec, target, error)
        return await self._report_success(spec, target)

    async def _report_refusal(
        self, spec: PodVolumeSpec, target: ExpansionTarget, error: VolumeOperationError
    ) -> ExpansionResult:
        """Write a final error to the claim, and decide whether the expansion is retried."""
        claim, gives_up = None, False
        if not target.finished:
            request_changed = _requested_size(spec) != target.bytes
            gives_up = target.tracked and (isinstance(error, InfeasibleExpansionError) or request_changed)
            message = self.context.paths.wire_text(str(error))
            claim = await self._write(spec, _failure_patch(message, INFEASIBLE if gives_up else ""))
        if isinstance(error, InUseExpansionError):
            text = f'NodeExpandVolume.NodeExpandVolume failed for volume "{spec.name}" : {error}'
            self.events.warning(spec.pod, "VolumeResizeFailed", text)
            return ExpansionResult(ExpansionOutcome.REFUSED_IN_USE, claim=claim)
        outcome = ExpansionOutcome.GIVEN_UP if gives_up else ExpansionOutcome.FAILED
        return ExpansionResult(outcome, error, claim)

    async def _report_success(self, spec: PodVolumeSpec, target: ExpansionTarget) -> ExpansionResult:
        claim = await self._write(spec, _success_patch(target)) if not target.finished else None
        text = f'MountVolume.NodeExpandVolume succeeded for volume "{spec.name}" {self.context.node}'
        self.events.normal(spec.pod, "FileSystemResizeSuccessful", text)
        if spec.claim is not None:
            self.events.normal(spec.claim, "FileSystemResizeSuccessful", text)
        return ExpansionResult(ExpansionOutcome.EXPANDED, claim=claim)

    async def _write(self, spec: PodVolumeSpec, status: dict[str, Any]) -> PersistentVolumeClaim:
        assert spec.claim is not None
        try:
            return await self.context.client.patch(
                PersistentVolumeClaim,
                spec.claim.name,
                spec.claim.namespace,
                strategic={"status": status},
                subresource="status",
                uid=spec.claim.uid,
            )
        except APIError as error:
            raise TransientOperationError(f"the claim's status was not written: {error}") from error


def _requested_size(spec: PodVolumeSpec) -> int:
    assert spec.claim is not None
    resources = spec.claim.spec.resources
    return quantity.value(resources.requests.get(STORAGE, "0")) if resources is not None else 0


def _success_patch(target: ExpansionTarget) -> dict[str, Any]:
    # Deleting a condition that is not there is allowed, and saves reading the claim first.
    conditions = (RESIZING, FILE_SYSTEM_PENDING, NODE_ERROR, CONTROLLER_ERROR)
    return {
        "capacity": {STORAGE: target.size},
        "allocatedResourceStatuses": {STORAGE: None},
        "conditions": [{"type": type, "$patch": "delete"} for type in conditions],
    }


def _failure_patch(message: str, resize_status: str) -> dict[str, Any]:
    condition = {
        "type": NODE_ERROR,
        "status": "True",
        "lastTransitionTime": clock.stamp(),
        "message": message,
    }
    patch: dict[str, Any] = {"conditions": [condition]}
    return {**patch, "allocatedResourceStatuses": {STORAGE: resize_status}} if resize_status else patch


class ClaimReader:
    """Reads the claims of mounted volumes again, to notice that their disks have grown."""

    def __init__(
        self,
        client: Client,
        list_specs: Callable[[], Iterable[PodVolumeSpec]],
        on_claim_read: Callable[[PodVolumeSpec, PersistentVolumeClaim, PersistentVolume], None],
    ) -> None:
        self._client, self._list_specs, self._on_claim_read = client, list_specs, on_claim_read

    async def run(self, period: float) -> None:
        while True:
            await asyncio.sleep(period)
            await self.read_claims()

    async def read_claims(self) -> None:
        for spec in list(self._list_specs()):
            if spec.claim is None or spec.volume is None:
                continue
            try:
                async with asyncio.timeout(READ_TIMEOUT):
                    await self._read(spec, spec.claim, spec.volume)
            except (APIError, TimeoutError, UntranslatableObject) as error:
                log.debug("claim of %s not read: %s", spec.unique_name, error)

    async def _read(
        self, spec: PodVolumeSpec, known: PersistentVolumeClaim, volume: PersistentVolume
    ) -> None:
        claim = await self._client.get(PersistentVolumeClaim, known.name, known.namespace)
        if claim.uid != known.uid:
            return
        # An administrator who enlarges a local volume writes only its capacity.
        current = await self._client.get(PersistentVolume, volume.name)
        if (claim.revision, current.revision) != (known.revision, volume.revision):
            self._on_claim_read(spec, claim, translate_volume(current))
