"""Volumes that have grown: what the node has to do about it, and how it finds out.

The controller side enlarges the disk and says so in the volume's capacity; the file system on it, and the
claim's status, are the node's. A node may read the claims of its pods and not watch them, so it looks again
from time to time. The subtle thing is a volume on several nodes at once: the first node finishes the claim's
status, and the others know only from the size they have noted themselves that they are still to follow.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from volplane.api import quantity
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.errors import APIError
from volplane.rules import access
from volplane.volumes.base import PodVolumeSpec

if TYPE_CHECKING:
    from volplane.node.manager import VolumeManager
    from volplane.node.world import VolumeEntry

log = logging.getLogger(__name__)

STORAGE = "storage"
PENDING, IN_PROGRESS, INFEASIBLE = "NodeResizePending", "NodeResizeInProgress", "NodeResizeInfeasible"
NOT_REQUIRED = "volume.kubernetes.io/node-expansion-not-required"
CALL = 10.0


class ExpansionTarget(Struct, frozen=True):
    """The size this node has to bring a volume to."""

    size: str
    tracked: bool = True  # the claim's status follows it step by step
    finished: bool = False  # another node has told the claim already

    @property
    def bytes(self) -> int:
        return quantity.value(self.size)


def find_expansion_target(
    claim: PersistentVolumeClaim | None, volume: PersistentVolume | None, noted: int
) -> ExpansionTarget | None:
    """`noted`: the size this node knows the volume to have, 0 if it knows none."""
    if claim is None or volume is None:
        return None
    size, told = volume.spec.capacity.get(STORAGE, ""), claim.status.capacity.get(STORAGE, "")
    if not size or not told:
        return None
    if quantity.value(size) > quantity.value(told):
        return _unfinished(claim, size)
    shared = access.WRITE_MANY in volume.spec.access_modes
    behind = noted and quantity.value(size) > noted
    if shared and behind and claim.metadata.annotations.get(NOT_REQUIRED) != "true":
        return ExpansionTarget(size, finished=True)
    return None


def _unfinished(claim: PersistentVolumeClaim, size: str) -> ExpansionTarget | None:
    target = claim.status.allocated_resources.get(STORAGE, "")
    if not target:  # a resizer of the old kind, which leaves everything to the node
        return ExpansionTarget(size, tracked=False)
    asked = claim.status.allocated_resource_statuses.get(STORAGE, "") in (PENDING, IN_PROGRESS)
    return ExpansionTarget(target) if asked else None


def noted_size(claim: PersistentVolumeClaim | None) -> int:
    told = claim.status.capacity.get(STORAGE, "") if claim is not None else ""
    return quantity.value(told) if told else 0


class ClaimReader:
    """Reads the claims of this node's pods again, and wakes the volumes that have grown."""

    def __init__(self, manager: VolumeManager) -> None:
        self.manager = manager

    async def run(self, period: float) -> None:
        while True:
            await asyncio.sleep(period)
            await self.read_claims()

    async def read_claims(self) -> None:
        for entry in list(self.manager.entries.values()):
            for uid, spec in list(entry.wanted.items()):
                if spec.claim is not None:
                    await self._read(entry, uid, spec)

    async def _read(self, entry: VolumeEntry, uid: str, spec: PodVolumeSpec) -> None:
        try:
            async with asyncio.timeout(CALL):
                fresh = await self._fresh(spec)
        except (APIError, TimeoutError) as error:
            log.debug("the claim of %s was not read: %s", entry.unique, error)
            return
        if fresh is not None and uid in entry.wanted:
            self.manager.reread(entry, structs.replace(fresh, pod=entry.wanted[uid].pod))

    async def _fresh(self, spec: PodVolumeSpec) -> PodVolumeSpec | None:
        assert spec.claim is not None
        assert spec.volume is not None
        client = self.manager.context.client
        claim = await client.get(PersistentVolumeClaim, spec.claim.name, spec.claim.namespace)
        if claim.uid != spec.claim.uid or claim.revision == spec.claim.revision:
            return None
        volume = await client.get(PersistentVolume, spec.volume.name)
        return structs.replace(spec, claim=claim, volume=volume)
