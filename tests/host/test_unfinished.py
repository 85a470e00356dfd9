"""A mkfs that does not come to its end: its pieces are nobody's data, everything else stays somebody's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from volplane.host import UNKNOWN, CommandFailed, Filesystem, Host, filesystems, processes, unfinished

pytestmark = pytest.mark.root

Disk = Callable[..., str]

# A mkfs that begins like one, and dies by a signal in the middle of it.
HALF = """#!/bin/sh
for last; do :; done
head -c 100000 /dev/urandom | dd of="$last" bs=4096 seek=1 conv=notrunc,fsync 2>/dev/null
kill -9 $$
"""


def is_marked(device: str) -> bool:
    descriptor = os.open(device, os.O_RDONLY)
    try:
        return unfinished.is_marked(descriptor, os.lseek(descriptor, 0, os.SEEK_END))
    finally:
        os.close(descriptor)


def read(device: str, place: int) -> bytes:
    descriptor = os.open(device, os.O_RDONLY)
    data = os.pread(descriptor, unfinished.LENGTH, place)
    os.close(descriptor)
    return data


def write(device: str, place: int, data: bytes) -> None:
    descriptor = os.open(device, os.O_RDWR | os.O_DSYNC)
    os.pwrite(descriptor, data, place)
    os.close(descriptor)


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """`mkfs.ext4` is one that dies; called, it is the real one again."""
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
    with pytest.raises(CommandFailed):
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
    with pytest.raises(CommandFailed):
        await host.mkfs(device, "ext4")
    write(device, unfinished.place(await host.size_of(device)), bytes(unfinished.LENGTH))
    assert await host.probe(device) == Filesystem(UNKNOWN)


async def test_the_mark_of_another_disk_marks_nothing(host: Host, disk: Disk) -> None:
    small, large = disk(64 << 20), disk(128 << 20)
    write(large, 0, b"x")
    with pytest.raises(ZeroDivisionError), unfinished.marked(small):
        raise ZeroDivisionError
    write(large, unfinished.place(128 << 20), read(small, unfinished.place(64 << 20)))
    assert await host.probe(large) == Filesystem(UNKNOWN)


@pytest.mark.parametrize("gibibytes", [0.5, 1, 8, 20, 100, 1000])
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_no_mkfs_writes_where_the_mark_is(disk: Disk, kind: str, gibibytes: float) -> None:
    """Else a death after that would leave pieces without a mark."""
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mkfs.{kind} is not installed")
    device = disk(int(gibibytes * (1 << 30)))
    command = filesystems._mkfs_command(device, kind)
    with pytest.raises(ZeroDivisionError), unfinished.marked(device):
        raise ZeroDivisionError
    processes.run([*command, device], timeout=60)
    assert is_marked(device)
