"""Creates volumes: empty, from a snapshot, or as a copy of another volume.

A client token creates one volume. An empty volume is available when the request is answered; a copy may take
longer than a client waits, and then the answer is "creating".
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from volplane.base import clock
from volplane.cloud import errors, limits
from volplane.cloud.errors import Ec2ErrorResponse
from volplane.cloud.failpoints import hit_failpoint
from volplane.cloud.model import GIB, CloudVolume, SnapshotState, VolumeShape, VolumeState
from volplane.store import StoreFailed

if TYPE_CHECKING:
    from volplane.cloud.service import DiskService

REQUEST_PATIENCE = 20.0  # seconds before a request is answered although its copy is not ready


class CloudVolumeRequest(Struct, frozen=True):
    """A CreateVolume or CopyVolumes request; a copy without a size is as large as its source."""

    zone: str
    shape: VolumeShape
    encrypted: bool = False
    token: str = ""
    tags: Mapping[str, str] = {}
    snapshot: str = ""
    source: str = ""
    kms_key: str = ""
    initialization_rate: int = 0

    @property
    def fingerprint(self) -> str:
        shape = self.shape
        parts = (self.zone, shape.size, shape.type, shape.iops, shape.throughput, self.encrypted)
        origin = (self.snapshot, self.source) if self.snapshot or self.source else ()
        # Only those that are set: the fingerprints of earlier versions stay the same.
        more = tuple(filter(None, (shape.multi_attach, self.kms_key, self.initialization_rate)))
        return hashlib.sha256(repr((parts + origin + more, sorted(self.tags.items()))).encode()).hexdigest()


class VolumeCreator:
    def __init__(self, service: DiskService) -> None:
        self._service = service
        self._pending = 0  # GiB of creations in progress

    async def create(self, request: CloudVolumeRequest) -> CloudVolume:
        service = self._service
        async with service.locks.hold(f"token {request.token or secrets.token_hex(8)}"):
            known = service.records.volumes.get(service.records.tokens.get(request.token, ""))
            if known is None:
                return await self._create(request)
            if known.fingerprint != request.fingerprint:
                text = (
                    f"Arguments on this idempotent request are inconsistent with those that made {known.id}"
                )
                raise Ec2ErrorResponse("IdempotentParameterMismatch", text)
            return known

    def check(self, request: CloudVolumeRequest) -> None:
        """Raises Ec2ErrorResponse if the request is invalid."""
        self._new_volume(request)

    async def _create(self, request: CloudVolumeRequest) -> CloudVolume:
        records = self._service.records
        if self._service.disks.unusable:
            raise Ec2ErrorResponse("UnsupportedOperation", self._service.disks.unusable)
        volume = self._new_volume(request)
        size = volume.shape.size
        await self._reserve(size)
        try:
            hit_failpoint("CreateVolume", "asked")
            # A blank disk needs no stored intent: after a crash, a file without a record is removed. Without
            # any record such a file would look like lost records, and a source must be thawed.
            if volume.snapshot or volume.source or records.is_new:
                await records.put_volume(volume)
            else:
                records.show_volume(volume)
        finally:
            self._pending -= size
        hit_failpoint("CreateVolume", "intent")
        made = await self._service.jobs.run_within(REQUEST_PATIENCE, self.finish(volume))
        if made is None:
            made = await self._answer_creating(volume.id)
        hit_failpoint("CreateVolume", "result")
        return made

    def _new_volume(self, request: CloudVolumeRequest) -> CloudVolume:
        if request.zone not in self._service.known_zones():
            raise errors.zone_not_found(request.zone)
        least, encrypted, key = self._copy_source(request)
        shape = limits.validate_shape(structs.replace(request.shape, size=request.shape.size or least))
        if shape.size < least:
            text = f"Volume of {shape.size} GiB is smaller than its source, which has {least} GiB."
            raise Ec2ErrorResponse("InvalidParameterValue", text)
        if request.initialization_rate and self._is_fast_restored(request):
            text = f"{request.snapshot} has fast snapshot restores in {request.zone}: it needs no rate."
            raise Ec2ErrorResponse("InvalidParameterCombination", text)
        return CloudVolume(
            id=f"vol-0{secrets.token_hex(8)}",
            zone=request.zone,
            shape=shape,
            state=VolumeState.CREATING,
            created=clock.microstamp(),
            encrypted=request.encrypted or encrypted,
            kms_key=request.kms_key or key,
            initialization_rate=request.initialization_rate,
            token=request.token,
            fingerprint=request.fingerprint,
            tags=dict(request.tags),
            used=bool(request.snapshot or request.source),
            snapshot=request.snapshot,
            fast_restored=self._is_fast_restored(request),
            source=request.source,
        )

    def _copy_source(self, request: CloudVolumeRequest) -> tuple[int, bool, str]:
        """Size, encryption and key of the snapshot or volume that is copied."""
        if request.snapshot:
            snapshot = self._service.snapshots.get(request.snapshot)
            if snapshot.state is not SnapshotState.COMPLETED:
                raise Ec2ErrorResponse("IncorrectState", f"Snapshot '{snapshot.id}' is '{snapshot.state}'.")
            return snapshot.size, snapshot.encrypted, snapshot.kms_key
        if request.source:
            volume = self._service.volume(request.source)
            if volume.state not in (VolumeState.AVAILABLE, VolumeState.IN_USE):
                raise errors.wrong_state(volume.id, volume.state)
            if volume.zone != request.zone:
                raise Ec2ErrorResponse("InvalidVolume.ZoneMismatch", f"{volume.id} is in {volume.zone}.")
            return volume.shape.size, volume.encrypted, volume.kms_key
        return 0, False, ""

    def _is_fast_restored(self, request: CloudVolumeRequest) -> bool:
        return bool(request.snapshot) and (
            request.zone in self._service.snapshots.get(request.snapshot).fast_restores
        )

    async def finish(self, volume: CloudVolume) -> CloudVolume:
        """Write the disk, then the result; repeated after a restart."""
        service = self._service
        await service.latency.simulate("CreateVolume", volume.shape.type)
        try:
            await self._write_disk(volume)
            hit_failpoint("CreateVolume", "effect")
            async with service.locks.hold(volume.id):
                return await self._update_volume(volume.id, state=VolumeState.AVAILABLE)
        except (OSError, Ec2ErrorResponse, StoreFailed) as error:
            await service.disks.remove(volume.id)
            async with service.locks.hold(volume.id):
                if service.volume(volume.id).id_returned:
                    await self._update_volume(volume.id, state=VolumeState.ERROR)
                else:
                    await service.records.delete_volume(service.volume(volume.id))
            if not isinstance(error, OSError):
                raise
            raise errors.from_os_error("cannot create the disk", error) from error

    async def _write_disk(self, volume: CloudVolume) -> None:
        service = self._service
        if volume.snapshot:
            async with service.hold_for_copy(volume.snapshot):
                service.snapshots.get(volume.snapshot)  # raises if it was deleted meanwhile
                await service.disks.copy(service.disks.snapshot_file(volume.snapshot), volume.id)
        elif volume.source:
            service.volume(volume.source)
            await service.snapshots.capture(volume.source, service.disks.file(volume.id))
        else:
            await service.disks.create(volume.id, volume.shape.size)
            return
        await service.disks.grow(volume.id, volume.shape.size)

    async def _answer_creating(self, volume_id: str) -> CloudVolume:
        async with self._service.locks.hold(volume_id):
            volume = self._service.volume(volume_id)
            if volume.state != "creating":
                return volume
            return await self._update_volume(volume_id, id_returned=True)

    async def _update_volume(self, volume_id: str, **changes: object) -> CloudVolume:
        volume = self._service.volume(volume_id)
        return await self._service.records.put_volume(structs.replace(volume, **changes))

    async def _reserve(self, size: int) -> None:
        left = await self.capacity()
        if size * GIB > left:
            raise errors.insufficient_capacity(f"{size} GiB are requested, {left // GIB} GiB are left")
        self._pending += size

    async def capacity(self) -> int:
        """Bytes that can still be allocated to volumes."""
        service = self._service
        # Written data counts in `granted` and is missing in the free space: count it once.
        free = await service.disks.count_free_bytes()
        if not free:
            return 0
        space = free + await service.disks.count_written_bytes()
        return max(0, int(space * service.thin) - (service.records.granted + self._pending) * GIB)
