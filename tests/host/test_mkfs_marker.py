"""An interrupted mkfs: what it left may be overwritten, all other data may not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from volplane.host import UNKNOWN, Filesystem, Host, HostCommandFailed, filesystems, mkfs_marker, processes

pytestmark = pytest.mark.root

Disk = Callable[..., str]

# A mkfs that starts to write and is then killed by a signal.
HALF = """#!/bin/sh
for last; do :; done
head -c 100000 /dev/urandom | dd of="$last" bs=4096 seek=1 conv=notrunc,fsync 2>/dev/null
kill -9 $$
"""


def is_marked(device: str) -> bool:
    descriptor = os.open(device, os.O_RDONLY)
    try:
        return mkfs_marker.has_marker(descriptor, os.lseek(descriptor, 0, os.SEEK_END))
    finally:
        os.close(descriptor)


def mark(device: str) -> None:
    """Write what an interrupted mkfs leaves."""
    with (
        pytest.raises(ZeroDivisionError),
        mkfs_marker.marker_during_mkfs(device, lambda descriptor, size: False),
    ):
        raise ZeroDivisionError


def read(device: str, place: int) -> bytes:
    descriptor = os.open(device, os.O_RDONLY)
    data = os.pread(descriptor, mkfs_marker.LENGTH, place)
    os.close(descriptor)
    return data


def write(device: str, place: int, data: bytes) -> None:
    descriptor = os.open(device, os.O_RDWR | os.O_DSYNC)
    os.pwrite(descriptor, data, place)
    os.close(descriptor)


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """Replace `mkfs.ext4` by one that dies; call the result to restore the real one."""
    program = tmp_path / "bin" / "mkfs.ext4"
    program.parent.mkdir()
    program.write_text(HALF)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program.unlink


async def test_what_a_killed_mkfs_left_is_formatted_anew(
    host: Host, room: Path, disk: Disk, dying: Callable[[], None]
) -> None:
    device, target = disk(), room / "target"
    with pytest.raises(HostCommandFailed):
        await host.mkfs(device, "ext4")
    assert is_marked(device)
    assert await host.probe(device) is None
    dying()
    await host.mkfs(device, "ext4")
    assert not is_marked(device)
    found = await host.probe(device)
    assert found is not None
    assert found.type == "ext4"
    target.mkdir()
    await host.mount(device, str(target), "ext4")
    await host.unmount(str(target))


async def test_the_same_pieces_without_a_mark_are_kept(
    host: Host, disk: Disk, dying: Callable[[], None]
) -> None:
    device = disk()
    with pytest.raises(HostCommandFailed):
        await host.mkfs(device, "ext4")
    write(device, mkfs_marker.marker_offset(await host.size_of(device)), bytes(mkfs_marker.LENGTH))
    assert await host.probe(device) == Filesystem(UNKNOWN)


async def test_the_mark_of_another_disk_marks_nothing(host: Host, disk: Disk) -> None:
    small, large = disk(64 << 20), disk(128 << 20)
    write(large, 0, b"x")
    mark(small)
    write(large, mkfs_marker.marker_offset(128 << 20), read(small, mkfs_marker.marker_offset(64 << 20)))
    assert await host.probe(large) == Filesystem(UNKNOWN)


@pytest.mark.parametrize("gibibytes", [0.5, 1, 8, 20, 100, 1000])
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_no_mkfs_writes_where_the_mark_is(disk: Disk, kind: str, gibibytes: float) -> None:
    """Otherwise an interruption after that would leave data without a marker."""
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mkfs.{kind} is not installed")
    device = disk(int(gibibytes * (1 << 30)))
    command = filesystems._mkfs_command(device, kind)
    mark(device)
    processes.run([*command, device], timeout=60)
    assert is_marked(device)


@pytest.mark.parametrize("kind", ["ext2", "ext3", "ext4", "xfs"])
@pytest.mark.parametrize("mebibytes", [400, 4352])
async def test_a_file_system_is_whole_when_its_mark_is_off(
    host: Host, disk: Disk, kind: str, mebibytes: int
) -> None:
    """ext2 and ext3 of some sizes have a bitmap there: it overwrites the marker, and must not be cleared."""
    device = disk(mebibytes << 20)
    await host.mkfs(device, kind)
    assert not is_marked(device)
    check = ["xfs_repair", "-n"] if kind == "xfs" else ["e2fsck", "-fn"]
    assert (await host.run([*check, device])).code == 0


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
async def test_a_file_system_that_somebody_else_made_on_a_marked_disk_counts(
    host: Host, disk: Disk, kind: str
) -> None:
    device = disk(400 << 20)
    mark(device)
    write(device, 4096, b"pieces")
    assert await host.probe(device) is None
    await host.run([*filesystems._mkfs_command(device, kind), device])
    assert is_marked(device)
    found = await host.probe(device)
    assert found is not None
    assert found.type == kind


async def test_a_mkfs_that_did_nothing_leaves_no_mark(
    host: Host, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = disk(8 << 20)
    with pytest.raises(HostCommandFailed):
        await host.mkfs(device, "xfs")  # too small for one
    assert not is_marked(device)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HostCommandFailed):
        await host.mkfs(device, "ext4")
    assert not is_marked(device)


async def test_what_is_mounted_is_not_marked(host: Host, room: Path, disk: Disk) -> None:
    device, target = disk(), room / "target"
    target.mkdir()
    await host.mkfs(device, "ext4")
    await host.mount(device, str(target), "ext4")
    with pytest.raises(OSError, match="busy"):
        await host.mkfs(device, "ext4")
    assert not is_marked(device)
    await host.unmount(str(target))
