"""Snapshots and clones: one moment of a volume, and independent of it from then on."""

from __future__ import annotations

import asyncio
import time

from volplane.base.backoff import Backoff, Failures
from volplane.csi import v1
from volplane.csi.outcome import CallError, Code
from volplane.testing.case import CaseTable, require
from volplane.testing.socket_env import SocketEnv
from volplane.testing.volume import VolumeUnderTest

case = CaseTable()

READY = 120.0  # seconds until a snapshot must be ready to use
POLL = Backoff(0.05, 2.0)  # between looks at a snapshot that is not ready to use


def snapshot_request(bench: SocketEnv, volume: VolumeUnderTest, name: str = "") -> v1.CreateSnapshotRequest:
    return v1.CreateSnapshotRequest(
        source_volume_id=volume.id, name=name or bench.new_name("snapshot"), secrets=bench.secrets
    )


async def snapshot(bench: SocketEnv, volume: VolumeUnderTest) -> v1.Snapshot:
    """Cut, and ready to be restored."""
    request = snapshot_request(bench, volume)
    made: v1.Snapshot = (await bench.controller.call("CreateSnapshot", request)).snapshot
    bench.snapshots.append(made.snapshot_id)
    require(made.snapshot_id, "CreateSnapshot is OK and names no snapshot", section="CreateSnapshot")
    require(
        made.source_volume_id == volume.id,
        f"a snapshot of {volume.id} says that it is one of {made.source_volume_id!r}",
        section="CreateSnapshot",
    )
    end, tries = time.monotonic() + READY, Failures(POLL)
    while not made.ready_to_use:
        require(time.monotonic() < end, f"not ready to use after {READY:g} s", section="CreateSnapshot")
        await asyncio.sleep(tries.next_delay())
        made = (await bench.controller.call("CreateSnapshot", request)).snapshot
    return made


async def list_all_snapshots(bench: SocketEnv, most: int = 0) -> list[str]:
    """The ids of all snapshots, page by page."""
    found: list[str] = []
    token = ""
    while True:
        request = v1.ListSnapshotsRequest(max_entries=most, starting_token=token, secrets=bench.secrets)
        reply = await bench.controller.call("ListSnapshots", request)
        came = [entry.snapshot.snapshot_id for entry in reply.entries]
        require(not most or len(came) <= most, f"{most} entries are the most that is asked for, {came} came")
        found, token = found + came, reply.next_token
        if not token:
            return found


def snapshot_source(made: v1.Snapshot) -> v1.VolumeContentSource:
    return v1.VolumeContentSource(snapshot={"snapshot_id": made.snapshot_id})


@case(
    "snapshot/one moment",
    "CreateSnapshot",
    "A snapshot is the volume as it was when it was cut: what is written later is not in it.",
    "snapshot",
    "create",
)
async def one_moment(bench: SocketEnv) -> None:
    volume, node = await bench.create_and_publish(), bench.nodes[0]
    before, after = bench.random_data(), bench.random_data()
    await volume.write(volume.target(node), before)
    made = await snapshot(bench, volume)
    await volume.write(volume.target(node), after)
    await volume.unpublish_unstage_detach(node)
    restored = await bench.create_and_publish(source=snapshot_source(made))
    await bench.expect_data(restored, restored.target(node), before, "in a volume restored from the snapshot")
    await volume.attach_stage_publish(node)
    await bench.expect_data(volume, volume.target(node), after, "in the volume itself")


@case(
    "snapshot/restored volume is its own",
    "CreateVolume",
    "A restored volume says what it was made from, and writing to it changes neither snapshot nor source.",
    "snapshot",
    "create",
)
async def restored_volume_is_independent(bench: SocketEnv) -> None:
    (volume, written), node = await bench.create_with_data(), bench.nodes[0]
    made = await snapshot(bench, volume)
    first = await bench.create_and_publish(source=snapshot_source(made))
    said = first.made.content_source.snapshot.snapshot_id
    require(said == made.snapshot_id, f"it is made from {made.snapshot_id}, and says {said!r}")
    await first.write(first.target(node), bench.random_data())
    await bench.expect_data(
        volume, volume.target(node), written, "in the source, when its copy was written to"
    )
    second = await bench.create_and_publish(source=snapshot_source(made))
    await bench.expect_data(second, second.target(node), written, "in a second volume of the snapshot")


@case(
    "snapshot/used name",
    "CreateSnapshot Errors",
    "A name that exists for another volume is ALREADY_EXISTS.",
    "snapshot",
    "create",
)
async def used_name(bench: SocketEnv) -> None:
    first, second = await bench.create(), await bench.create()
    request = snapshot_request(bench, first)
    made = (await bench.controller.call("CreateSnapshot", request)).snapshot
    bench.snapshots.append(made.snapshot_id)
    other = snapshot_request(bench, second, request.name)
    await bench.expect_error(
        (Code.ALREADY_EXISTS,), bench.controller, "CreateSnapshot", other, "with a name of another volume's"
    )


