"""Snapshots and clones: the data of one point in time, independent of the source."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from volplane.base.backoff import Backoff, Failures
from volplane.csi import v1
from volplane.csi.outcome import CallError, Code
from volplane.testing.case import CaseTable, require
from volplane.testing.cases.expand import create_growable, expand_on_node, expand_request, expect_size
from volplane.testing.socket_env import SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

READY = 120.0  # seconds until a snapshot must be ready to use
CLOCK_DIFFERENCE = 600.0  # seconds by which the storage's clock may differ from this machine's
POLL = Backoff(0.05, 2.0)  # between looks at a snapshot that is not ready to use


def snapshot_request(env: SocketEnv, volume: VolumeUnderTest, name: str = "") -> v1.CreateSnapshotRequest:
    return v1.CreateSnapshotRequest(
        source_volume_id=volume.id, name=name or env.new_name("snapshot"), secrets=env.secrets
    )


async def snapshot(env: SocketEnv, volume: VolumeUnderTest) -> v1.Snapshot:
    """Create a snapshot, and wait until it is ready."""
    request = snapshot_request(env, volume)
    made: v1.Snapshot = (await env.controller.call("CreateSnapshot", request)).snapshot
    env.snapshots.append(made.snapshot_id)
    require(made.snapshot_id, "CreateSnapshot returned OK without a snapshot id", section="CreateSnapshot")
    require(
        made.source_volume_id == volume.id,
        f"a snapshot of {volume.id} has the source {made.source_volume_id!r}",
        section="CreateSnapshot",
    )
    return await wait_until_ready(env, request, made)


async def wait_until_ready(
    env: SocketEnv, request: v1.CreateSnapshotRequest, made: v1.Snapshot
) -> v1.Snapshot:
    end, tries = time.monotonic() + READY, Failures(POLL)
    while not made.ready_to_use:
        require(time.monotonic() < end, f"not ready to use after {READY:g} s", section="CreateSnapshot")
        await asyncio.sleep(tries.next_delay())
        made = (await env.controller.call("CreateSnapshot", request)).snapshot
    return made


async def delete_snapshot(env: SocketEnv, id: str) -> None:
    request = v1.DeleteSnapshotRequest(snapshot_id=id, secrets=env.secrets)
    await env.controller.call("DeleteSnapshot", request)


async def list_all_snapshots(env: SocketEnv, most: int = 0) -> list[str]:
    """List the ids of all snapshots, page by page."""
    found: list[str] = []
    token = ""
    while True:
        request = v1.ListSnapshotsRequest(max_entries=most, starting_token=token, secrets=env.secrets)
        reply = await env.controller.call("ListSnapshots", request)
        came = [entry.snapshot.snapshot_id for entry in reply.entries]
        require(not most or len(came) <= most, f"max_entries is {most}, got {came} entries")
        found, token = found + came, reply.next_token
        if not token:
            return found


def snapshot_source(made: v1.Snapshot) -> v1.VolumeContentSource:
    return v1.VolumeContentSource(snapshot={"snapshot_id": made.snapshot_id})


@case(
    "snapshot/one moment",
    "CreateSnapshot",
    "A snapshot has the volume's data of that time: later writes are not in it.",
    "snapshot",
    "create",
)
async def one_moment(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    before, after = env.random_data(), env.random_data()
    await volume.write(volume.target(node), before)
    made = await snapshot(env, volume)
    await volume.write(volume.target(node), after)
    await volume.unpublish_unstage_detach(node)
    restored = await env.create_and_publish(source=snapshot_source(made))
    await env.expect_data(restored, restored.target(node), before, "in a volume restored from the snapshot")
    await volume.attach_stage_publish(node)
    await env.expect_data(volume, volume.target(node), after, "in the volume itself")


@case(
    "snapshot/restored volume is its own",
    "CreateVolume",
    "A restored volume reports its source, and writing to it changes neither snapshot nor source.",
    "snapshot",
    "create",
)
async def restored_volume_is_independent(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(), env.nodes[0]
    made = await snapshot(env, volume)
    first = await env.create_and_publish(source=snapshot_source(made))
    said = first.made.content_source.snapshot.snapshot_id
    require(said == made.snapshot_id, f"it was restored from {made.snapshot_id}, and reports {said!r}")
    await first.write(first.target(node), env.random_data())
    await env.expect_data(volume, volume.target(node), written, "in the source, when its copy was written to")
    second = await env.create_and_publish(source=snapshot_source(made))
    await env.expect_data(second, second.target(node), written, "in a second volume of the snapshot")


@case(
    "snapshot/used name",
    "CreateSnapshot Errors",
    "A name that exists for another volume is ALREADY_EXISTS.",
    "snapshot",
    "create",
)
async def used_name(env: SocketEnv) -> None:
    first, second = await env.create(), await env.create()
    request = snapshot_request(env, first)
    made = (await env.controller.call("CreateSnapshot", request)).snapshot
    env.snapshots.append(made.snapshot_id)
    other = snapshot_request(env, second, request.name)
    await env.expect_error(
        (Code.ALREADY_EXISTS,), env.controller, "CreateSnapshot", other, "with a name of another volume's"
    )


@case(
    "snapshot/two of one volume",
    "CreateSnapshot",
    "Each snapshot has the data of its own time; a second one does not change the first.",
    "snapshot",
    "create",
)
async def two_of_one(env: SocketEnv) -> None:
    volume, node = await env.create_and_publish(), env.nodes[0]
    moments = []
    for _ in range(2):
        data = env.random_data()
        await volume.write(volume.target(node), data)
        moments.append((data, await snapshot(env, volume)))
    await volume.unpublish_unstage_detach(node)
    for number, (data, made) in enumerate(moments, 1):
        restored = await env.create_and_publish(source=snapshot_source(made))
        await env.expect_data(restored, restored.target(node), data, f"in snapshot {number} of 2")


@case(
    "snapshot/creation time",
    "CreateSnapshot",
    "The creation time is that of the call, and stays the same when the call is repeated.",
    "snapshot",
    "create",
)
async def creation_time(env: SocketEnv) -> None:
    volume = await env.create()
    request = snapshot_request(env, volume)
    before = time.time()
    made = (await env.controller.call("CreateSnapshot", request)).snapshot
    after = time.time()
    env.snapshots.append(made.snapshot_id)
    reported = made.creation_time.ToSeconds()
    require(
        before - CLOCK_DIFFERENCE <= reported <= after + CLOCK_DIFFERENCE,
        f"the snapshot was created at {format_time(before)}, and its creation_time is"
        f" {format_time(reported)}",
    )
    again = (await env.controller.call("CreateSnapshot", request)).snapshot.creation_time
    require(
        again == made.creation_time,
        f"it was created at {format_time(reported)}, and later at {format_time(again.ToSeconds())}",
    )


def format_time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # not a year from 1 to 9999
        return f"{seconds:.0f} s after 1970"


@case(
    "snapshot/while it grows",
    "Concurrency",
    "CreateSnapshot and ControllerExpandVolume at the same time are each OK or ABORTED; afterwards the volume"
    " has its new size and the snapshot its data.",
    "snapshot",
    "expand-controller",
    "expand-online",
    "create",
)
async def while_growing(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(capability=create_growable(env)), env.nodes[0]
    size = 2 * env.size
    wanted = snapshot_request(env, volume)
    grow = expand_request(env, volume, size)
    answers = await asyncio.gather(
        env.controller.call_once("CreateSnapshot", wanted),
        env.controller.call_once("ControllerExpandVolume", grow),
        return_exceptions=True,
    )
    if isinstance(answers[0], v1.CreateSnapshotResponse):
        env.snapshots.append(answers[0].snapshot.snapshot_id)
    for method, answer in zip(("CreateSnapshot", "ControllerExpandVolume"), answers, strict=True):
        if isinstance(answer, CallError):
            require(
                answer.code is Code.ABORTED, f"{method} at the same time: {answer}, expected OK or ABORTED"
            )
        elif isinstance(answer, BaseException):
            raise answer
    made = (await env.controller.call_until_settled("CreateSnapshot", wanted)).snapshot
    if made.snapshot_id not in env.snapshots:
        env.snapshots.append(made.snapshot_id)
    grown: Any = answers[1]
    if isinstance(grown, CallError):
        grown = await env.controller.call_until_settled("ControllerExpandVolume", grow)
    if env.capabilities.has("get"):
        get = v1.ControllerGetVolumeRequest(volume_id=volume.id)
        known = (await env.controller.call("ControllerGetVolume", get)).volume.capacity_bytes
        require(
            not known or known >= size,
            f"the volume was expanded to {size} bytes during CreateSnapshot, and has {known} now",
            section="ControllerExpandVolume",
        )
    again = await env.controller.call_until_settled("ControllerExpandVolume", grow)
    if grown.node_expansion_required or again.node_expansion_required:
        await expand_on_node(env, volume, node, size)
    await expect_size(env, volume, node, size)
    await volume.unpublish_unstage_detach(node)
    restored = await env.create_and_publish(
        source=snapshot_source(await wait_until_ready(env, wanted, made)),
        size=max(size, made.size_bytes),
        capability=volume.capability,
    )
    await env.expect_data(
        restored, restored.target(node), written, "in a snapshot taken while the volume grew"
    )


@case("snapshot/delete unknown", "DeleteSnapshot", "Deleting what does not exist is OK.", "snapshot")
async def delete_unknown(env: SocketEnv) -> None:
    request = v1.DeleteSnapshotRequest(snapshot_id="volplane-no-such-snapshot", secrets=env.secrets)
    await env.controller.call("DeleteSnapshot", request)


@case(
    "snapshot/outlives its volume",
    "DeleteVolume Errors",
    "Snapshots survive their volume, or the volume cannot be deleted: FAILED_PRECONDITION.",
    "snapshot",
    "create",
)
async def snapshot_outlives_volume(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(), env.nodes[0]
    await volume.unpublish_unstage_detach(node)
    made = await snapshot(env, volume)
    try:
        await volume.delete()
    except CallError as error:
        require(error.code is Code.FAILED_PRECONDITION, f"DeleteVolume with a snapshot: {error}")
        await env.controller.call_until_settled(
            "DeleteSnapshot", v1.DeleteSnapshotRequest(snapshot_id=made.snapshot_id, secrets=env.secrets)
        )
        return
    restored = await env.create_and_publish(source=snapshot_source(made))
    await env.expect_data(restored, restored.target(node), written, "from a snapshot whose volume is gone")


@case(
    "snapshot/list",
    "ListSnapshots",
    "A snapshot is listed by its id and by its volume's, and those of other volumes are not; for an unknown"
    " id the list is empty.",
    "snapshot",
    "list-snapshots",
    "create",
)
async def lists(env: SocketEnv) -> None:
    volume, other = await env.create(), await env.create()
    first, second, _ = [(await snapshot(env, one)).snapshot_id for one in (volume, volume, other)]
    for request, what, expected in (
        (v1.ListSnapshotsRequest(snapshot_id=first, secrets=env.secrets), first, {first}),
        (
            v1.ListSnapshotsRequest(source_volume_id=volume.id, secrets=env.secrets),
            volume.id,
            {first, second},
        ),
    ):
        reply = await env.controller.call("ListSnapshots", request)
        ids = [entry.snapshot.snapshot_id for entry in reply.entries]
        require(
            sorted(ids) == sorted(expected),
            f"of {what} there is {' and '.join(sorted(expected))}, listed are {ids}",
        )
    unknown = v1.ListSnapshotsRequest(snapshot_id="volplane-no-such-snapshot", secrets=env.secrets)
    reply = await env.controller.call("ListSnapshots", unknown)
    require(not reply.entries, f"{len(reply.entries)} entries are listed for an unknown snapshot")


@case(
    "clone/data",
    "CreateVolume",
    "A clone has the data of its source, reports it, and is independent of it.",
    "clone",
    "create",
)
async def clone(env: SocketEnv) -> None:
    (volume, written), node = await env.create_with_data(), env.nodes[0]
    await volume.unpublish_unstage_detach(node)
    source = v1.VolumeContentSource(volume={"volume_id": volume.id})
    copy = await env.create_and_publish(source=source)
    said = copy.made.content_source.volume.volume_id
    require(said == volume.id, f"it was cloned from {volume.id}, and reports {said!r}")
    await env.expect_data(copy, copy.target(node), written, "in the clone")
    await copy.write(copy.target(node), env.random_data())
    await volume.attach_stage_publish(node)
    await env.expect_data(
        volume, volume.target(node), written, "in the source, after the clone was written to"
    )


@case(
    "clone/unknown source",
    "CreateVolume Errors",
    "A source that does not exist is NOT_FOUND.",
    "clone",
    "create",
)
async def clone_unknown(env: SocketEnv) -> None:
    source = v1.VolumeContentSource(volume={"volume_id": "volplane-no-such-volume"})
    request = env.create_request(env.new_name(), source=source)
    await env.expect_error(
        (Code.NOT_FOUND,), env.controller, "CreateVolume", request, "from an unknown volume"
    )
