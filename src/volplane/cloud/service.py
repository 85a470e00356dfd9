"""The operations of the disk service: create, attach, detach, modify and delete volumes.

Every change has three steps: write the intent to the records, change the machine, write the result. If the
service is killed in between, `recover` finishes the change at the next start. A disk is never attached while
it has a loop device, whatever the records say: a lazily unmounted file system may still be writing to it.
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
from volplane.rules.zones import zone_id

log = logging.getLogger(__name__)

double_attaches = metrics.counter(
    "volplane_cloud_double_attaches_refused_total",
    "Attach requests refused because the disk is attached elsewhere",
)


class DiskService:
    def __init__(
        self,
        records: CloudRecords,
        disks: DiskFiles,
        *,
        zones: Sequence[str],
        thin: float,
        latency: LatencySimulator | None = None,
        modification_pause: float = 0.0,
    ) -> None:
        self.latency, self._modification_pause = latency or LatencySimulator(), modification_pause
        self.records, self.disks = records, disks
        self.zones, self.thin = tuple(zones), thin
        self.endpoint = ""  # host and port, when it is served
        self.locks, self.jobs = KeyedLock(), BackgroundJobs()
        self.creator, self.snapshots = VolumeCreator(self), SnapshotService(self, REQUEST_PATIENCE)
        self._promised: set[tuple[str, str]] = set()  # (instance, device) of attaches in progress

    def hold_for_copy(self, source: str) -> AbstractAsyncContextManager[None]:
        """Lock the file of a volume or snapshot for reading, so that it is not deleted meanwhile."""
        return self.locks.hold(f"copy {source}")

    # Volumes

    async def create(self, request: CloudVolumeRequest) -> CloudVolume:
        return await self.creator.create(request)

    async def capacity(self) -> int:
        """Bytes that can still be allocated to volumes."""
        return await self.creator.capacity()

    async def delete(self, volume_id: str) -> None:
        async with self.hold_for_copy(volume_id), self.locks.hold(volume_id):
            volume = self.volume(volume_id)
            if volume.state is VolumeState.CREATING:
                raise errors.wrong_state(volume_id, volume.state)
            if volume.attachments:
                names = ", ".join(a.instance for a in volume.attachments)
                raise errors.in_use(f"Volume {volume_id} is currently attached to {names}")
            hit_failpoint("DeleteVolume", "asked")
            volume = await self.records.put_volume(structs.replace(volume, state=VolumeState.DELETING))
            hit_failpoint("DeleteVolume", "intent")
            try:
                await self.disks.unbind(volume_id)
            except DeviceBusy as error:
                await self.records.put_volume(structs.replace(volume, state=VolumeState.AVAILABLE))
                raise errors.in_use(
                    f"Volume {volume_id}: {await self.disks.describe_users(volume_id)}"
                ) from error
            await self.disks.remove(volume_id)
            hit_failpoint("DeleteVolume", "effect")
            await self.records.delete_volume(volume)
            hit_failpoint("DeleteVolume", "result")

    async def modify(self, volume_id: str, wanted: Mapping[str, object]) -> CloudModification:
        async with self.locks.hold(volume_id):
            volume, started = self.volume(volume_id), clock.microstamp()
            if volume.state not in (VolumeState.AVAILABLE, VolumeState.IN_USE):
                raise errors.wrong_state(volume_id, volume.state)
            target = limits.validate_shape(apply_changes(volume.shape, wanted))
            _check_multi_attach(volume, target)
            self._check_rate(volume_id)
            growth = target.size - volume.shape.size
            if growth < 0:
                raise errors.invalid_parameter(
                    "size", target.size, f"The volume has {volume.shape.size} GiB."
                )
            if growth * GIB > await self.capacity():
                raise errors.insufficient_capacity(f"{growth} GiB more are requested")
            hit_failpoint("ModifyVolume", "asked")
            intent = CloudModification(volume_id, volume.shape, target, started)
            await self.records.put_modification(intent)
            hit_failpoint("ModifyVolume", "intent")
            await self.latency.simulate("ModifyVolume", volume.shape.type)
            return await self.apply_modification(intent)

    async def apply_modification(self, change: CloudModification) -> CloudModification:
        """Grow the disk and write the result; may be repeated, because a disk never shrinks."""
        volume = self.volume(change.volume)
        try:
            if change.target.size > change.original.size:
                await self.disks.grow(change.volume, change.target.size)
        except OSError as error:
            failed = structs.replace(change, ended=clock.microstamp(), failed=error.strerror or "failed")
            await self.records.put_modification(failed)
            raise errors.from_os_error("cannot grow the disk", error) from error
        hit_failpoint("ModifyVolume", "effect")
        await self.records.put_volume(structs.replace(volume, shape=change.target))
        done = await self.records.put_modification(structs.replace(change, ended=clock.microstamp()))
        hit_failpoint("ModifyVolume", "result")
        return done

    def _check_rate(self, volume_id: str) -> None:
        last = self.records.modifications.get(volume_id)
        if last is None or not self._modification_pause:
            return
        passed = clock.wall() - clock.parse(last.started)
        if passed.total_seconds() < self._modification_pause:
            text = "You've reached the maximum modification rate per volume limit. Wait before the next one."
            raise Ec2ErrorResponse("VolumeModificationRateExceeded", text)

    async def tag(self, resource: str, tags: Mapping[str, str], *, remove: bool = False) -> None:
        async with self.locks.hold(resource):
            if resource in self.records.instances:
                instance = self.records.instances[resource]
                await self.records.put_instance(
                    structs.replace(instance, tags=_update_tags(instance.tags, tags, remove))
                )
            elif resource in self.records.snapshots:
                snapshot = self.snapshots.get(resource)
                await self.records.put_snapshot(
                    structs.replace(snapshot, tags=_update_tags(snapshot.tags, tags, remove))
                )
            else:
                volume = self.volume(resource)
                await self.records.put_volume(
                    structs.replace(volume, tags=_update_tags(volume.tags, tags, remove))
                )

    # Attachments

    async def attach(
        self, volume_id: str, instance_id: str, device: str, *, card: int | None = None
    ) -> CloudAttachment:
        async with self.locks.hold(volume_id):
            volume, instance = self.volume(volume_id), self.instance(instance_id)
            self._check_attachable(volume, instance)
            self._check_device(instance, device)
            self._promised.add((instance_id, device))
            try:
                return await self._attach(volume, instance, device, card)
            finally:
                self._promised.discard((instance_id, device))

    def _check_attachable(self, volume: CloudVolume, instance: CloudInstance) -> None:
        if volume.find_attachment(instance.id):
            raise errors.in_use(f"{volume.id} is already attached to an instance")
        if volume.attachments and not volume.shape.multi_attach:
            double_attaches.inc()
            holder = volume.attachments[0].instance
            log.warning(
                "refused to attach %s: it is attached to %s, not to %s", volume.id, holder, instance.id
            )
            raise errors.in_use(f"{volume.id} is already attached to an instance")
        if len(volume.attachments) >= limits.MAX_MULTI_ATTACH:
            text = f"{volume.id} is attached to {limits.MAX_MULTI_ATTACH} instances, which is its limit"
            raise Ec2ErrorResponse("AttachmentLimitExceeded", text)
        if volume.state is not (VolumeState.IN_USE if volume.attachments else VolumeState.AVAILABLE):
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
        attached = [v.find_attachment(instance.id) for v in self.records.attached_to(instance.id)]
        taken = {a.device for a in attached if a}
        taken |= {name for owner, name in self._promised if owner == instance.id}
        if device in taken:
            text = f"Invalid value '{device}' for unixDevice. Attachment point {device} is already in use"
            raise Ec2ErrorResponse("InvalidParameterValue", text)
        if len(taken) >= limits.MAX_ATTACHMENTS:
            text = f"{instance.id} has {limits.MAX_ATTACHMENTS} volumes, which is its limit"
            raise Ec2ErrorResponse("AttachmentLimitExceeded", text)

    async def _attach(
        self, volume: CloudVolume, instance: CloudInstance, device: str, card: int | None
    ) -> CloudAttachment:
        if not volume.attachments:
            await self._unbind_leftover(volume)
        intent = CloudAttachment(instance.id, device, AttachmentState.ATTACHING, clock.microstamp(), card)
        before = volume
        hit_failpoint("AttachVolume", "asked")
        volume = await self.records.put_volume(structs.replace(volume.with_attachment(intent), used=True))
        hit_failpoint("AttachVolume", "intent")
        self.snapshots.attached[volume.id] += 1
        await self.latency.simulate("AttachVolume", volume.shape.type)
        try:
            await self.disks.attach(volume.id, intent, instance)
        except OSError as error:
            await self.disks.detach(volume.id, intent, instance, is_shared=bool(before.attachments))
            await self.records.put_volume(before)
            raise errors.internal_error(
                f"{volume.id} cannot be attached to {instance.id}: {error.strerror}"
            ) from error
        hit_failpoint("AttachVolume", "effect")
        done = structs.replace(intent, state=AttachmentState.ATTACHED)
        self.records.put_volume_later(volume.with_attachment(done))
        hit_failpoint("AttachVolume", "result")
        return done

    async def _unbind_leftover(self, volume: CloudVolume) -> None:
        """Detach a loop device that an earlier attachment has left. Raises VolumeInUse if it is in use."""
        try:
            await self.disks.unbind(volume.id)
        except DeviceBusy as error:
            double_attaches.inc()
            who = await self.disks.describe_users(volume.id)
            log.warning("refused to attach %s: its loop device is in use: %s", volume.id, who)
            raise errors.in_use(f"Volume {volume.id}: {who}") from error

    async def detach(self, volume_id: str, instance_id: str = "", *, force: bool = False) -> CloudAttachment:
        async with self.locks.hold(volume_id):
            volume = self.volume(volume_id)
            if not volume.attachments:
                raise errors.wrong_state(volume_id, volume.state)
            if not instance_id and volume.shape.multi_attach:
                raise errors.missing_parameter("instanceId")
            wanted = instance_id or volume.attachments[0].instance
            if (attachment := volume.find_attachment(wanted)) is None:
                self.instance(instance_id)
                raise errors.not_attached(volume_id, instance_id)
            return await self._detach(volume, attachment, force)

    async def _detach(self, volume: CloudVolume, attachment: CloudAttachment, force: bool) -> CloudAttachment:
        instance = self.instance(attachment.instance)
        is_shared = volume.is_attached_elsewhere(instance.id)
        leaving = structs.replace(attachment, state=AttachmentState.DETACHING)
        hit_failpoint("DetachVolume", "asked")
        volume = await self.records.put_volume(volume.with_attachment(leaving))
        hit_failpoint("DetachVolume", "intent")
        await self.latency.simulate("DetachVolume", volume.shape.type)
        try:
            if force or not instance.running:
                await self.disks.unmount_leftovers(volume.id, instance if is_shared else None)
            await self.disks.detach(volume.id, attachment, instance, is_shared=is_shared)
        except DeviceBusy as error:
            who = await self.disks.describe_users(volume.id)
            kept = structs.replace(attachment, state=AttachmentState.ATTACHED)
            await self.records.put_volume(volume.with_attachment(kept))
            raise errors.in_use(
                f"Volume {volume.id} is still in use by {attachment.instance}: {who}"
            ) from error
        hit_failpoint("DetachVolume", "effect")
        self.records.put_volume_later(volume.without_attachment(instance.id))
        hit_failpoint("DetachVolume", "result")
        return structs.replace(attachment, state=AttachmentState.DETACHED)

    async def release(self) -> None:
        """At a clean stop, detach all loop devices; the records keep the attachments."""
        await self.jobs.close()
        await self.disks.close()
        attached = [v for v in self.records.volumes.values() if v.attachments]
        async with asyncio.TaskGroup() as group:
            for volume in attached:
                group.create_task(self._release(volume))
        await self.records.flush()

    async def _release(self, volume: CloudVolume) -> None:
        for attachment in volume.attachments:
            try:
                instance, is_last = self.instance(attachment.instance), attachment is volume.attachments[-1]
                await self.disks.detach(volume.id, attachment, instance, is_shared=not is_last)
            except (DeviceBusy, Ec2ErrorResponse) as error:
                log.warning("%s keeps its loop device: %s", volume.id, error)

    # Instances

    async def register(self, instance: CloudInstance) -> CloudInstance:
        """Register an instance, or update its device directory and zone."""
        async with self.locks.hold(instance.id):
            known = self.records.instances.get(instance.id)
            if known:
                instance = structs.replace(instance, launched=known.launched, tags=known.tags)
                if known.zone != instance.zone and self.records.attached_to(instance.id):
                    raise Ec2ErrorResponse(
                        "IncorrectInstanceState", f"{instance.id} has volumes of zone {known.zone}"
                    )
            if known == instance:
                return known
            instance = structs.replace(instance, launched=instance.launched or clock.microstamp())
            await self.records.put_instance(instance)
            if known and known.directory != instance.directory:
                for volume in self.records.attached_to(instance.id):
                    await self._attach_again(volume, instance)
            return instance

    async def _attach_again(self, volume: CloudVolume, instance: CloudInstance) -> None:
        """Create the links in a new directory; an error of one disk does not affect the others."""
        attachment = volume.find_attachment(instance.id)
        assert attachment is not None
        try:
            await self.disks.attach(volume.id, attachment, instance)
        except OSError as error:
            log.error("cannot attach %s to %s again: %s", volume.id, instance.id, error)

    async def deregister(self, instance_id: str) -> None:
        async with self.locks.hold(instance_id):
            instance = self.instance(instance_id)
            if self.records.attached_to(instance_id):
                raise Ec2ErrorResponse("IncorrectInstanceState", f"{instance_id} has volumes attached")
            await self.records.flush()  # no stored volume may be leaving an instance that has no record
            await self.records.delete_instance(instance)

    async def power(self, instance_id: str, *, running: bool) -> CloudInstance:
        """Start or stop an instance. Disks are detached from a stopped instance although they are mounted."""
        async with self.locks.hold(instance_id):
            instance = self.instance(instance_id)
            return await self.records.put_instance(structs.replace(instance, running=running))

    # Lookups

    def volume(self, volume_id: str) -> CloudVolume:
        volume = self.records.volumes.get(volume_id)
        if volume is None:
            raise errors.volume_not_found(volume_id)
        return volume

    def instance(self, instance_id: str) -> CloudInstance:
        instance = self.records.instances.get(instance_id)
        if instance is None:
            raise errors.instance_not_found(instance_id)
        return instance

    def known_zones(self) -> tuple[str, ...]:
        return tuple(sorted({*self.zones, *(i.zone for i in self.records.instances.values())}))

    def find_zone(self, number: str) -> str:
        """The zone with an id such as use1-az1."""
        for zone in self.known_zones():
            if zone_id(zone) == number:
                return zone
        raise Ec2ErrorResponse("InvalidParameterValue", f"Invalid availability zone-id: [{number}]")


def apply_changes(shape: VolumeShape, wanted: Mapping[str, object]) -> VolumeShape:
    changed = {name: value for name, value in wanted.items() if value or value is False}
    if changed.get("type", shape.type) != shape.type or limits.TYPES[shape.type].iops is None:
        # Defaults of the old type, or values that follow from the size, are not kept.
        shape = VolumeShape(shape.size, shape.type, multi_attach=shape.multi_attach)
    return structs.replace(shape, **changed)


def _check_multi_attach(volume: CloudVolume, target: VolumeShape) -> None:
    if target.multi_attach == volume.shape.multi_attach:
        return
    if volume.shape.type != "io2":
        kind = volume.shape.type
        text = f"Multi-Attach of an existing {kind} volume cannot be changed, only that of io2 volumes."
        raise Ec2ErrorResponse("InvalidParameterCombination", text)
    if len(volume.attachments) > (1 if volume.shape.multi_attach else 0):
        raise errors.wrong_state(volume.id, volume.state)


def _update_tags(old: Mapping[str, str], tags: Mapping[str, str], remove: bool) -> dict[str, str]:
    if not remove:
        return {**old, **tags}
    # In DeleteTags an empty value matches every value.
    return {k: v for k, v in old.items() if k not in tags or tags[k] not in ("", v)}
