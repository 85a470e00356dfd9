"""The disk service itself: volumes are made, attached, detached, grown and removed.

Every change is three steps: the intent goes into the ledger, the effect happens on the machine, the result
goes into the ledger. Killed in between, the next start finishes it (`recover`). A disk is never attached
while its loop device is bound anywhere, whatever the ledger says: a lazily unmounted file system must not
meet a second mount of its disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from msgspec import structs

from volplane.base import clock, metrics
from volplane.cloud import errors, limits
from volplane.cloud.background_jobs import BackgroundJobs
from volplane.cloud.create_volume import REQUEST_PATIENCE, CloudVolumeRequest, VolumeCreator
from volplane.cloud.disks import DiskFiles
from volplane.cloud.errors import Ec2ErrorResponse
from volplane.cloud.failpoints import hit_failpoint
from volplane.cloud.keyed_lock import KeyedLock
from volplane.cloud.latency import LatencySimulator
from volplane.cloud.model import (
    GIB,
    AttachmentState,
    CloudAttachment,
    CloudInstance,
    CloudModification,
    CloudVolume,
    VolumeShape,
    VolumeState,
)
from volplane.cloud.records import CloudRecords
from volplane.cloud.snapshots import SnapshotService
from volplane.host import DeviceBusy

log = logging.getLogger(__name__)

double_attaches = metrics.counter(
    "volplane_cloud_double_attaches_refused_total",
    "Attach requests refused because the disk is attached elsewhere",
)


class DiskService:
    def __init__(
        self,
        ledger: CloudRecords,
        disks: DiskFiles,
        *,
        zones: Sequence[str],
        thin: float,
        pace: LatencySimulator | None = None,
        modification_pause: float = 0.0,
    ) -> None:
        self.pace, self._modification_pause = pace or LatencySimulator(), modification_pause
        self.ledger, self.disks = ledger, disks
        self.zones, self.thin = tuple(zones), thin
        self.turns, self.work = KeyedLock(), BackgroundJobs()
        self.creation, self.snapshots = VolumeCreator(self), SnapshotService(self, REQUEST_PATIENCE)
        self._promised: set[tuple[str, str]] = set()  # (instance, device) of attaches under way

    def hold_for_copy(self, source: str) -> AbstractAsyncContextManager[None]:
        """Who holds this reads the file of a volume or snapshot; it is not deleted meanwhile."""
        return self.turns.hold(f"copy {source}")

    # Volumes

    async def create(self, wish: CloudVolumeRequest) -> CloudVolume:
        return await self.creation.create(wish)

    async def capacity(self) -> int:
        """Bytes that can still be promised."""
        return await self.creation.capacity()

    async def delete(self, volume_id: str) -> None:
        async with self.hold_for_copy(volume_id), self.turns.hold(volume_id):
            volume = self.volume(volume_id)
            if volume.state is VolumeState.CREATING:
                raise errors.wrong_state(volume_id, volume.state)
            if volume.attachment:
                raise errors.in_use(
                    f"Volume {volume_id} is currently attached to {volume.attachment.instance}"
                )
            hit_failpoint("DeleteVolume", "asked")
            volume = await self.ledger.put_volume(structs.replace(volume, state=VolumeState.DELETING))
            hit_failpoint("DeleteVolume", "intent")
            try:
                await self.disks.unbind(volume_id)
            except DeviceBusy as error:
                await self.ledger.put_volume(structs.replace(volume, state=VolumeState.AVAILABLE))
                raise errors.in_use(
                    f"Volume {volume_id}: {await self.disks.describe_users(volume_id)}"
                ) from error
            await self.disks.remove(volume_id)
            hit_failpoint("DeleteVolume", "effect")
            await self.ledger.delete_volume(volume)
            hit_failpoint("DeleteVolume", "result")

    async def modify(self, volume_id: str, wanted: Mapping[str, object]) -> CloudModification:
        async with self.turns.hold(volume_id):
            volume, started = self.volume(volume_id), clock.microstamp()
            if volume.state not in (VolumeState.AVAILABLE, VolumeState.IN_USE):
                raise errors.wrong_state(volume_id, volume.state)
            target = limits.validate_shape(apply_changes(volume.shape, wanted))
            self._check_rate(volume_id)
            growth = target.size - volume.shape.size
            if growth < 0:
                raise errors.invalid_parameter(
                    "size", target.size, f"The volume has {volume.shape.size} GiB."
                )
            if growth * GIB > await self.capacity():
                raise errors.insufficient_capacity(f"{growth} GiB more are wanted")
            hit_failpoint("ModifyVolume", "asked")
            intent = CloudModification(volume_id, volume.shape, target, started)
            await self.ledger.put_modification(intent)
            hit_failpoint("ModifyVolume", "intent")
            await self.pace.simulate("ModifyVolume")
            return await self.apply_modification(intent)

    async def apply_modification(self, change: CloudModification) -> CloudModification:
        """The effect and the result of a modification; again after a restart, for a disk never shrinks."""
        volume = self.volume(change.volume)
        try:
            if change.target.size > change.original.size:
                await self.disks.grow(change.volume, change.target.size)
        except OSError as error:
            failed = structs.replace(change, ended=clock.microstamp(), failed=error.strerror or "it failed")
            await self.ledger.put_modification(failed)
            raise errors.from_os_error("the machine refused the larger disk", error) from error
        hit_failpoint("ModifyVolume", "effect")
        await self.ledger.put_volume(structs.replace(volume, shape=change.target))
        done = await self.ledger.put_modification(structs.replace(change, ended=clock.microstamp()))
        hit_failpoint("ModifyVolume", "result")
        return done

    def _check_rate(self, volume_id: str) -> None:
        last = self.ledger.modifications.get(volume_id)
        if last is None or not self._modification_pause:
            return
        passed = clock.wall() - clock.parse(last.started)
        if passed.total_seconds() < self._modification_pause:
            text = "You've reached the maximum modification rate per volume limit. Wait before the next one."
            raise Ec2ErrorResponse("VolumeModificationRateExceeded", text)

    async def tag(self, resource: str, tags: Mapping[str, str], *, remove: bool = False) -> None:
        async with self.turns.hold(resource):
            if resource in self.ledger.instances:
                instance = self.ledger.instances[resource]
                await self.ledger.put_instance(
                    structs.replace(instance, tags=_update_tags(instance.tags, tags, remove))
                )
            elif resource in self.ledger.snapshots:
                snapshot = self.snapshots.get(resource)
                await self.ledger.put_snapshot(
                    structs.replace(snapshot, tags=_update_tags(snapshot.tags, tags, remove))
                )
            else:
                volume = self.volume(resource)
                await self.ledger.put_volume(
                    structs.replace(volume, tags=_update_tags(volume.tags, tags, remove))
                )

    # Attachments

    async def attach(self, volume_id: str, instance_id: str, device: str) -> CloudAttachment:
        async with self.turns.hold(volume_id):
            volume, instance = self.volume(volume_id), self.instance(instance_id)
            self._check_attachable(volume, instance)
            self._check_device(instance, device)
            self._promised.add((instance_id, device))
            try:
                return await self._attach(volume, instance, device)
            finally:
                self._promised.discard((instance_id, device))

    def _check_attachable(self, volume: CloudVolume, instance: CloudInstance) -> None:
        held = volume.attachment
        if held:
            if held.instance != instance.id:
                double_attaches.inc()
                log.warning("refused: %s is attached to %s, not to %s", volume.id, held.instance, instance.id)
            raise errors.in_use(f"{volume.id} is already attached to an instance")
        if volume.state is not VolumeState.AVAILABLE:
            raise errors.wrong_state(volume.id, volume.state)
        if volume.zone != instance.zone:
            text = (
                f"The volume '{volume.id}' is not in the same availability zone as instance '{instance.id}'"
            )
            raise Ec2ErrorResponse("InvalidVolume.ZoneMismatch", text)
        if not instance.running:
            raise Ec2ErrorResponse("IncorrectState", f"Instance '{instance.id}' is not 'running'.")

    def _check_device(self, instance: CloudInstance, device: str) -> None:
        if not device.startswith("/dev/") or "/" in device.removeprefix("/dev/"):
            raise errors.invalid_parameter("device", device, "It is not a valid EBS device name.")
        taken = {v.attachment.device for v in self.ledger.attached_to(instance.id) if v.attachment}
        taken |= {name for owner, name in self._promised if owner == instance.id}
        if device in taken:
            text = f"Invalid value '{device}' for unixDevice. Attachment point {device} is already in use"
            raise Ec2ErrorResponse("InvalidParameterValue", text)
        if len(taken) >= limits.MAX_ATTACHMENTS:
            text = f"{instance.id} has {limits.MAX_ATTACHMENTS} volumes, which is its limit"
            raise Ec2ErrorResponse("AttachmentLimitExceeded", text)

    async def _attach(self, volume: CloudVolume, instance: CloudInstance, device: str) -> CloudAttachment:
        await self._unbind_leftover(volume)
        intent = CloudAttachment(instance.id, device, AttachmentState.ATTACHING, clock.microstamp())
        before = volume
        hit_failpoint("AttachVolume", "asked")
        volume = await self.ledger.put_volume(
            structs.replace(volume, state=VolumeState.IN_USE, attachment=intent, used=True)
        )
        hit_failpoint("AttachVolume", "intent")
        self.snapshots.attached[volume.id] += 1
        await self.pace.simulate("AttachVolume")
        try:
            await self.disks.attach(volume.id, intent, instance)
        except OSError as error:
            await self.disks.detach(volume.id, intent, instance)
            await self.ledger.put_volume(before)
            raise errors.internal_error(
                f"{volume.id} cannot be attached to {instance.id}: {error.strerror}"
            ) from error
        hit_failpoint("AttachVolume", "effect")
        done = structs.replace(intent, state=AttachmentState.ATTACHED)
        await self.ledger.put_volume(structs.replace(volume, attachment=done))
        hit_failpoint("AttachVolume", "result")
        return done

    async def _unbind_leftover(self, volume: CloudVolume) -> None:
        """Bound although attached to nobody: unbind it, and if somebody still uses it there, refuse."""
        try:
            await self.disks.unbind(volume.id)
        except DeviceBusy as error:
            double_attaches.inc()
            who = await self.disks.describe_users(volume.id)
            log.warning("refused: %s is still bound: %s", volume.id, who)
            raise errors.in_use(f"Volume {volume.id}: {who}") from error

    async def detach(self, volume_id: str, instance_id: str = "", *, force: bool = False) -> CloudAttachment:
        async with self.turns.hold(volume_id):
            volume = self.volume(volume_id)
            held = volume.attachment
            if held is None:
                raise errors.wrong_state(volume_id, volume.state)
            if instance_id and held.instance != instance_id:
                self.instance(instance_id)
                raise errors.not_attached(volume_id, instance_id)
            return await self._detach(volume, held, force)

    async def _detach(self, volume: CloudVolume, held: CloudAttachment, force: bool) -> CloudAttachment:
        instance = self.instance(held.instance)
        leaving = structs.replace(held, state=AttachmentState.DETACHING)
        hit_failpoint("DetachVolume", "asked")
        volume = await self.ledger.put_volume(structs.replace(volume, attachment=leaving))
        hit_failpoint("DetachVolume", "intent")
        await self.pace.simulate("DetachVolume")
        try:
            if force or not instance.running:
                await self.disks.unmount_leftovers(volume.id)
            await self.disks.detach(volume.id, held, instance)
        except DeviceBusy as error:
            who = await self.disks.describe_users(volume.id)
            await self.ledger.put_volume(
                structs.replace(volume, attachment=structs.replace(held, state=AttachmentState.ATTACHED))
            )
            raise errors.in_use(f"Volume {volume.id} is still in use by {held.instance}: {who}") from error
        hit_failpoint("DetachVolume", "effect")
        free = VolumeState.ERROR if volume.lost else VolumeState.AVAILABLE
        await self.ledger.put_volume(structs.replace(volume, state=free, attachment=None))
        hit_failpoint("DetachVolume", "result")
        return structs.replace(held, state=AttachmentState.DETACHED)

    async def release(self) -> None:
        """At a clean stop: no loop device stays bound; the ledger keeps saying where the disks belong."""
        await self.work.close()
        held = [v for v in self.ledger.volumes.values() if v.attachment]
        async with asyncio.TaskGroup() as group:
            for volume in held:
                group.create_task(self._release(volume))

    async def _release(self, volume: CloudVolume) -> None:
        assert volume.attachment is not None
        try:
            instance = self.instance(volume.attachment.instance)
            await self.disks.detach(volume.id, volume.attachment, instance)
        except (DeviceBusy, Ec2ErrorResponse) as error:
            log.warning("%s stays bound: %s", volume.id, error)

    # Instances

    async def register(self, instance: CloudInstance) -> CloudInstance:
        """An instance appears, or appears again: then its device directory and zone are the new ones."""
        async with self.turns.hold(instance.id):
            known = self.ledger.instances.get(instance.id)
            if known:
                instance = structs.replace(instance, launched=known.launched, tags=known.tags)
                if known.zone != instance.zone and self.ledger.attached_to(instance.id):
                    raise Ec2ErrorResponse(
                        "IncorrectInstanceState", f"{instance.id} has volumes of zone {known.zone}"
                    )
            if known == instance:
                return known
            instance = structs.replace(instance, launched=instance.launched or clock.microstamp())
            await self.ledger.put_instance(instance)
            if known and known.directory != instance.directory:
                for volume in self.ledger.attached_to(instance.id):
                    await self._attach_again(volume, instance)
            return instance

    async def _attach_again(self, volume: CloudVolume, instance: CloudInstance) -> None:
        """At a new place; a disk whose file is gone keeps nobody from the others."""
        assert volume.attachment is not None
        try:
            await self.disks.attach(volume.id, volume.attachment, instance)
        except OSError as error:
            log.error("%s cannot be attached to %s again: %s", volume.id, instance.id, error)

    async def deregister(self, instance_id: str) -> None:
        async with self.turns.hold(instance_id):
            instance = self.instance(instance_id)
            if self.ledger.attached_to(instance_id):
                raise Ec2ErrorResponse("IncorrectInstanceState", f"{instance_id} has volumes attached")
            await self.ledger.delete_instance(instance)

    async def power(self, instance_id: str, *, running: bool) -> CloudInstance:
        """A stopped instance cannot keep its disks busy: detaching takes them away from it."""
        async with self.turns.hold(instance_id):
            instance = self.instance(instance_id)
            return await self.ledger.put_instance(structs.replace(instance, running=running))

    # Facts

    def volume(self, volume_id: str) -> CloudVolume:
        volume = self.ledger.volumes.get(volume_id)
        if volume is None:
            raise errors.volume_not_found(volume_id)
        return volume

    def instance(self, instance_id: str) -> CloudInstance:
        instance = self.ledger.instances.get(instance_id)
        if instance is None:
            raise errors.instance_not_found(instance_id)
        return instance

    def known_zones(self) -> tuple[str, ...]:
        return tuple(sorted({*self.zones, *(i.zone for i in self.ledger.instances.values())}))


def apply_changes(shape: VolumeShape, wanted: Mapping[str, object]) -> VolumeShape:
    changed = {name: value for name, value in wanted.items() if value}
    if changed.get("type", shape.type) != shape.type or limits.TYPES[shape.type].iops is None:
        # What was a default of the old type, or follows from the size, is not a wish.
        shape = VolumeShape(shape.size, shape.type)
    return structs.replace(shape, **changed)


def _update_tags(old: Mapping[str, str], tags: Mapping[str, str], remove: bool) -> dict[str, str]:
    if not remove:
        return {**old, **tags}
    # An empty value in DeleteTags means: whatever the value is.
    return {k: v for k, v in old.items() if k not in tags or tags[k] not in ("", v)}
