"""Group snapshots: several volumes at one point in time."""

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
COUNTER_SIZE = 16  # bytes of a counter: few enough for an atomic write
BEFORE = 5  # rounds written before the snapshot is requested


def group_request(
    env: SocketEnv, volumes: list[VolumeUnderTest], name: str = ""
) -> v1.CreateVolumeGroupSnapshotRequest:
    return v1.CreateVolumeGroupSnapshotRequest(
        name=name or env.new_name("groupsnapshot"),
        source_volume_ids=[volume.id for volume in volumes],
        secrets=env.secrets,
    )


def get_request(env: SocketEnv, group: v1.VolumeGroupSnapshot) -> v1.GetVolumeGroupSnapshotRequest:
    return v1.GetVolumeGroupSnapshotRequest(
        group_snapshot_id=group.group_snapshot_id, snapshot_ids=_ids(group), secrets=env.secrets
    )


def delete_request(env: SocketEnv, group: v1.VolumeGroupSnapshot) -> v1.DeleteVolumeGroupSnapshotRequest:
    return v1.DeleteVolumeGroupSnapshotRequest(
        group_snapshot_id=group.group_snapshot_id, snapshot_ids=_ids(group), secrets=env.secrets
    )


def _ids(group: v1.VolumeGroupSnapshot) -> list[str]:
    return [one.snapshot_id for one in group.snapshots]


async def group_snapshot(
    env: SocketEnv,
    volumes: list[VolumeUnderTest],
    request: v1.CreateVolumeGroupSnapshotRequest | None = None,
) -> v1.VolumeGroupSnapshot:
    """Create a snapshot, and wait until it is ready."""
    request = request or group_request(env, volumes)
    end, tries = time.monotonic() + READY, Failures(POLL)
    while True:
        reply = await env.controller.call("CreateVolumeGroupSnapshot", request)
        made: v1.VolumeGroupSnapshot = reply.group_snapshot
        if not any(known.group_snapshot_id == made.group_snapshot_id for known in env.groups):
            env.groups.append(made)
        _expect_complete(made, volumes)
        if made.ready_to_use:
            return made
        require(time.monotonic() < end, f"not ready to use after {READY:g} s")
        await asyncio.sleep(tries.next_delay())


def _expect_complete(made: v1.VolumeGroupSnapshot, volumes: list[VolumeUnderTest]) -> None:
    section = "CreateVolumeGroupSnapshot"
    require(made.group_snapshot_id, f"{section} returned OK without a group id", section=section)
    found = sorted(one.source_volume_id for one in made.snapshots)
    wanted = sorted(volume.id for volume in volumes)
    require(found == wanted, f"a group of {wanted} has snapshots of {found}", section=section)
    for one in made.snapshots:
        require(
            one.group_snapshot_id == made.group_snapshot_id,
            f"{one.snapshot_id} of {made.group_snapshot_id} has the group id {one.group_snapshot_id!r}",
            section="CreateSnapshot",
        )
    late = [one.snapshot_id for one in made.snapshots if not one.ready_to_use]
    require(not (made.ready_to_use and late), f"the group is ready, and {late} are not", section=section)


def untrack_group(env: SocketEnv, group: v1.VolumeGroupSnapshot) -> None:
    """The group was deleted: do not clean it up after the case."""
    env.groups[:] = [one for one in env.groups if one.group_snapshot_id != group.group_snapshot_id]


async def restore_from_group(
    env: SocketEnv, group: v1.VolumeGroupSnapshot, volume: VolumeUnderTest
) -> VolumeUnderTest:
    (own,) = (one for one in group.snapshots if one.source_volume_id == volume.id)
    return await env.create_and_publish(source=snapshot_source(own))


@case(
    "group snapshot/data",
    "CreateVolumeGroupSnapshot",
    "Each snapshot of the group has its volume's data of that time, and can be restored.",
    "group-snapshot",
    "create",
)
async def data(env: SocketEnv) -> None:
    volumes, node = [await env.create_and_publish() for _ in range(2)], env.nodes[0]
    before = [env.random_data() for _ in volumes]
    for volume, written in zip(volumes, before, strict=True):
        await volume.write(volume.target(node), written)
    made = await group_snapshot(env, volumes)
    for volume in volumes:
        await volume.write(volume.target(node), env.random_data())
        await volume.unpublish_unstage_detach(node)
    for number, (volume, written) in enumerate(zip(volumes, before, strict=True), 1):
        copy = await restore_from_group(env, made, volume)
        await env.expect_data(
            copy, copy.target(node), written, f"in a volume restored from snapshot {number} of 2"
        )
        await copy.unpublish_unstage_detach(node)


