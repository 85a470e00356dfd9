"""Snapshots of several volumes at one moment, through the EBS driver, with real file systems."""

from __future__ import annotations

import asyncio
import mmap
import os
import threading
from pathlib import Path

import pytest

from tests.support.ebs import BLOCK, EbsEnvironment, ebs_environment, expect_error
from volplane.csi import v1
from volplane.csi.outcome import Code
from volplane.drivers.ebs import connect_ec2, snapshot_parameters
from volplane.drivers.ebs.constants import COMPLETE_TAG, GROUP_TAG
from volplane.drivers.ebs.groups import group_id
from volplane.sdk.errors import InvalidArgument

pytestmark = pytest.mark.root


async def group(
    w: EbsEnvironment, *volumes: str, name: str = "groupsnapshot-1", **given: str
) -> v1.VolumeGroupSnapshot:
    request = v1.CreateVolumeGroupSnapshotRequest(name=name, source_volume_ids=volumes, parameters=given)
    found: v1.VolumeGroupSnapshot = (
        await w.controller.call("CreateVolumeGroupSnapshot", request)
    ).group_snapshot
    return found


async def get(w: EbsEnvironment, group: str, *members: str) -> v1.VolumeGroupSnapshot:
    request = v1.GetVolumeGroupSnapshotRequest(group_snapshot_id=group, snapshot_ids=members)
    found: v1.VolumeGroupSnapshot = (
        await w.controller.call("GetVolumeGroupSnapshot", request)
    ).group_snapshot
    return found


async def drop(w: EbsEnvironment, group: str, *members: str) -> None:
    request = v1.DeleteVolumeGroupSnapshotRequest(group_snapshot_id=group, snapshot_ids=members)
    await w.controller.call("DeleteVolumeGroupSnapshot", request)


async def create_mounted_volume(
    w: EbsEnvironment, name: str, node: str, pod: str, snapshot: str = ""
) -> tuple[str, str]:
    """A volume, from a snapshot if one is named, and where it is mounted."""
    source = v1.VolumeContentSource(snapshot={"snapshot_id": snapshot}) if snapshot else None
    volume = await w.create(name, volume_content_source=source)
    await w.stage(volume, node, await w.publish(volume, node))
    return volume, await w.mount(volume, node, pod)


