"""Recovery at the start: finishes or undoes unfinished operations, and removes orphaned files."""

from __future__ import annotations

import logging
from typing import assert_never

from msgspec import structs

from volplane.cloud import plan as planning
from volplane.cloud.errors import Ec2ErrorResponse
from volplane.cloud.model import (
    GIB,
    AttachmentState,
    CloudModification,
    CloudSnapshot,
    CloudVolume,
    SnapshotState,
    VolumeState,
)
from volplane.cloud.service import DiskService
from volplane.host import DeviceBusy

log = logging.getLogger(__name__)


async def recover(service: DiskService) -> None:
    survey = await service.disks.survey()
    for volume in tuple(service.records.volumes.values()):
        file, bound = survey.files.get(volume.id), volume.id in survey.bound
        has_file = file is not None and file.size >= volume.shape.size * GIB
        blank = file is not None and file.is_blank
        if volume.state is VolumeState.CREATING and volume.source:
            await service.disks.thaw(volume.source)
        for step in planning.plan(volume, has_file=has_file, bound=bound, blank=blank):
            log.debug("%s: %s", volume.id, step)
            try:
                volume = await _act(service, volume, step)
            except DeviceBusy as error:
                log.warning("%s: %s", volume.id, error)
                break
            except (OSError, Ec2ErrorResponse) as error:  # one disk must not keep the service from starting
                log.error("cannot recover %s: %s", volume.id, error)
                break
    for change in tuple(service.records.modifications.values()):
        await _recover_modification(service, change)
    for orphan in (set(survey.files) | set(survey.bound)) - set(service.records.volumes):
        if orphan not in service.records.unreadable:
            await _remove_orphan(service, orphan)
    for snapshot in _unfinished_sets(service):
        await service.disks.thaw(snapshot.volume)
        await service.snapshots.forget(snapshot)
    for snapshot in tuple(service.records.snapshots.values()):
        await _recover_snapshot(service, snapshot, has_file=snapshot.id in survey.snapshots)
    for snapshot_id in survey.snapshots - set(service.records.snapshots) - service.records.unreadable:
        await service.disks.clear_snapshot(snapshot_id)
    accounted = {v.id for v in service.records.volumes.values() if v.attachments and not v.lost}
    for instance in service.records.instances.values():
        await service.disks.clear_links(instance, accounted)


def _unfinished_sets(service: DiskService) -> list[CloudSnapshot]:
    """Members of unfinished multi-volume snapshots whose ids no client got.

    Pending members come last: after another kill they show that the set is unfinished.
    """
    known = tuple(service.records.snapshots.values())
    unheard = {s.set for s in known if s.set and s.state is SnapshotState.PENDING and not s.id_returned}
    broken = [s for s in known if s.set in unheard]
    return sorted(broken, key=lambda s: s.state is SnapshotState.PENDING)


async def _recover_modification(service: DiskService, change: CloudModification) -> None:
    volume = service.records.volumes.get(change.volume)
    if volume is None:
        await service.records.delete_modification(change)
    elif not change.ended and volume.state is not VolumeState.ERROR:
        try:
            await service.apply_modification(change)
        except Ec2ErrorResponse as error:
            log.error("%s: the modification failed: %s", change.volume, error)


async def _recover_snapshot(service: DiskService, snapshot: CloudSnapshot, *, has_file: bool) -> None:
    if snapshot.state is SnapshotState.PENDING:
        await service.disks.thaw(snapshot.volume)
    for step in planning.plan_snapshot(snapshot, has_file=has_file):
        log.debug("%s: %s", snapshot.id, step)
        if isinstance(step, planning.DeleteDisk):
            await service.snapshots.forget(snapshot)
        elif isinstance(step, planning.FinishCopy):
            service.jobs.start(service.snapshots.finish(snapshot))
        else:
            why = "its file is missing" if snapshot.state is SnapshotState.COMPLETED else "it was interrupted"
            log.error("%s: %s", snapshot.id, why)
            await service.snapshots.fail(snapshot, why)


async def _act(service: DiskService, volume: CloudVolume, step: planning.Step) -> CloudVolume:
    records, disks = service.records, service.disks
    match step:
        case planning.DeleteDisk():
            await disks.remove(volume.id)
            if volume.id in records.volumes:
                await records.delete_volume(volume)
        case planning.UnbindDisk():
            await disks.unbind(volume.id)
        case planning.RecreateFile():
            await disks.restore(volume.id, volume.shape.size)
        case planning.MarkLost():
            log.error("%s: the file is missing or too short: %s", volume.id, disks.file(volume.id))
            lost = volume.state is not VolumeState.CREATING
            return await records.put_volume(structs.replace(volume, state=VolumeState.ERROR, lost=lost))
        case planning.MarkRecovered():
            log.warning("%s: the file is back", volume.id)
            state = VolumeState.IN_USE if volume.attachments else VolumeState.AVAILABLE
            return await records.put_volume(structs.replace(volume, state=state, lost=False))
        case planning.FinishCopy():
            service.jobs.start(service.creator.finish(volume))
        case planning.AttachDisk(instance):
            return await _attach(service, volume, instance)
        case planning.DetachDisk(instance):
            return await _detach(service, volume, instance)
        case _:
            assert_never(step)
    return volume


async def _attach(service: DiskService, volume: CloudVolume, instance_id: str) -> CloudVolume:
    attachment = volume.find_attachment(instance_id)
    assert attachment is not None
    await service.disks.attach(volume.id, attachment, service.instance(instance_id))
    if attachment.state is AttachmentState.ATTACHED:
        return volume
    done = structs.replace(attachment, state=AttachmentState.ATTACHED)
    return await service.records.put_volume(volume.with_attachment(done))


async def _detach(service: DiskService, volume: CloudVolume, instance_id: str) -> CloudVolume:
    attachment = volume.find_attachment(instance_id)
    assert attachment is not None
    instance = service.records.instances.get(instance_id)
    is_shared = volume.is_attached_elsewhere(instance_id)
    try:
        if instance is not None:
            await service.disks.detach(volume.id, attachment, instance, is_shared=is_shared)
        elif not is_shared:  # deregistered although the result of the detach could not be stored
            await service.disks.unbind(volume.id)
    except DeviceBusy:
        return await _attach(service, volume, instance_id)  # the client got no answer, and will try again
    return await service.records.put_volume(volume.without_attachment(instance_id))


async def _remove_orphan(service: DiskService, volume_id: str) -> None:
    try:
        await service.disks.unbind(volume_id)
        await service.disks.clear(volume_id)
    except DeviceBusy as error:
        log.warning("%s has no record but is in use: %s", volume_id, error)
    except OSError as error:
        log.warning("%s has no record and cannot be removed: %s", volume_id, error)
