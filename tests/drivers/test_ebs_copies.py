"""Snapshots, clones, modification and growth through the EBS driver, with real file systems."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.ebs import BLOCK, EXT4, GIB, MODE, EbsEnvironment, ebs_environment, expect_error
from tests.support.vm_tests import CAP_SYS_RESOURCE, has_capability
from volplane.csi import convert, v1
from volplane.csi.outcome import Code
from volplane.drivers.ebs.parameters import parse_change
from volplane.sdk.errors import InvalidArgument

pytestmark = pytest.mark.root


def from_snapshot(snapshot: str) -> v1.VolumeContentSource:
    return v1.VolumeContentSource(snapshot={"snapshot_id": snapshot})


def from_volume(volume: str) -> v1.VolumeContentSource:
    return v1.VolumeContentSource(volume={"volume_id": volume})


async def snapshot(
    w: EbsEnvironment, volume: str, name: str = "snapshot-1", **parameters: str
) -> v1.Snapshot:
    request = v1.CreateSnapshotRequest(source_volume_id=volume, name=name, parameters=parameters)
    found: v1.Snapshot = (await w.controller.call("CreateSnapshot", request)).snapshot
    return found


async def up(w: EbsEnvironment, volume: str, node: str, capability: v1.VolumeCapability) -> str:
    await w.stage(volume, node, await w.publish(volume, node, capability), capability)
    return await w.mount(volume, node, "a", capability)


async def size_of_filesystem(w: EbsEnvironment, path: str) -> int:
    return (await w.host.stats(path)).capacity


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
async def test_a_snapshot_of_a_mounted_volume_becomes_a_larger_volume(tmp_path: Path, kind: str) -> None:
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mkfs.{kind} is not installed")
    capability = convert.capability(MODE.SINGLE_NODE_WRITER, fs_type=kind)
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        target = await up(w, volume, "i-1", capability)
        note = Path(target) / "note"
        await w.host.call(note.write_bytes, b"as it was")  # not even synced
        taken = await snapshot(w, volume)
        assert (taken.ready_to_use, taken.size_bytes, taken.source_volume_id) == (True, GIB, volume)
        assert taken.creation_time.seconds > 0
        assert await snapshot(w, volume) == taken
        await w.host.call(note.write_bytes, b"as it is now")
        # btrfs refuses to mount two file systems of one identity on one machine; the source goes first.
        await w.wipe(volume, "i-1")
        copy = await w.create("restored", 3, volume_content_source=from_snapshot(taken.snapshot_id))
        target = await up(w, copy, "i-2", capability)
        assert await w.host.call((Path(target) / "note").read_bytes) == b"as it was"
        assert await size_of_filesystem(w, target) > 2.5 * GIB
        await w.wipe(copy, "i-2")
        for _ in range(2):
            request = v1.DeleteSnapshotRequest(snapshot_id=taken.snapshot_id)
            await w.controller.call("DeleteSnapshot", request)


async def test_a_clone_lives_beside_its_source(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        target = await up(w, volume, "i-1", EXT4)
        await w.host.atomic_write(f"{target}/note", b"shared past", durable=True)
        request = v1.CreateVolumeRequest(
            name="clone", volume_capabilities=[EXT4], volume_content_source=from_volume(volume)
        )
        reply = await w.controller.call("CreateVolume", request)
        assert reply.volume.content_source == from_volume(volume)
        assert reply.volume.capacity_bytes == GIB
        copy = reply.volume.volume_id
        assert (await w.controller.call("CreateVolume", request)).volume.volume_id == copy
        other = await up(w, copy, "i-2", EXT4)
        assert await w.host.call(Path(f"{other}/note").read_bytes) == b"shared past"
        await w.host.atomic_write(f"{other}/note", b"own future", durable=True)
        assert await w.host.call(Path(f"{target}/note").read_bytes) == b"shared past"
        await w.wipe(volume, "i-1")
        await w.wipe(copy, "i-2")


async def test_names_sources_and_sizes_that_do_not_fit(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume, other = await w.create("one", 2), await w.create("two")
        taken = await snapshot(w, volume)
        await expect_error(Code.ALREADY_EXISTS, snapshot(w, other))
        await expect_error(Code.NOT_FOUND, snapshot(w, "vol-00000000", "x"))
        await expect_error(Code.INVALID_ARGUMENT, snapshot(w, volume, "x", nonsense="1"))
        source = from_snapshot(taken.snapshot_id)
        await expect_error(Code.OUT_OF_RANGE, w.create("three", 1, volume_content_source=source))
        await expect_error(Code.ALREADY_EXISTS, w.create("one", 2, volume_content_source=source))
        unknown = from_snapshot("snap-00000000")
        await expect_error(Code.NOT_FOUND, w.create("four", 2, volume_content_source=unknown))
        gone = from_volume("vol-00000000")
        await expect_error(Code.NOT_FOUND, w.create("five", 2, volume_content_source=gone))
        elsewhere = v1.TopologyRequirement(
            requisite=[v1.Topology(segments={"topology.kubernetes.io/zone": "us-east-1b"})]
        )
        clone = {"volume_content_source": from_volume(volume), "accessibility_requirements": elsewhere}
        await expect_error(Code.RESOURCE_EXHAUSTED, w.create("six", 2, **clone))


async def test_snapshots_are_listed_in_pages_and_found(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        one, two = await w.create("one"), await w.create("two")
        taken = [await snapshot(w, one, f"s{n}") for n in range(3)] + [await snapshot(w, two, "s3")]

        async def list_snapshots(**wanted: Any) -> tuple[list[str], str]:
            reply = await w.controller.call("ListSnapshots", v1.ListSnapshotsRequest(**wanted))
            return [e.snapshot.snapshot_id for e in reply.entries], reply.next_token

        everything, token = await list_snapshots()
        assert everything == sorted(s.snapshot_id for s in taken)
        assert not token
        first, token = await list_snapshots(max_entries=3)
        rest, end = await list_snapshots(max_entries=3, starting_token=token)
        assert (first + rest, end) == (everything, "")
        assert await list_snapshots(source_volume_id=two) == ([taken[3].snapshot_id], "")
        assert await list_snapshots(snapshot_id=taken[0].snapshot_id) == ([taken[0].snapshot_id], "")
        assert await list_snapshots(snapshot_id="snap-nonsense") == ([], "")
        await expect_error(Code.ABORTED, list_snapshots(starting_token="nonsense"))
        request = v1.GetSnapshotRequest(snapshot_id=taken[1].snapshot_id)
        assert (await w.controller.call("GetSnapshot", request)).snapshot == taken[1]
        await expect_error(
            Code.NOT_FOUND, w.controller.call("GetSnapshot", v1.GetSnapshotRequest(snapshot_id="x"))
        )


async def test_a_disk_changes_its_type_and_speed(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume = await w.create(gib=8)

        async def modify(**wanted: str) -> None:
            request = v1.ControllerModifyVolumeRequest(volume_id=volume, mutable_parameters=wanted)
            await w.controller.call("ControllerModifyVolume", request)

        for wanted in ({"iops": "4000", "throughput": "250"}, {"type": "io2", "iops": "500"}):
            for _ in range(2):
                await modify(**wanted)
        await expect_error(Code.INVALID_ARGUMENT, modify(type="floppy"))
        await expect_error(Code.INVALID_ARGUMENT, modify(type="st1"))  # 8 GiB are too small for it
        await expect_error(Code.INVALID_ARGUMENT, modify(colour="red"))
        request = v1.ControllerGetVolumeRequest(volume_id=volume)
        reply = await w.controller.call("ControllerGetVolume", request)
        assert not reply.status.volume_condition.abnormal
        assert reply.status.volume_condition.message == "the disk is available"
        await w.delete(volume)
        await expect_error(Code.NOT_FOUND, modify(type="gp3"))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"iops": "3000"}, {}),
        ({"type": "gp3", "throughput": "125"}, {}),
        ({"iops": "4000"}, {"Iops": "4000"}),
        ({"iopsPerGB": "100"}, {"Iops": "10000"}),
        ({"type": "io2", "iops": "3000"}, {"VolumeType": "io2", "Iops": "3000"}),
        ({"type": "st1"}, {"VolumeType": "st1"}),
    ],
)
def test_only_what_differs_is_asked_for(given: dict[str, str], wanted: dict[str, str]) -> None:
    assert parse_change(given).changes(100, type="gp3", iops=3000, speed=125) == wanted


def test_a_change_of_something_else_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        parse_change({"encrypted": "true"})


async def test_ext4_grows_when_it_is_staged_again(tmp_path: Path) -> None:
    """Mounted, the kernel lets only the powerful; a stage does what an expansion could not."""
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        await up(w, volume, "i-1", EXT4)
        grow = v1.ControllerExpandVolumeRequest(
            volume_id=volume, capacity_range={"required_bytes": 2 * GIB}, volume_capability=EXT4
        )
        await w.controller.call("ControllerExpandVolume", grow)
        request = v1.NodeExpandVolumeRequest(
            volume_id=volume, volume_path=w.paths["i-1"].csi_target("a", "pv")
        )
        if not has_capability(CAP_SYS_RESOURCE):
            text = await expect_error(
                Code.FAILED_PRECONDITION, w.nodes["i-1"].call("NodeExpandVolume", request)
            )
            assert "while it is mounted" in text
        await w.unmount(volume, "i-1", "a")
        await w.unstage(volume, "i-1")
        await w.stage(volume, "i-1", await w.publish(volume, "i-1"))
        target = await w.mount(volume, "i-1", "a")
        assert await size_of_filesystem(w, target) > 1.8 * GIB
        reply = await w.nodes["i-1"].call("NodeExpandVolume", request)
        assert reply.capacity_bytes == 2 * GIB
        await w.wipe(volume, "i-1")


async def test_a_block_volume_shows_its_new_size_at_once(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        context = await w.publish(volume, "i-1", BLOCK)
        await w.stage(volume, "i-1", context, BLOCK)
        target = await w.mount(volume, "i-1", "a", BLOCK)
        grow = v1.ControllerExpandVolumeRequest(
            volume_id=volume, capacity_range={"required_bytes": 2 * GIB}, volume_capability=BLOCK
        )
        reply = await w.controller.call("ControllerExpandVolume", grow)
        assert (reply.capacity_bytes, reply.node_expansion_required) == (2 * GIB, False)
        assert await w.host.size_of(target) == 2 * GIB
        path = w.paths["i-1"].csi_target("a", "pv")
        expand = v1.NodeExpandVolumeRequest(
            volume_id=volume, volume_path=path, capacity_range={"required_bytes": 2 * GIB}
        )
        assert (await w.nodes["i-1"].call("NodeExpandVolume", expand)).capacity_bytes == 2 * GIB
        expand.capacity_range.required_bytes = 3 * GIB
        await expect_error(Code.INTERNAL, w.nodes["i-1"].call("NodeExpandVolume", expand))
        stats = v1.NodeGetVolumeStatsRequest(volume_id=volume, volume_path=path)
        reply = await w.nodes["i-1"].call("NodeGetVolumeStats", stats)
        assert [u.total for u in reply.usage] == [2 * GIB]
        assert not reply.volume_condition.abnormal
        with open(os.path.realpath(target), "rb") as device:  # noqa: ASYNC230, ASYNC240
            assert device.read(4096) == bytes(4096)  # it was not formatted
        await w.wipe(volume, "i-1")


async def test_a_file_system_that_went_read_only_is_reported(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        target = await up(w, volume, "i-1", EXT4)
        path = w.paths["i-1"].csi_target("a", "pv")
        stats = v1.NodeGetVolumeStatsRequest(volume_id=volume, volume_path=path)
        assert not (await w.nodes["i-1"].call("NodeGetVolumeStats", stats)).volume_condition.abnormal
        staging = w.paths["i-1"].real(w.paths["i-1"].staging("ebs.csi.aws.com", volume))
        await w.host.run(["mount", "-o", "remount,ro", staging])
        reply = await w.nodes["i-1"].call("NodeGetVolumeStats", stats)
        assert reply.volume_condition.abnormal
        assert "read-only" in reply.volume_condition.message
        assert target
        await w.wipe(volume, "i-1")


async def test_capacity_is_what_the_machine_has(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        request = v1.GetCapacityRequest(parameters={"type": "gp3"})
        before = await w.controller.call("GetCapacity", request)
        assert before.maximum_volume_size.value <= before.available_capacity
        volume = await w.create(gib=16)
        after = await w.controller.call("GetCapacity", request)
        assert after.available_capacity < before.available_capacity
        request.accessible_topology.segments["topology.kubernetes.io/zone"] = "mars-1a"
        assert (await w.controller.call("GetCapacity", request)).available_capacity == 0
        await w.delete(volume)


async def test_a_copy_can_be_requested_again_after_its_source_was_expanded(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume = await w.create("source", 1)
        copy = await w.create("copy", 1, volume_content_source=from_volume(volume))
        wanted = {"required_bytes": 2 * GIB}
        request = v1.ControllerExpandVolumeRequest(volume_id=volume, capacity_range=wanted)
        await w.controller.call("ControllerExpandVolume", request)
        assert await w.create("copy", 1, volume_content_source=from_volume(volume)) == copy
        again = w.create("another", 1, volume_content_source=from_volume(volume))
        await expect_error(Code.OUT_OF_RANGE, again)


async def test_a_copy_can_be_requested_again_after_its_source_was_deleted(tmp_path: Path) -> None:
    """A caller that never got the answer would otherwise leave the copy behind."""
    async with ebs_environment(tmp_path) as w:
        volume = await w.create("source", 1)
        request = v1.CreateSnapshotRequest(source_volume_id=volume, name="snapshot")
        snapshot = (await w.controller.call("CreateSnapshot", request)).snapshot.snapshot_id
        sources = {"restored": from_snapshot(snapshot), "clone": from_volume(volume)}
        copies = {name: await w.create(name, 1, volume_content_source=s) for name, s in sources.items()}
        await w.controller.call("DeleteSnapshot", v1.DeleteSnapshotRequest(snapshot_id=snapshot))
        await w.delete(volume)
        for name, source in sources.items():
            assert await w.create(name, 1, volume_content_source=source) == copies[name]
            await expect_error(Code.ALREADY_EXISTS, w.create(name, 2, volume_content_source=source))
            await expect_error(Code.NOT_FOUND, w.create("another", 1, volume_content_source=source))