class Writer(threading.Thread):
    """Writes each number to the first place, then to the second: the second is never ahead."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.stop, self.count = threading.Event(), 0

    def run(self) -> None:
        files = [
            os.open(f"{place}/number", os.O_RDWR | os.O_CREAT, 0o600) for place in (self.first, self.second)
        ]
        while not self.stop.is_set():
            self.count += 1
            for file in files:
                os.pwrite(file, b"%012d" % self.count, 0)
                os.fsync(file)
        for file in files:
            os.close(file)


class Pounding(threading.Thread):
    """Writes large pieces past the page cache. Several together keep the device's queue filled: it does not
    stand still for a moment in which none of them is given a processor.
    """

    SIZE = 4 << 20

    def __init__(self, device: str, place: int) -> None:
        super().__init__()
        self.device, self.place = device, place
        self.stop, self.begun = threading.Event(), False

    def run(self) -> None:
        file = os.open(self.device, os.O_RDWR | os.O_DIRECT)
        piece = mmap.mmap(-1, self.SIZE)  # O_DIRECT wants it aligned
        while not self.stop.is_set():
            os.pwrite(file, piece, self.place * self.SIZE)
            self.begun = True
        os.close(file)


async def test_a_group_shows_its_volumes_at_one_moment(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        one, first = await create_mounted_volume(w, "one", "i-1", "a")
        two, second = await create_mounted_volume(w, "two", "i-1", "b")
        await w.publish(await w.create("bystander"), "i-1")
        writer = Writer(first, second)
        writer.start()
        try:
            async with asyncio.timeout(60):
                while writer.count < 5:  # noqa: ASYNC110  another thread counts
                    await asyncio.sleep(0.01)
            taken = await group(w, one, two)
        finally:
            writer.stop.set()
            await asyncio.to_thread(writer.join)
        assert taken.ready_to_use
        assert {s.source_volume_id for s in taken.snapshots} == {one, two}
        assert {s.group_snapshot_id for s in taken.snapshots} == {taken.group_snapshot_id}
        copies = [
            await create_mounted_volume(w, f"copy {pod}", "i-2", pod, s.snapshot_id)
            for pod, s in zip("ab", taken.snapshots, strict=True)
        ]
        read = {}
        for snapshot, (_, place) in zip(taken.snapshots, copies, strict=True):
            text = await w.host.call(Path(f"{place}/number").read_bytes)
            read[snapshot.source_volume_id] = int(text)
        # One more in the first is the write that had not reached the second yet.
        assert read[one] - read[two] in (0, 1)
        assert 0 < read[two] <= writer.count
        await drop(w, taken.group_snapshot_id)
        for volume, _ in copies:
            await w.wipe(volume, "i-2")
        await w.wipe(one, "i-1")
        await w.wipe(two, "i-1")


async def test_a_group_is_made_once_found_and_removed(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        one, two, three = [await w.create(name) for name in ("one", "two", "three")]
        await w.publish(one, "i-1", BLOCK)
        tags = {"csi.storage.k8s.io/volumegroupsnapshot/name": "all", "tagSpecification_1": "team=db"}
        taken = await group(w, one, two, **tags)
        members = sorted(s.snapshot_id for s in taken.snapshots)
        assert await group(w, two, one, **tags) == taken
        assert await get(w, taken.group_snapshot_id, *members) == taken
        ec2 = await connect_ec2(w.account, w.host)
        for snapshot in await ec2.snapshots():
            wanted = {"kubernetes.io/created-for/volumegroupsnapshot/name": "all", "team": "db"}
            assert wanted.items() <= snapshot.tags.items()
        await expect_error(Code.ALREADY_EXISTS, group(w, one, three, **tags))
        await expect_error(Code.INVALID_ARGUMENT, group(w, one, name="x", nonsense="1"))
        await expect_error(Code.NOT_FOUND, group(w, one, "vol-00000000", name="x"))
        await expect_error(Code.NOT_FOUND, group(w, one, "nonsense", name="x"))
        await expect_error(Code.INVALID_ARGUMENT, get(w, taken.group_snapshot_id, members[0]))
        await expect_error(Code.INVALID_ARGUMENT, drop(w, taken.group_snapshot_id, "snap-00000000"))
        listed = await w.controller.call("ListSnapshots", v1.ListSnapshotsRequest())
        assert {e.snapshot.group_snapshot_id for e in listed.entries} == {taken.group_snapshot_id}
        for _ in range(2):
            await drop(w, taken.group_snapshot_id, *members)
        assert await ec2.snapshots() == []
        await expect_error(Code.NOT_FOUND, get(w, taken.group_snapshot_id))
        await ec2.close()
        await w.unpublish(one, "i-1")


def test_an_unknown_parameter_of_a_group_is_refused() -> None:
    given = {"deletionPolicy": "Delete", "tagSpecification_1": "team=a"}
    assert snapshot_parameters.group_tags(given) == {"team": "a"}
    with pytest.raises(InvalidArgument, match="Invalid parameter key color for CreateVolumeGroupSnapshot"):
        snapshot_parameters.group_tags({**given, "color": "red"})


async def test_volumes_on_two_nodes_have_no_moment_in_common(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        one, two = await w.create("one"), await w.create("two")
        await w.publish(one, "i-1", BLOCK)
        await w.publish(two, "i-2", BLOCK)
        text = await expect_error(Code.FAILED_PRECONDITION, group(w, one, two))
        assert "i-1, i-2" in text
        await w.unpublish(one, "i-1")
        await w.unpublish(two, "i-2")


async def test_what_was_cut_off_is_taken_anew_and_what_was_lost_is_not_replaced(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        one, two = await w.create("one"), await w.create("two")
        ec2 = await connect_ec2(w.account, w.host)
        tags = {GROUP_TAG: group_id("groupsnapshot-1")}
        stale = await ec2.create_snapshot(one, "", tags)  # as a driver that was killed leaves it
        taken = await group(w, one, two)
        assert len(taken.snapshots) == 2
        assert stale.id not in {s.snapshot_id for s in taken.snapshots}
        assert all(COMPLETE_TAG in s.tags for s in await ec2.snapshots())
        kept, lost = taken.snapshots
        await ec2.delete_snapshot(lost.snapshot_id)
        text = await expect_error(Code.FAILED_PRECONDITION, group(w, one, two))
        assert lost.source_volume_id in text
        assert [s.id for s in await ec2.snapshots()] == [kept.snapshot_id]
        await ec2.close()


async def test_raw_devices_that_do_not_stand_still_are_refused(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        one, two = await w.create("one"), await w.create("two")
        device = w.paths["i-1"].real((await w.publish(one, "i-1", BLOCK))["devicePath"])
        await w.publish(two, "i-1", BLOCK)
        writers = [Pounding(device, place) for place in range(8)]
        try:
            for writer in writers:
                writer.start()
            async with asyncio.timeout(60):
                while not all(writer.begun for writer in writers):  # noqa: ASYNC110  another thread says so
                    await asyncio.sleep(0.01)
            text = await expect_error(Code.FAILED_PRECONDITION, group(w, one, two))
        finally:
            for writer in writers:
                writer.stop.set()
            for writer in writers:
                await asyncio.to_thread(writer.join)
        assert "is being written" in text
        taken = await group(w, one, two)  # nothing of the refused one is left in the way
        assert taken.ready_to_use
        for volume in (one, two):
            await w.unpublish(volume, "i-1")
