"""A device that holds anything is never formatted, whatever it holds and whatever is asked for."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.ebs import EXT4, GIB, MODE, EbsEnvironment, ebs_environment, expect_error
from volplane.csi import convert, v1
from volplane.csi.outcome import Code
from volplane.host import copies, filesystems

pytestmark = pytest.mark.root

XFS = convert.capability(MODE.SINGLE_NODE_WRITER, fs_type="xfs")


def make_filesystem(kind: str) -> Callable[[str], None]:
    return lambda device: filesystems.mkfs(device, kind)


def wrote(place: int, data: bytes) -> Callable[[str], None]:
    def write(device: str) -> None:
        descriptor = os.open(device, os.O_RDWR | os.O_SYNC)
        os.pwrite(descriptor, data, place % GIB)
        os.close(descriptor)

    return write


def physical_volume() -> bytes:
    """LVM's label, which sits in the second sector."""
    body = struct.pack("<I8s32s", 32, b"LVM2 001", b"0123456789abcdef0123456789abcdef").ljust(492, b"\0")
    checksum = zlib.crc32(body, 0xF597A6CF ^ 0xFFFFFFFF) ^ 0xFFFFFFFF
    return b"LABELONE" + struct.pack("<QI", 1, checksum) + body


def partition_table() -> bytes:
    entry = struct.pack("<B3sB3sII", 0, b"\0\x02\0", 0x83, b"\0\0\0", 2048, 100_000)
    return bytes(446) + entry + bytes(48) + b"\x55\xaa"


SIGNATURES: dict[str, Callable[[str], None]] = {
    "ext4": make_filesystem("ext4"),
    "ext2": make_filesystem("ext2"),
    "btrfs": make_filesystem("btrfs"),
    "LVM": wrote(512, physical_volume()),
    "partitions": wrote(0, partition_table()),
    "GPT only at the end": wrote(-512, b"EFI PART"),
    "LUKS": wrote(0, b"LUKS\xba\xbe\x00\x02"),
    "swap": wrote(4086, b"SWAPSPACE2"),
    "RAID at the end": wrote(-8192 - 4096, b"\xfc\x4e\x2b\xa9"),
    "ZFS": wrote(128 << 10, struct.pack("<Q", 0x00BAB10C)),
    "a database on the raw disk": wrote(0, b"my own format"),
    "one byte in the first sector": wrote(511, b"x"),
    "a copy of ext's superblock only": wrote((128 << 20) + 56, b"\x53\xef"),
}


def content(file: Path) -> str:
    digest = hashlib.sha256()
    with open(file, "rb") as opened:
        for start, end in copies.extents(opened.fileno()):
            data = os.pread(opened.fileno(), end - start, start)
            if data.strip(b"\0"):
                digest.update(b"%d" % start + data)
    return digest.hexdigest()


async def attach_volume(w: EbsEnvironment) -> tuple[str, dict[str, str], str]:
    volume = await w.create()
    context = await w.publish(volume, "i-1")
    return volume, context, os.path.realpath(w.paths["i-1"].real(context["devicePath"]))  # noqa: ASYNC240


@pytest.mark.parametrize("what", SIGNATURES)
async def test_what_is_on_the_device_stays_there(tmp_path: Path, what: str) -> None:
    if what == "btrfs" and shutil.which("mkfs.btrfs") is None:
        pytest.skip("mkfs.btrfs is not installed")
    async with ebs_environment(tmp_path) as w:
        volume, context, device = await attach_volume(w)
        await w.host.call(SIGNATURES[what], device)
        await w.host.call(copies.flush, device)
        before = await w.host.call(content, tmp_path / "disks" / f"{volume}.img")
        for capability in (XFS, EXT4):
            if what == "ext4" and capability is EXT4:
                continue
            text = await expect_error(Code.FAILED_PRECONDITION, w.stage(volume, "i-1", context, capability))
            assert "never formatted" in text
        await w.host.call(copies.flush, device)
        assert await w.host.call(content, tmp_path / "disks" / f"{volume}.img") == before
        await w.wipe(volume, "i-1")


async def test_a_device_that_cannot_be_read_is_not_blank(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume, context, device = await attach_volume(w)
        file = tmp_path / "disks" / f"{volume}.img"
        os.truncate(file, 0)  # from now on the device answers every read with an error
        text = await expect_error(Code.INTERNAL, w.stage(volume, "i-1", context))
        assert "cannot be read" in text
        assert file.stat().st_size == 0
        os.truncate(file, GIB)
        assert device
        await w.wipe(volume, "i-1")


async def test_a_superblock_that_was_lost_does_not_make_a_device_blank(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume, context, device = await attach_volume(w)
        await w.stage(volume, "i-1", context)
        await w.unstage(volume, "i-1")
        await w.host.call(wrote(0, bytes(8192)), device)
        await expect_error(Code.FAILED_PRECONDITION, w.stage(volume, "i-1", context))
        await w.wipe(volume, "i-1")


@pytest.mark.parametrize("method", ["NodeStageVolume", "NodePublishVolume"])
async def test_a_partition_is_refused_because_only_whole_disks_can_be_mounted(
    tmp_path: Path, method: str
) -> None:
    async with ebs_environment(tmp_path) as w:
        volume, context, device = await attach_volume(w)
        place = w.paths["i-1"].staging("ebs.csi.aws.com", volume)
        fields = {
            "volume_id": volume,
            "staging_target_path": place,
            "publish_context": context,
            "volume_context": {"partition": "1"},
            "volume_capability": EXT4,
        }
        more = {"target_path": place} if method == "NodePublishVolume" else {}
        request = getattr(v1, f"{method}Request")(**fields, **more)
        text = await expect_error(Code.INVALID_ARGUMENT, w.nodes["i-1"].call(method, request))
        assert "partition 1" in text
        assert await w.host.probe(device) is None
        await w.wipe(volume, "i-1")