@case(
    "snapshot/two of one volume",
    "CreateSnapshot",
    "Each snapshot of a volume is its own moment; a second one leaves the first as it is.",
    "snapshot",
    "create",
)
async def two_of_one(bench: SocketEnv) -> None:
    volume, node = await bench.create_and_publish(), bench.nodes[0]
    moments = []
    for _ in range(2):
        data = bench.random_data()
        await volume.write(volume.target(node), data)
        moments.append((data, await snapshot(bench, volume)))
    await volume.unpublish_unstage_detach(node)
    for number, (data, made) in enumerate(moments, 1):
        restored = await bench.create_and_publish(source=snapshot_source(made))
        await bench.expect_data(restored, restored.target(node), data, f"in snapshot {number} of 2")


@case("snapshot/delete unknown", "DeleteSnapshot", "What is not there is deleted: OK.", "snapshot")
async def delete_unknown(bench: SocketEnv) -> None:
    request = v1.DeleteSnapshotRequest(snapshot_id="volplane-no-such-snapshot", secrets=bench.secrets)
    await bench.controller.call("DeleteSnapshot", request)


@case(
    "snapshot/outlives its volume",
    "DeleteVolume Errors",
    "Independent snapshots outlive their volume; with others the volume cannot be deleted:"
    " FAILED_PRECONDITION.",
    "snapshot",
    "create",
)
async def snapshot_outlives_volume(bench: SocketEnv) -> None:
    (volume, written), node = await bench.create_with_data(), bench.nodes[0]
    await volume.unpublish_unstage_detach(node)
    made = await snapshot(bench, volume)
    try:
        await volume.delete()
    except CallError as error:
        require(error.code is Code.FAILED_PRECONDITION, f"DeleteVolume with a snapshot: {error}")
        await bench.controller.call_until_settled(
            "DeleteSnapshot", v1.DeleteSnapshotRequest(snapshot_id=made.snapshot_id, secrets=bench.secrets)
        )
        return
    restored = await bench.create_and_publish(source=snapshot_source(made))
    await bench.expect_data(restored, restored.target(node), written, "from a snapshot whose volume is gone")


@case(
    "snapshot/list",
    "ListSnapshots",
    "A snapshot is found by its id and by its volume's; one that does not exist is an empty answer.",
    "snapshot",
    "list-snapshots",
    "create",
)
async def lists(bench: SocketEnv) -> None:
    volume = await bench.create()
    made = await snapshot(bench, volume)
    for request in (
        v1.ListSnapshotsRequest(snapshot_id=made.snapshot_id, secrets=bench.secrets),
        v1.ListSnapshotsRequest(source_volume_id=volume.id, secrets=bench.secrets),
    ):
        reply = await bench.controller.call("ListSnapshots", request)
        ids = [entry.snapshot.snapshot_id for entry in reply.entries]
        require(ids == [made.snapshot_id], f"there is {made.snapshot_id}, listed is {ids}")
    unknown = v1.ListSnapshotsRequest(snapshot_id="volplane-no-such-snapshot", secrets=bench.secrets)
    reply = await bench.controller.call("ListSnapshots", unknown)
    require(not reply.entries, f"of an unknown snapshot {len(reply.entries)} are listed")


@case(
    "clone/data",
    "CreateVolume",
    "A clone has the data of its source, says what it was made from, and is independent of it.",
    "clone",
    "create",
)
async def clone(bench: SocketEnv) -> None:
    (volume, written), node = await bench.create_with_data(), bench.nodes[0]
    await volume.unpublish_unstage_detach(node)
    source = v1.VolumeContentSource(volume={"volume_id": volume.id})
    copy = await bench.create_and_publish(source=source)
    said = copy.made.content_source.volume.volume_id
    require(said == volume.id, f"it is made from {volume.id}, and says {said!r}")
    await bench.expect_data(copy, copy.target(node), written, "in the clone")
    await copy.write(copy.target(node), bench.random_data())
    await volume.attach_stage_publish(node)
    await bench.expect_data(
        volume, volume.target(node), written, "in the source, after the clone was written to"
    )


@case(
    "clone/unknown source",
    "CreateVolume Errors",
    "A source that does not exist is NOT_FOUND.",
    "clone",
    "create",
)
async def clone_unknown(bench: SocketEnv) -> None:
    source = v1.VolumeContentSource(volume={"volume_id": "volplane-no-such-volume"})
    request = bench.create_request(bench.new_name(), source=source)
    await bench.expect_error(
        (Code.NOT_FOUND,), bench.controller, "CreateVolume", request, "from an unknown volume"
    )
