"""Snapshots of several volumes at one moment."""

from __future__ import annotations

import asyncio
import os
import time

from volplane.base.backoff import Failures
from volplane.csi import v1
from volplane.csi.outcome import Code
from volplane.testing.case import CaseFailure, CaseTable, require
from volplane.testing.cases.snapshots_clones import POLL, READY, snapshot_source
from volplane.testing.socket_env import SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

UNKNOWN = "volplane-no-such-group"
COUNTER_SIZE = 16  # bytes of a counter: so few are written at once or not at all
BEFORE = 5  # rounds that have been written when the snapshot is asked for


def group_request(
    bench: SocketEnv, volumes: list[VolumeUnderTest], name: str = ""
) -> v1.CreateVolumeGroupSnapshotRequest:
    return v1.CreateVolumeGroupSnapshotRequest(
        name=name or bench.new_name("groupsnapshot"),
        source_volume_ids=[volume.id for volume in volumes],
        secrets=bench.secrets,
    )


def get_request(bench: SocketEnv, group: v1.VolumeGroupSnapshot) -> v1.GetVolumeGroupSnapshotRequest:
    return v1.GetVolumeGroupSnapshotRequest(
        group_snapshot_id=group.group_snapshot_id, snapshot_ids=_ids(group), secrets=bench.secrets
    )


def delete_request(bench: SocketEnv, group: v1.VolumeGroupSnapshot) -> v1.DeleteVolumeGroupSnapshotRequest:
    return v1.DeleteVolumeGroupSnapshotRequest(
        group_snapshot_id=group.group_snapshot_id, snapshot_ids=_ids(group), secrets=bench.secrets
    )


def _ids(group: v1.VolumeGroupSnapshot) -> list[str]:
    return [one.snapshot_id for one in group.snapshots]


async def group_snapshot(
    bench: SocketEnv,
    volumes: list[VolumeUnderTest],
    request: v1.CreateVolumeGroupSnapshotRequest | None = None,
) -> v1.VolumeGroupSnapshot:
    """Cut, and ready to be restored."""
    request = request or group_request(bench, volumes)
    end, tries = time.monotonic() + READY, Failures(POLL)
    while True:
        reply = await bench.controller.call("CreateVolumeGroupSnapshot", request)
        made: v1.VolumeGroupSnapshot = reply.group_snapshot
        if not any(known.group_snapshot_id == made.group_snapshot_id for known in bench.groups):
            bench.groups.append(made)
        _expect_complete(made, volumes)
        if made.ready_to_use:
            return made
        require(time.monotonic() < end, f"not ready to use after {READY:g} s")
        await asyncio.sleep(tries.next_delay())


def _expect_complete(made: v1.VolumeGroupSnapshot, volumes: list[VolumeUnderTest]) -> None:
    section = "CreateVolumeGroupSnapshot"
    require(made.group_snapshot_id, f"{section} is OK and names no group", section=section)
    told = sorted(one.source_volume_id for one in made.snapshots)
    wanted = sorted(volume.id for volume in volumes)
    require(told == wanted, f"a group of {wanted} has snapshots of {told}", section=section)
    for one in made.snapshots:
        require(
            one.group_snapshot_id == made.group_snapshot_id,
            f"{one.snapshot_id} is in {made.group_snapshot_id}, and says {one.group_snapshot_id!r}",
            section="CreateSnapshot",
        )
    late = [one.snapshot_id for one in made.snapshots if not one.ready_to_use]
    require(not (made.ready_to_use and late), f"ready to use, and {late} are not", section=section)


def untrack_group(bench: SocketEnv, group: v1.VolumeGroupSnapshot) -> None:
    """It is deleted: nobody has to do it after the case."""
    bench.groups[:] = [one for one in bench.groups if one.group_snapshot_id != group.group_snapshot_id]


async def restore_from_group(
    bench: SocketEnv, group: v1.VolumeGroupSnapshot, volume: VolumeUnderTest
) -> VolumeUnderTest:
    (own,) = (one for one in group.snapshots if one.source_volume_id == volume.id)
    return await bench.create_and_publish(source=snapshot_source(own))


@case(
    "group snapshot/data",
    "CreateVolumeGroupSnapshot",
    "Each snapshot of the group is its volume as it was then, and a new volume can be made of each.",
    "group-snapshot",
    "create",
)
async def data(bench: SocketEnv) -> None:
    volumes, node = [await bench.create_and_publish() for _ in range(2)], bench.nodes[0]
    before = [bench.random_data() for _ in volumes]
    for volume, written in zip(volumes, before, strict=True):
        await volume.write(volume.target(node), written)
    made = await group_snapshot(bench, volumes)
    for volume in volumes:
        await volume.write(volume.target(node), bench.random_data())
        await volume.unpublish_unstage_detach(node)
    for number, (volume, written) in enumerate(zip(volumes, before, strict=True), 1):
        copy = await restore_from_group(bench, made, volume)
        await bench.expect_data(
            copy, copy.target(node), written, f"in a volume restored from snapshot {number} of 2"
        )
        await copy.unpublish_unstage_detach(node)