@case(
    "group snapshot/one moment of all",
    "CreateVolumeGroupSnapshot",
    "If a write is in the group, then all earlier writes to the other volumes are, too: the"
    " order of writes is kept.",
    "group-snapshot",
    "create",
)
async def one_moment(env: SocketEnv) -> None:
    """A writer counts on the first volume, then on the second; the first is never behind, and at most one
    ahead."""
    env.require_writable()
    first, second = [await env.create_and_publish() for _ in range(2)]
    node = env.nodes[0]
    paths = [os.path.join(volume.target(node), "count") for volume in (first, second)]
    stop, begun = asyncio.Event(), asyncio.Event()

    async def count() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for path in paths:
                await env.host.call(_write_counter, path, number)
            if number == BEFORE:
                begun.set()

    writing = asyncio.create_task(count())
    waiting = asyncio.create_task(begun.wait())
    try:
        await asyncio.wait({writing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        made = await group_snapshot(env, [first, second])
    finally:
        stop.set()
        waiting.cancel()
        await asyncio.gather(writing, waiting, return_exceptions=True)
    for volume in (first, second):
        await volume.unpublish_unstage_detach(node)
    found = []
    for volume in (first, second):
        copy = await restore_from_group(env, made, volume)
        found.append(await env.host.call(_read_counter, os.path.join(copy.target(node), "count")))
        await copy.unpublish_unstage_detach(node)
    ahead, behind = found
    require(
        ahead - 1 <= behind <= ahead,
        f"a writer counts on one volume, then on the other; in the group the first is at {ahead}, the second"
        f" at {behind}",
    )
    require(
        ahead >= BEFORE, f"{BEFORE} rounds were on both disks before the request, the snapshot has {ahead}"
    )


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
    "A repeated call with the same arguments returns the same group of the same snapshots.",
    "group-snapshot",
    "create",
)
async def twice(env: SocketEnv) -> None:
    volumes = [await env.create() for _ in range(2)]
    request = group_request(env, volumes)
    first, second = [await group_snapshot(env, volumes, request) for _ in range(2)]
    found, again = [(one.group_snapshot_id, sorted(_ids(one))) for one in (first, second)]
    require(found == again, f"first {found}, then {again}")


@case(
    "group snapshot/used name",
    "CreateVolumeGroupSnapshot Errors",
    "A name that exists for other volumes is ALREADY_EXISTS.",
    "group-snapshot",
    "create",
)
async def used_name(env: SocketEnv) -> None:
    first, second = [await env.create() for _ in range(2)]
    request = group_request(env, [first])
    await group_snapshot(env, [first], request)
    other = group_request(env, [second], request.name)
    await env.expect_error(
        (Code.ALREADY_EXISTS,),
        env.controller,
        "CreateVolumeGroupSnapshot",
        other,
        "with a name of other volumes'",
    )


@case(
    "group snapshot/get",
    "GetVolumeGroupSnapshot",
    "A group is returned with its snapshots; an unknown one is NOT_FOUND.",
    "group-snapshot",
    "create",
)
async def get(env: SocketEnv) -> None:
    made = await group_snapshot(env, [await env.create() for _ in range(2)])
    reply = await env.controller.call("GetVolumeGroupSnapshot", get_request(env, made))
    found = (reply.group_snapshot.group_snapshot_id, sorted(_ids(reply.group_snapshot)))
    wanted = (made.group_snapshot_id, sorted(_ids(made)))
    require(found == wanted, f"expected {wanted}, got {found}")
    unknown = v1.GetVolumeGroupSnapshotRequest(
        group_snapshot_id=UNKNOWN, snapshot_ids=_ids(made), secrets=env.secrets
    )
    await env.expect_error(
        (
            Code.NOT_FOUND,
            Code.INVALID_ARGUMENT,
        ),  # or the snapshots belong to another group, whichever is checked first
        env.controller,
        "GetVolumeGroupSnapshot",
        unknown,
        "of an unknown group",
    )


@case(
    "group snapshot/delete",
    "DeleteVolumeGroupSnapshot",
    "The group is deleted with all of its snapshots; deleting an unknown group is OK.",
    "group-snapshot",
    "create",
)
async def delete(env: SocketEnv) -> None:
    made = await group_snapshot(env, [await env.create() for _ in range(2)])
    for _ in range(2):
        await env.controller.call("DeleteVolumeGroupSnapshot", delete_request(env, made))
    await env.expect_error(
        (Code.NOT_FOUND,),
        env.controller,
        "GetVolumeGroupSnapshot",
        get_request(env, made),
        "of a group that was deleted",
    )
    if env.capabilities.has("list-snapshots"):
        for one in _ids(made):
            request = v1.ListSnapshotsRequest(snapshot_id=one, secrets=env.secrets)
            reply = await env.controller.call("ListSnapshots", request)
            if reply.entries:
                raise CaseFailure(f"the group is deleted, and its snapshot {one} is still listed")
    untrack_group(env, made)
