"""Loop devices, what is on them, and formatting them."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Callable
from io import BufferedRandom
from pathlib import Path

import pytest

from tests.support import loop_device_holder
from tests.support.vm_tests import CAP_SYS_RESOURCE
from volplane.host import (
    UNKNOWN,
    DeviceBusy,
    Filesystem,
    Host,
    HostCommandFailed,
    HostCommandMissing,
    UnreadableDevice,
    devices,
    filesystems,
)

pytestmark = pytest.mark.root

Disk = Callable[..., str]


def write(device: str, place: int, data: bytes) -> None:
    with open(device, "r+b", buffering=0) as file:
        file.seek(place)
        file.write(data)
        os.fsync(file.fileno())


async def test_a_file_gets_one_device_however_often_it_is_attached(
    host: Host, room: Path, disk: Disk
) -> None:
    device = disk()
    assert (await host.loops())[device] == str(room / "disk-0.img")
    assert await host.loop_attach(str(room / "disk-0.img")) == device
    assert await host.backing_file(device) == str(room / "disk-0.img")
    assert await host.size_of(device) == 64 << 20


async def test_a_device_is_detached_once(host: Host, room: Path, disk: Disk) -> None:
    device, file = disk(), str(room / "disk-0.img")
    assert await host.loop_detach(device, file)
    # The number may be reused at once.
    assert not await host.loop_detach(device, file)
    assert (await host.loops()).get(device) != file
    assert await host.backing_file(device) != file


async def test_a_device_that_belongs_to_another_file_by_now_is_left_alone(
    host: Host, room: Path, disk: Disk
) -> None:
    device = disk()
    assert not await host.loop_detach(device, str(room / "another.img"))
    assert device in await host.loops()
    with held_open(device, os.O_EXCL):  # like a mounted file system
        assert not await host.loop_detach(device, str(room / "another.img"))
        with pytest.raises(DeviceBusy):
            await host.loop_detach(device, str(room / "disk-0.img"))
    (room / "disk-0.img").unlink()
    assert await host.loop_detach(device, str(room / "disk-0.img"))


async def test_a_device_of_another_namespace_is_found_and_detached(host: Host, room: Path) -> None:
    file = room / "inner" / "elsewhere.img"
    file.parent.mkdir()
    file.touch()
    os.truncate(file, 1 << 20)
    with loop_device_holder.bind_in_namespace(file) as (device, _):
        assert not (await host.loops())[device].startswith(str(room))
        assert await host.loops_below(str(room)) == {device: str(file)}
        with pytest.raises(DeviceBusy):
            await host.loop_detach(device, str(file))
    assert await host.loops_below(str(room)) == {device: str(file)}
    assert await host.loop_detach(device, str(file))
    assert await host.loops_below(str(room)) == {}


async def test_what_is_mounted_from_elsewhere_is_not_below_a_directory(host: Host, room: Path) -> None:
    own, others = room / "own", room / "others"
    for place in (own / "self", own / "foreign", others):
        place.mkdir(parents=True)
    for file in (own / "self" / "same.img", others / "same.img"):
        file.touch()
        os.truncate(file, 1 << 20)
    await host.make_shared(str(own / "self"))  # bound to itself, like a node's directory
    await host.bind(str(others), str(own / "foreign"))
    with (
        loop_device_holder.bind_in_namespace(own / "self" / "same.img") as (mine, _),
        loop_device_holder.bind_in_namespace(others / "same.img") as (theirs, _),
    ):
        assert mine != theirs  # though both were bound by the same name
    assert await host.loops_below(str(own)) == {mine: str(own / "self" / "same.img")}
    assert await host.loop_detach(mine, str(own / "self" / "same.img"))
    assert await host.loop_detach(theirs, str(others / "same.img"))


async def test_a_mounted_device_is_not_detached(host: Host, room: Path, disk: Disk) -> None:
    device, target = disk(), room / "target"
    target.mkdir()
    await host.mkfs(device, "ext4")
    await host.mount(device, str(target), "ext4")
    with pytest.raises(DeviceBusy):
        await host.loop_detach(device)
    assert [e.target for e in (await host.mounts()).references(device)] == [str(target)]
    await host.unmount(str(target))
    assert await host.loop_detach(device)


async def test_a_device_held_open_is_not_detached_now_nor_when_it_is_closed(host: Host, disk: Disk) -> None:
    device = disk()
    with held_open(device), pytest.raises(DeviceBusy):
        await host.loop_detach(device)
    assert device in await host.loops()
    assert await host.loop_detach(device)


async def test_a_device_that_somebody_looks_at_for_a_moment_is_detached(
    host: Host, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "BUSY_TIMEOUT", 60.0)
    tried, unbind = threading.Event(), devices._unbind

    def note(device: str, file: str) -> bool:
        try:
            return unbind(device, file)
        finally:
            tried.set()

    monkeypatch.setattr(devices, "_unbind", note)
    device = disk()
    with held_open(device):
        detached = asyncio.ensure_future(host.loop_detach(device))
        await asyncio.to_thread(tried.wait)
        assert not detached.done()
    assert await detached
    assert device not in await host.loops()


async def test_a_device_takes_over_the_new_size_of_its_file(host: Host, room: Path, disk: Disk) -> None:
    device = disk()
    os.truncate(room / "disk-0.img", 128 << 20)
    await host.loop_resize(device)
    assert await host.size_of(device) == 128 << 20


async def test_a_new_disk_is_blank(host: Host, disk: Disk) -> None:
    assert await host.probe(disk()) is None


async def test_a_disk_of_written_zeros_is_blank(host: Host, disk: Disk) -> None:
    device = disk(4 << 20)
    write(device, 0, bytes(4 << 20))
    assert await host.probe(device) is None


@pytest.mark.parametrize("place", [0, 70_000, (1 << 20) + 5, 64 << 20, (160 << 20) - 1])
async def test_a_disk_with_unknown_data_is_not_blank(host: Host, disk: Disk, place: int) -> None:
    device = disk(160 << 20)
    write(device, place, b"x")
    assert await host.probe(device) == Filesystem(UNKNOWN)


async def test_data_that_is_not_on_the_backing_file_yet_counts(host: Host, disk: Disk) -> None:
    device = disk()
    with held_open(device) as file:
        file.write(b"x")
        file.flush()
        assert await host.probe(device) == Filesystem(UNKNOWN)


async def test_a_partition_table_is_not_blank(host: Host, disk: Disk) -> None:
    device = disk()
    entry = bytes([0, 0, 2, 0, 0x83, 0, 0, 0]) + (2048).to_bytes(4, "little") + (4096).to_bytes(4, "little")
    write(device, 446, entry + bytes(48) + b"\x55\xaa")
    found = await host.probe(device)
    assert found is not None
    assert found.type == "dos"


async def test_what_cannot_be_read_is_an_error(host: Host, room: Path) -> None:
    with pytest.raises(UnreadableDevice):
        await host.probe(str(room / "missing"))


@pytest.mark.parametrize("fstype", ["ext2", "ext3", "ext4"])
async def test_ext_is_made_and_recognised_without_asking_blkid(
    host: Host, disk: Disk, fstype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = disk()
    await host.mkfs(device, fstype, label="data")
    monkeypatch.setattr(filesystems, "_probe_with_blkid", None)
    found = await host.probe(device)
    assert found is not None
    assert (found.type, found.label) == (fstype, "data")
    assert uuid.UUID(found.uuid)


@pytest.mark.parametrize("fstype", ["xfs", "btrfs"])
async def test_other_file_systems_are_made_and_recognised(
    host: Host, room: Path, disk: Disk, fstype: str
) -> None:
    device, target = disk(512 << 20), room / "target"
    target.mkdir()
    try:
        await host.mkfs(device, fstype)
    except HostCommandMissing:
        pytest.skip(f"mkfs.{fstype} is not installed")
    found = await host.probe(device)
    assert found is not None
    assert found.type == fstype
    await host.mount(device, str(target), fstype)


async def test_made_file_systems_are_sound(host: Host, disk: Disk) -> None:
    for written in (b"", b"x"):  # over a file without data, and over one that cannot be known to be zero
        device = disk()
        if written:
            write(device, 40 << 20, written)
        await host.mkfs(device, "ext4")
        await host.run(["e2fsck", "-f", "-n", device])


def held_open(device: str, flags: int = 0) -> BufferedRandom:
    return open(device, "r+b", opener=lambda path, given: os.open(path, given | flags))


@pytest.mark.parametrize(
    "mounted", [pytest.param(True, marks=pytest.mark.capability(CAP_SYS_RESOURCE)), False]
)
async def test_a_file_system_keeps_its_data_when_it_grows(
    host: Host, room: Path, disk: Disk, mounted: bool
) -> None:
    device, target = disk(), room / "target"
    target.mkdir()
    await host.mkfs(device, "ext4")
    await host.fsck(device, "ext4")
    await host.mount(device, str(target), "ext4")
    (target / "file").write_text("kept")
    before = await host.stats(str(target))
    os.truncate(room / "disk-0.img", 256 << 20)
    await host.loop_resize(device)
    if mounted:
        await host.grow(device, str(target), "ext4")
    else:
        await host.unmount(str(target))
        await host.grow(device, "", "ext4")
        await host.mount(device, str(target), "ext4")
    after = await host.stats(str(target))
    assert after.capacity > 3 * before.capacity
    assert after.inodes_used == before.inodes_used
    assert (target / "file").read_text() == "kept"


async def test_a_damaged_file_system_is_repaired(host: Host, disk: Disk) -> None:
    device = disk()
    await host.mkfs(device, "ext4")
    await host.run(["debugfs", "-w", "-R", "ssv state 2", device])
    await host.fsck(device, "ext4")
    await host.run(["e2fsck", "-n", device])


async def test_an_unknown_type_cannot_be_made(host: Host, disk: Disk) -> None:
    device = disk()
    with pytest.raises(ValueError, match="'zzz'"):
        await host.mkfs(device, "zzz")
    with pytest.raises(HostCommandFailed):
        await host.mkfs(device, "ext4", options=["-b", "3"])
    assert await host.probe(device) is None
