"""The disk service as a process of its own, killed at every point between two steps, and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from volplane.drivers.ebs import AwsAccount, connect_ec2
from volplane.drivers.ebs.ec2 import Ec2, Ec2Error, Ec2Unreachable
from volplane.host import Host, devices

pytestmark = [pytest.mark.root, pytest.mark.slow]

PROGRAM = """
import asyncio, sys
from volplane import cloud
from volplane.host import Host
from volplane.store.sqlite import SqliteStore

async def main(directory):
    store = await SqliteStore.open(directory + "/state.db")
    node = cloud.CloudInstance("i-1", "us-east-1a", directory + "/n1")
    settings = cloud.CloudOptions(data_dir=directory, access_key="a", secret_key="b", instances=(node,))
    await cloud.run(settings, Host(), store, ready=lambda address: print(address, flush=True))

asyncio.run(main(sys.argv[1]))
"""
GIVEN = {"Size": "1", "AvailabilityZone": "us-east-1a", "VolumeType": "gp3", "ClientToken": "t"}
TEXT = b"what was written stays written"
POINTS = [
    f"cloud:{action}:{point}"
    for action in (
        "CreateVolume",
        "AttachVolume",
        "ModifyVolume",
        "CreateSnapshot",
        "DeleteSnapshot",
        "DetachVolume",
        "DeleteVolume",
    )
    for point in ("asked", "intent", "effect", "result")
]


@asynccontextmanager
async def service(
    directory: Path, failpoint: str = ""
) -> AsyncIterator[tuple[Ec2, asyncio.subprocess.Process]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        str(directory),
        env={**os.environ, "VOLPLANE_FAILPOINT": failpoint},
        stdout=asyncio.subprocess.PIPE,
    )
    host = Host()
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    ec2 = await connect_ec2(AwsAccount(address, access_key="a", secret_key="b"), host)
    try:
        yield ec2, process
    finally:
        await ec2.close()
        await host.close()
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


def write(device: Path) -> None:
    descriptor = os.open(device, os.O_RDWR | os.O_SYNC)
    os.pwrite(descriptor, TEXT, 4096)
    os.close(descriptor)


def read(device: Path) -> bytes:
    descriptor = os.open(device, os.O_RDONLY)
    try:
        return os.pread(descriptor, len(TEXT), 4096)
    finally:
        os.close(descriptor)


async def use_volume(ec2: Ec2, device: Path, written: list[bool]) -> None:
    """Each step as a driver does it: what is done already is fine."""
    volume = await ec2.create_volume(GIVEN, {})
    if not volume.attachments:
        await ec2.attach_volume(volume.id, "i-1", "/dev/xvdba")
    if written:
        assert read(device) == TEXT
    else:
        write(device)
        written.append(True)
    if (await ec2.volume(volume.id)).size == 1:
        await ec2.modify_volume(volume.id, {"Size": "2"})
    assert await asyncio.to_thread(devices.size_of, str(device)) == 2 << 30
    snapshots = await ec2.snapshots() or [await ec2.create_snapshot(volume.id, "", {})]
    await ec2.delete_snapshot(snapshots[0].id)
    await ec2.detach_volume(volume.id, "i-1")
    await ec2.delete_volume(volume.id)


@pytest.mark.parametrize("point", POINTS)
async def test_the_next_start_finishes_what_a_kill_interrupted(tmp_path: Path, point: str) -> None:
    device, written = tmp_path / "n1" / "xvdba", list[bool]()
    async with service(tmp_path, point) as (ec2, process):
        with pytest.raises(Ec2Unreachable):
            await use_volume(ec2, device, written)
        assert await process.wait() == -signal.SIGKILL
    if point.startswith("cloud:DeleteVolume"):
        written.clear()  # the volume was going; a new one comes out empty
    async with service(tmp_path) as (ec2, _):
        for volume in await ec2.volumes():
            assert volume.state in ("available", "in-use")
            assert all(a.state == "attached" for a in volume.attachments)
        assert all(s.state == "completed" for s in await ec2.snapshots())
        await use_volume(ec2, device, written)
        assert await ec2.volumes() == []
        assert await ec2.snapshots() == []
        with pytest.raises(Ec2Error):
            await ec2.volume("vol-00000000")
    assert os.listdir(tmp_path / "disks") == []
    assert os.listdir(tmp_path / "snapshots") == []
    assert not [f for f in devices.loops().values() if f.startswith(str(tmp_path))]


@pytest.mark.parametrize("point", ["asked", "intent", "effect", "member", "result"])
async def test_a_set_of_snapshots_is_there_as_a_whole_or_not_at_all(tmp_path: Path, point: str) -> None:
    async with service(tmp_path, f"cloud:CreateSnapshots:{point}") as (ec2, process):
        for number, device in enumerate(("/dev/xvdba", "/dev/xvdbb")):
            volume = await ec2.create_volume({**GIVEN, "ClientToken": str(number)}, {})
            await ec2.attach_volume(volume.id, "i-1", device)
        with pytest.raises(Ec2Unreachable):
            await ec2.create_snapshots("i-1", [], "", {})
        assert await process.wait() == -signal.SIGKILL
    async with service(tmp_path) as (ec2, _):
        found = await ec2.snapshots()
        assert len(found) == (2 if point == "result" else 0)
        assert all(s.state == "completed" for s in found)
        made = await ec2.create_snapshots("i-1", [], "", {})
        assert {s.volume for s in made} == {v.id for v in await ec2.volumes()}
        assert len(os.listdir(tmp_path / "snapshots")) == len(found) + 2
        for volume in await ec2.volumes():
            await ec2.detach_volume(volume.id, "i-1")
    assert not [f for f in devices.loops().values() if f.startswith(str(tmp_path))]


@pytest.mark.parametrize("point", ["asked", "intent", "effect", "result"])
async def test_a_copied_snapshot_is_there_with_its_data_or_not_at_all(tmp_path: Path, point: str) -> None:
    device = tmp_path / "n1" / "xvdba"
    async with service(tmp_path, f"cloud:CopySnapshot:{point}") as (ec2, process):
        volume = await ec2.create_volume(GIVEN, {})
        await ec2.attach_volume(volume.id, "i-1", "/dev/xvdba")
        write(device)
        taken = await ec2.create_snapshot(volume.id, "", {})
        copy = {"SourceRegion": "us-east-1", "SourceSnapshotId": taken.id}
        lock = {"SnapshotId": taken.id, "LockMode": "governance", "LockDuration": "1"}
        await ec2.call("LockSnapshot", lock)
        fast = {"SourceSnapshotId.1": taken.id, "AvailabilityZone.1": "us-east-1a"}
        await ec2.call("EnableFastSnapshotRestores", fast)
        with pytest.raises(Ec2Unreachable):
            await ec2.call("CopySnapshot", copy)
        assert await process.wait() == -signal.SIGKILL
    async with service(tmp_path) as (ec2, _):
        copied = [s for s in await ec2.snapshots() if s.id != taken.id]
        assert [s.state for s in copied] == (["completed"] if point == "result" else [])
        with pytest.raises(Ec2Error, match="OperationNotPermitted"):
            await ec2.delete_snapshot(taken.id)
        answer = await ec2.call("DescribeFastSnapshotRestores", {})
        assert answer.findtext("fastSnapshotRestoreSet/item/snapshotId") == taken.id
        name = (await ec2.call("CopySnapshot", copy)).findtext("snapshotId", "")
        for snapshot in (name, *(s.id for s in copied)):
            assert read(tmp_path / "snapshots" / f"{snapshot}.img") == TEXT
        assert len(os.listdir(tmp_path / "snapshots")) == len(copied) + 2
        await ec2.detach_volume(volume.id, "i-1")


async def test_two_services_do_not_share_a_directory(tmp_path: Path) -> None:
    async with service(tmp_path):
        second = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, str(tmp_path), stderr=asyncio.subprocess.PIPE
        )
        _, errors = await second.communicate()
        assert second.returncode
        assert "in use by process" in errors.decode()
