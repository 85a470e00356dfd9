"""Snapshots: point-in-time copies of disks.

On a file system with reflinks a snapshot is taken at once. Otherwise the data is copied, and the copy is
consistent only if nothing was written meanwhile, as the disk's counters show. After some failed tries the
file system is frozen for the copy; without a file system the snapshot is refused.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from msgspec import structs

from volplane.base import clock
from volplane.cloud import errors, snapshot_locks
from volplane.cloud.errors import Ec2ErrorResponse
from volplane.cloud.failpoints import hit_failpoint
from volplane.cloud.model import CloudSnapshot, CloudVolume, SnapshotState, VolumeState

if TYPE_CHECKING:
    from volplane.cloud.service import DiskService

COPY_VOLUME = "vol-ffffffff"  # what EC2 shows as the volume of a copied snapshot
TRIES = 3  # copies of a disk that is being written


class SnapshotService:
    def __init__(self, service: DiskService, patience: float) -> None:
        self._service, self._patience = service, patience
        self._progress: dict[str, int] = {}
        self.attached: Counter[str] = Counter()  # number of attaches of a volume since the start

    def get(self, snapshot_id: str) -> CloudSnapshot:
        snapshot = self._service.records.snapshots.get(snapshot_id)
        if snapshot is None or snapshot.deleting:
            raise errors.snapshot_not_found(snapshot_id)
        return snapshot

    def all(self) -> list[CloudSnapshot]:
        return [s for s in self._service.records.snapshots.values() if not s.deleting]

    def progress(self, snapshot: CloudSnapshot) -> int:
        return 100 if snapshot.state is SnapshotState.COMPLETED else self._progress.get(snapshot.id, 0)

    async def create(
        self, volume_id: str, *, description: str = "", tags: Mapping[str, str]
    ) -> CloudSnapshot:
        volume = self._service.volume(volume_id)
        if volume.state not in (VolumeState.AVAILABLE, VolumeState.IN_USE):
            raise errors.wrong_state(volume_id, volume.state)
        await self._check_room(volume_id)
        snapshot = _new_snapshot(volume, description, tags)
        hit_failpoint("CreateSnapshot", "asked")
        await self._service.records.put_snapshot(snapshot)
        hit_failpoint("CreateSnapshot", "intent")
        made = await self._service.jobs.run_within(self._patience, self.finish(snapshot))
        if made is None:
            made = await self._answer_pending(snapshot.id)
        hit_failpoint("CreateSnapshot", "result")
        return made

    async def copy(
        self,
        snapshot_id: str,
        *,
        description: str = "",
        tags: Mapping[str, str],
        encrypted: bool = False,
        kms_key: str = "",
        duration: int = 0,
    ) -> CloudSnapshot:
        """Copy a snapshot. Its lock and its fast restores are not copied."""
        source = self.get(snapshot_id)
        if source.state is not SnapshotState.COMPLETED:
            text = f"Snapshot is in invalid state - {source.state}"
            raise Ec2ErrorResponse("IncorrectState", text)
        await self._check_space(await self._service.disks.count_snapshot_bytes(snapshot_id))
        copied = CloudSnapshot(
            id=f"snap-0{secrets.token_hex(8)}",
            volume=COPY_VOLUME,
            size=source.size,
            state=SnapshotState.PENDING,
            started=clock.microstamp(),
            description=description,
            encrypted=source.encrypted or encrypted,
            kms_key=kms_key or source.kms_key,
            duration=duration,
            tags=dict(tags),
            source=source.id,
        )
        hit_failpoint("CopySnapshot", "asked")
        await self._service.records.put_snapshot(copied)
        hit_failpoint("CopySnapshot", "intent")
        made = await self._service.jobs.run_within(self._patience, self.finish(copied))
        if made is None:
            made = await self._answer_pending(copied.id)
        hit_failpoint("CopySnapshot", "result")
        return made

    async def change(
        self, snapshot_id: str, update: Callable[[CloudSnapshot], CloudSnapshot]
    ) -> CloudSnapshot:
        """Change the record of a snapshot; `update` may raise Ec2ErrorResponse."""
        async with self._service.locks.hold(snapshot_id):
            return await self._service.records.put_snapshot(update(self.get(snapshot_id)))

    async def create_set(
        self,
        instance_id: str,
        *,
        without: Sequence[str] = (),
        description: str = "",
        tags: Mapping[str, str],
        copy_tags: bool = False,
    ) -> list[CloudSnapshot]:
        """Take snapshots of all volumes of an instance but `without` at one moment: all of them, or none."""
        volumes = self._members(instance_id, without)
        await self._check_room(*(v.id for v in volumes))
        name, started = secrets.token_hex(8), clock.microstamp()
        wanted = [
            structs.replace(
                _new_snapshot(v, description, {**(v.tags if copy_tags else {}), **tags}),
                set=name,
                started=started,
            )
            for v in volumes
        ]
        hit_failpoint("CreateSnapshots", "asked")
        for snapshot in wanted:
            await self._service.records.put_snapshot(snapshot)
        hit_failpoint("CreateSnapshots", "intent")
        made = await self._service.jobs.run_within(self._patience, self._finish_set(wanted))
        if made is None:
            made = [await self._answer_pending(snapshot.id) for snapshot in wanted]
        hit_failpoint("CreateSnapshots", "result")
        return made

    def _members(self, instance_id: str, without: Sequence[str]) -> list[CloudVolume]:
        self._service.instance(instance_id)
        attached = {v.id: v for v in self._service.records.attached_to(instance_id)}
        for volume_id in without:
            self._service.volume(volume_id)
            if volume_id not in attached:
                raise errors.not_attached(volume_id, instance_id)
        found = [v for v in attached.values() if v.id not in without]
        if not found:
            text = f"There are no volumes of {instance_id} to take snapshots of"
            raise Ec2ErrorResponse("InvalidParameterCombination", text)
        return found

    async def _finish_set(self, wanted: list[CloudSnapshot]) -> list[CloudSnapshot]:
        service = self._service
        try:
            async with AsyncExitStack() as held:
                for snapshot in wanted:
                    await held.enter_async_context(service.hold_for_copy(snapshot.id))
                await self._capture_set(wanted)
                await service.latency.simulate("CreateSnapshot")
        except (OSError, Ec2ErrorResponse) as error:
            refused = "cannot take the snapshots"
            refusal = error if isinstance(error, Ec2ErrorResponse) else errors.from_os_error(refused, error)
            for snapshot in wanted:
                await self._mark_failed(snapshot.id, refusal.message)
            raise refusal from error
        hit_failpoint("CreateSnapshots", "effect")
        done = []
        for snapshot in wanted:
            done.append(
                await self._mark_completed(snapshot.id, await service.disks.count_snapshot_bytes(snapshot.id))
            )
            hit_failpoint("CreateSnapshots", "member")
        return done

    async def _capture_set(self, wanted: list[CloudSnapshot]) -> None:
        disks = self._service.disks
        copies = [(s.volume, disks.snapshot_file(s.id)) for s in wanted]
        async with AsyncExitStack() as held:
            for volume, _ in sorted(copies):  # sorted, to avoid a deadlock of two sets
                await held.enter_async_context(self._service.hold_for_copy(volume))
                self._service.volume(volume)  # raises if it was deleted meanwhile
            for _ in range(TRIES):
                before = [self.attached[volume] for volume, _ in copies]
                unchanged = await disks.capture_set(copies)
                if unchanged and before == [self.attached[volume] for volume, _ in copies]:
                    return
            if not await disks.capture_set(copies, freeze=True):
                text = "a volume is being written, and has no file system that can be frozen"
                raise Ec2ErrorResponse("IncorrectState", text)

    async def _check_room(self, *volumes: str) -> None:
        if not self._service.disks.shares:
            await self._check_space(
                sum([await self._service.disks.count_allocated_bytes(volume) for volume in volumes])
            )

    async def _check_space(self, wanted: int) -> None:
        if not self._service.disks.shares:
            left = await self._service.disks.count_free_bytes()
            if wanted > left:
                raise errors.insufficient_capacity(
                    f"the snapshot takes {wanted >> 20} MiB, {left >> 20} MiB are left"
                )

    async def finish(self, snapshot: CloudSnapshot) -> CloudSnapshot:
        """Write the file, then the result; that of a copied snapshot is repeated after a restart."""
        service = self._service
        file = service.disks.snapshot_file(snapshot.id)
        try:
            async with service.hold_for_copy(snapshot.id):
                stored = await self._write_file(snapshot, file)
                # The snapshot is taken; a cloud needs time to store it.
                await service.latency.simulate("CreateSnapshot")
        except (OSError, Ec2ErrorResponse) as error:
            refused = "cannot take the snapshot"
            refusal = error if isinstance(error, Ec2ErrorResponse) else errors.from_os_error(refused, error)
            await self._mark_failed(snapshot.id, refusal.message)
            raise refusal from error
        finally:
            self._progress.pop(snapshot.id, None)
        hit_failpoint("CopySnapshot" if snapshot.source else "CreateSnapshot", "effect")
        return await self._mark_completed(snapshot.id, stored)

    async def _mark_completed(self, snapshot_id: str, stored: int) -> CloudSnapshot:
        service = self._service
        async with service.locks.hold(snapshot_id):
            known = service.records.snapshots[snapshot_id]
            done = structs.replace(
                known, state=SnapshotState.COMPLETED, ended=clock.microstamp(), stored=stored
            )
            return await service.records.put_snapshot(done)

    async def _write_file(self, snapshot: CloudSnapshot, file: str) -> int:
        if snapshot.source:
            async with self._service.hold_for_copy(snapshot.source):
                self.get(snapshot.source)  # raises if it was deleted meanwhile
                await self._service.disks.copy_snapshot(snapshot.source, snapshot.id)
        else:
            self._service.volume(snapshot.volume)  # raises if it was deleted meanwhile
            await self.capture(snapshot.volume, file, of=snapshot.id)
        return await self._service.disks.count_snapshot_bytes(snapshot.id)

    async def _mark_failed(self, snapshot_id: str, why: str) -> None:
        service = self._service
        await service.disks.remove_snapshot(snapshot_id)
        async with service.locks.hold(snapshot_id):
            snapshot = service.records.snapshots[snapshot_id]
            if snapshot.id_returned:
                await service.records.put_snapshot(
                    structs.replace(snapshot, state=SnapshotState.ERROR, why=why)
                )
            else:
                await service.records.delete_snapshot(snapshot)

    async def _answer_pending(self, snapshot_id: str) -> CloudSnapshot:
        service = self._service
        async with service.locks.hold(snapshot_id):
            snapshot = service.records.snapshots[snapshot_id]
            if snapshot.state is not SnapshotState.PENDING:
                return snapshot
            return await service.records.put_snapshot(structs.replace(snapshot, id_returned=True))

    async def capture(self, volume_id: str, file: str, *, of: str = "") -> None:
        """Make a point-in-time copy of a volume."""
        disks = self._service.disks

        def report(percent: int) -> None:  # called in another thread
            if of:
                self._progress[of] = percent

        async with self._service.hold_for_copy(volume_id):
            for _ in range(TRIES):
                before = self.attached[volume_id]
                shared, unchanged = await disks.capture(volume_id, file, report)
                if shared or (unchanged and before == self.attached[volume_id]):
                    return
            if not await disks.capture_frozen(volume_id, file, report):
                text = f"{volume_id} is being written, and has no file system that can be frozen"
                raise Ec2ErrorResponse("IncorrectState", text)

    async def delete(self, snapshot_id: str) -> None:
        service = self._service
        self.get(snapshot_id)
        async with service.hold_for_copy(snapshot_id), service.locks.hold(snapshot_id):
            snapshot = self.get(snapshot_id)
            snapshot_locks.check_deletable(snapshot, clock.wall())
            hit_failpoint("DeleteSnapshot", "asked")
            snapshot = await service.records.put_snapshot(structs.replace(snapshot, deleting=True))
            hit_failpoint("DeleteSnapshot", "intent")
            await service.disks.remove_snapshot(snapshot_id)
            hit_failpoint("DeleteSnapshot", "effect")
            await service.records.delete_snapshot(snapshot)
            hit_failpoint("DeleteSnapshot", "result")

    async def forget(self, snapshot: CloudSnapshot) -> None:
        await self._service.disks.remove_snapshot(snapshot.id)
        await self._service.records.delete_snapshot(snapshot)

    async def fail(self, snapshot: CloudSnapshot, why: str) -> None:
        await self._service.disks.remove_snapshot(snapshot.id)
        failed = structs.replace(snapshot, state=SnapshotState.ERROR, why=why)
        await self._service.records.put_snapshot(failed)


def _new_snapshot(volume: CloudVolume, description: str, tags: Mapping[str, str]) -> CloudSnapshot:
    return CloudSnapshot(
        id=f"snap-0{secrets.token_hex(8)}",
        volume=volume.id,
        size=volume.shape.size,
        state=SnapshotState.PENDING,
        started=clock.microstamp(),
        description=description,
        encrypted=volume.encrypted,
        kms_key=volume.kms_key,
        tags=dict(tags),
    )