@case(
    "group snapshot/one moment of all",
    "CreateVolumeGroupSnapshot",
    "What was written to one volume after the other was written is in the group only with that other: the"
    " order of writes is kept.",
    "group-snapshot",
    "create",
)
async def one_moment(bench: SocketEnv) -> None:
    """A writer counts on the first volume, then on the second; the first is never behind, and at most one
    ahead."""
    first, second = [await bench.create_and_publish() for _ in range(2)]
    node = bench.nodes[0]
    paths = [os.path.join(volume.target(node), "count") for volume in (first, second)]
    stop, begun = asyncio.Event(), asyncio.Event()

    async def count() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for path in paths:
                await bench.host.call(_write_counter, path, number)
            if number == BEFORE:
                begun.set()

    writing = asyncio.create_task(count())
    waiting = asyncio.create_task(begun.wait())
    try:
        await asyncio.wait({writing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        made = await group_snapshot(bench, [first, second])
    finally:
        stop.set()
        waiting.cancel()
        await asyncio.gather(writing, waiting, return_exceptions=True)
    for volume in (first, second):
        await volume.unpublish_unstage_detach(node)
    found = []
    for volume in (first, second):
        copy = await restore_from_group(bench, made, volume)
        found.append(await bench.host.call(_read_counter, os.path.join(copy.target(node), "count")))
        await copy.unpublish_unstage_detach(node)
    ahead, behind = found
    require(
        ahead - 1 <= behind <= ahead,
        f"a writer counts on one volume, then on the other; in the group the first is at {ahead}, the second"
        f" at {behind}",
    )
    require(ahead >= BEFORE, f"{BEFORE} rounds were on both disks before it was asked for, in it are {ahead}")


def _write_counter(path: str, number: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, f"{number:0{COUNTER_SIZE}}".encode(), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_counter(path: str) -> int:
    with open(path, "rb") as file:
        return int(file.read(COUNTER_SIZE))


@case(
    "group snapshot/twice",
    "CreateVolumeGroupSnapshot",
    "The same call with the same arguments again makes nothing new: the same group of the same snapshots.",
    "group-snapshot",
    "create",
)
async def twice(bench: SocketEnv) -> None:
    volumes = [await bench.create() for _ in range(2)]
    request = group_request(bench, volumes)
    first, second = [await group_snapshot(bench, volumes, request) for _ in range(2)]
    told, again = [(one.group_snapshot_id, sorted(_ids(one))) for one in (first, second)]
    require(told == again, f"first there is {told}, then {again}")


@case(
    "group snapshot/used name",
    "CreateVolumeGroupSnapshot Errors",
    "A name that exists for other volumes is ALREADY_EXISTS.",
    "group-snapshot",
    "create",
)
async def used_name(bench: SocketEnv) -> None:
    first, second = [await bench.create() for _ in range(2)]
    request = group_request(bench, [first])
    await group_snapshot(bench, [first], request)
    other = group_request(bench, [second], request.name)
    await bench.expect_error(
        (Code.ALREADY_EXISTS,),
        bench.controller,
        "CreateVolumeGroupSnapshot",
        other,
        "with a name of other volumes'",
    )


@case(
    "group snapshot/get",
    "GetVolumeGroupSnapshot",
    "A group is found with its snapshots; one that is not there is NOT_FOUND.",
    "group-snapshot",
    "create",
)
async def get(bench: SocketEnv) -> None:
    made = await group_snapshot(bench, [await bench.create() for _ in range(2)])
    reply = await bench.controller.call("GetVolumeGroupSnapshot", get_request(bench, made))
    told = (reply.group_snapshot.group_snapshot_id, sorted(_ids(reply.group_snapshot)))
    wanted = (made.group_snapshot_id, sorted(_ids(made)))
    require(told == wanted, f"there is {wanted}, told is {told}")
    unknown = v1.GetVolumeGroupSnapshotRequest(
        group_snapshot_id=UNKNOWN, snapshot_ids=_ids(made), secrets=bench.secrets
    )
    await bench.expect_error(
        (Code.NOT_FOUND, Code.INVALID_ARGUMENT),  # the snapshots belong to another: whichever is seen first
        bench.controller,
        "GetVolumeGroupSnapshot",
        unknown,
        "of an unknown group",
    )


@case(
    "group snapshot/delete",
    "DeleteVolumeGroupSnapshot",
    "The group goes with all of its snapshots; what is not there is deleted: OK.",
    "group-snapshot",
    "create",
)
async def delete(bench: SocketEnv) -> None:
    made = await group_snapshot(bench, [await bench.create() for _ in range(2)])
    for _ in range(2):
        await bench.controller.call("DeleteVolumeGroupSnapshot", delete_request(bench, made))
    await bench.expect_error(
        (Code.NOT_FOUND,),
        bench.controller,
        "GetVolumeGroupSnapshot",
        get_request(bench, made),
        "of a group that was deleted",
    )
    if bench.capabilities.has("list-snapshots"):
        for one in _ids(made):
            request = v1.ListSnapshotsRequest(snapshot_id=one, secrets=bench.secrets)
            reply = await bench.controller.call("ListSnapshots", request)
            if reply.entries:
                raise CaseFailure(f"the group is deleted, and its snapshot {one} is still listed")
    untrack_group(bench, made)
