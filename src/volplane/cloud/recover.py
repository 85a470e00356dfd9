"""The start: carries every half-done operation to its end and removes what belongs to nothing."""

from __future__ import annotations

import logging
from typing import assert_never

from msgspec import structs

from volplane.cloud import plan as planning
from volplane.cloud.errors import Refusal
from volplane.cloud.model import (
    AttachmentState,
    Modification,
    Snapshot,
    SnapshotState,
    Volume,
    VolumeState,
)
from volplane.cloud.service import Service
from volplane.host import DeviceBusy

log = logging.getLogger(__name__)


async def recover(service: Service) -> None:
    survey = await service.disks.survey()
    for volume in tuple(service.ledger.volumes.values()):
        has_file, bound = volume.id in survey.files, volume.id in survey.bound
        if volume.state is VolumeState.CREATING and volume.source:
            await service.disks.thaw(volume.source)
        for step in planning.plan(volume, has_file=has_file, bound=bound):
            log.debug("%s: %s", volume.id, step)
            try:
                volume = await _act(service, volume, step)
            except DeviceBusy as error:
                log.warning("%s: %s", volume.id, error)
                break
            except OSError:
                log.exception("%s cannot be recovered now", volume.id)
                break
    for change in tuple(service.ledger.modifications.values()):
        await _recover_modification(service, change)
    for orphan in (survey.files | set(survey.bound)) - set(service.ledger.volumes):
        await _remove_orphan(service, orphan)
    for snapshot in _broken_sets(service):
        await service.disks.thaw(snapshot.volume)
        await service.snapshots.forget(snapshot)
    for snapshot in tuple(service.ledger.snapshots.values()):
        await _recover_snapshot(service, snapshot, has_file=snapshot.id in survey.snapshots)
    for snapshot_id in survey.snapshots - set(service.ledger.snapshots):
        await service.disks.remove_snapshot(snapshot_id)


def _broken_sets(service: Service) -> list[Snapshot]:
    """Members of sets that were not finished, and that nobody has heard of.

    What tells of that goes last: killed here, too, the rest is found again.
    """
    known = tuple(service.ledger.snapshots.values())
    unheard = {s.set for s in known if s.set and s.state is SnapshotState.PENDING and not s.told}
    broken = [s for s in known if s.set in unheard]
    return sorted(broken, key=lambda s: s.state is SnapshotState.PENDING)


async def _recover_modification(service: Service, change: Modification) -> None:
    volume = service.ledger.volumes.get(change.volume)
    if volume is None:
        await service.ledger.drop_modification(change)
    elif not change.ended and volume.state is not VolumeState.ERROR:
        try:
            await service.carry_out(change)
        except Refusal as error:
            log.error("%s: its modification has failed: %s", change.volume, error)


async def _recover_snapshot(service: Service, snapshot: Snapshot, *, has_file: bool) -> None:
    if snapshot.state is SnapshotState.PENDING:
        await service.disks.thaw(snapshot.volume)
    for step in planning.snapshot_plan(snapshot, has_file=has_file):
        log.debug("%s: %s", snapshot.id, step)
        if isinstance(step, planning.Forget):
            await service.snapshots.forget(snapshot)
        else:
            why = "its file is gone" if snapshot.state is SnapshotState.COMPLETED else "it was interrupted"
            log.error("%s: %s", snapshot.id, why)
            await service.snapshots.fail(snapshot, why)


async def _act(service: Service, volume: Volume, step: planning.Step) -> Volume:
    ledger, disks = service.ledger, service.disks
    match step:
        case planning.Forget():
            await disks.remove(volume.id)
            if volume.id in ledger.volumes:
                await ledger.drop_volume(volume)
        case planning.Unbind():
            await disks.unbind(volume.id)
        case planning.Restore():
            await disks.create(volume.id, volume.shape.size)
        case planning.Lost():
            log.error("%s: its file is gone", volume.id)
            return await ledger.put_volume(structs.replace(volume, state=VolumeState.ERROR))
        case planning.Finish():
            service.work.start(service.creation.finish(volume))
        case planning.Attach():
            return await _attach(service, volume)
        case planning.Detach():
            return await _detach(service, volume)
        case _:
            assert_never(step)
    return volume


async def _attach(service: Service, volume: Volume) -> Volume:
    held = volume.attachment
    assert held is not None
    await service.disks.attach(volume.id, held, service.instance(held.instance))
    if held.state is AttachmentState.ATTACHED:
        return volume
    done = structs.replace(held, state=AttachmentState.ATTACHED)
    return await service.ledger.put_volume(structs.replace(volume, attachment=done))


async def _detach(service: Service, volume: Volume) -> Volume:
    held = volume.attachment
    assert held is not None
    try:
        await service.disks.detach(volume.id, held, service.instance(held.instance))
    except DeviceBusy:
        return await _attach(service, volume)  # the caller never heard of success, and will ask again
    free = structs.replace(volume, state=VolumeState.AVAILABLE, attachment=None)
    return await service.ledger.put_volume(free)


async def _remove_orphan(service: Service, volume_id: str) -> None:
    try:
        await service.disks.unbind(volume_id)
        await service.disks.remove(volume_id)
    except DeviceBusy as error:
        log.warning("%s belongs to no volume, but is in use: %s", volume_id, error)
