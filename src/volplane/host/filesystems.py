"""Detect file systems on devices, make, check and grow them.

A device counts as blank only if that is proven, because a mistake would format user data. The proof is
either that the file behind a loop device has no data at all, or zeros at every known position of a
signature, backup copies included. A device that cannot be read is an error, and unrecognised content is
`unknown`; neither counts as blank. What an interrupted mkfs has left is recognised by its marker and counts
as blank; a complete file system counts, marker or not.
"""

from __future__ import annotations

import errno
import os
import struct
import uuid
from collections.abc import Sequence

from msgspec import Struct

from volplane.base import failpoint, trace
from volplane.host import devices, mkfs_marker, processes, syscalls

MIB = 1 << 20
UNKNOWN = "unknown"  # there is data that is not recognised

_CHUNK = 128 << 10
_ZEROS = bytes(_CHUNK)
_EDGE = MIB  # nearly all signatures are in the first or the last MiB
# Beyond the edges: VMFS at 1 and 2 MiB, the second LUKS2 header up to 4 MiB, copies of the superblock of ext
# (block group 1 with blocks of 1, 2 and 4 KiB) and of btrfs (64 MiB, 256 GiB).
_SIGNATURE_OFFSETS = (MIB, 2 * MIB, 4 * MIB, 8 * MIB, 32 * MIB, 64 * MIB, 128 * MIB, 256 << 30)

_EXT_JOURNAL = 0x4
_EXT4_FEATURES = ~0x17  # ext3 knows compression, filetype, recover, meta_bg; any other feature means ext4
_EXT_CLEAN, _EXT_ERRORS = 1, 2


class Filesystem(Struct, frozen=True):
    type: str
    uuid: str = ""
    label: str = ""


class UnreadableDevice(OSError):
    """The device cannot be read, so its content is not known."""


class FilesystemNeedsRepair(Exception):
    """A file system that fsck cannot repair without an operator."""


def probe(device: str) -> Filesystem | None:
    """The file system on `device`; None only if it is proven blank, or has an unfinished file system."""
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UnreadableDevice(error.errno, error.strerror, device) from error
    try:
        if is_all_hole(device, descriptor):
            return None
        size = os.lseek(descriptor, 0, os.SEEK_END)
        known = identify(os.pread(descriptor, _CHUNK, 0))
        if known is None and (_is_blank(descriptor, size) or mkfs_marker.has_marker(descriptor, size)):
            return None
    except OSError as error:
        raise UnreadableDevice(error.errno, error.strerror, device) from error
    finally:
        os.close(descriptor)
    return known or _probe_with_blkid(device)


def is_all_hole(device: str, descriptor: int) -> bool:
    """Whether the file behind this loop device has never been written to."""
    file = devices.backing_file(device)
    if not file:
        return False
    syscalls.write_back(descriptor)  # data may be in the device's page cache only
    try:
        backing = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # deleted: the device itself is read instead
    try:
        if os.fstat(backing).st_size < os.lseek(descriptor, 0, os.SEEK_END):
            return False  # truncated while bound: the missing part was not blank, it is lost
        os.lseek(backing, 0, os.SEEK_DATA)
    except OSError as error:
        return error.errno == errno.ENXIO
    finally:
        os.close(backing)
    return False


def identify(head: bytes) -> Filesystem | None:
    """The file system by its superblock, of those we make; None if there is none or more than one."""
    found = [fs for fs in (_ext(head), _xfs(head), _btrfs(head)) if fs]
    return found[0] if len(found) == 1 else None


def _ext(head: bytes) -> Filesystem | None:
    if head[1080:1082] != b"\x53\xef":
        return None
    compatible, incompatible, readonly = struct.unpack_from("<3I", head, 1024 + 92)
    if incompatible & 0x8:  # a journal device, not a file system
        return None
    if incompatible & _EXT4_FEATURES or readonly & ~0x7:
        kind = "ext4"
    else:
        kind = "ext3" if compatible & _EXT_JOURNAL else "ext2"
    return Filesystem(kind, _uuid(head[1128:1144]), _text(head[1144:1160]))


def _xfs(head: bytes) -> Filesystem | None:
    if head[:4] != b"XFSB" or head[126]:  # mkfs sets this byte until it is done
        return None
    return Filesystem("xfs", _uuid(head[32:48]), _text(head[108:120]))


def _btrfs(head: bytes) -> Filesystem | None:
    block = head[64 << 10 :][:4096]
    if block[64:72] != b"_BHRfS_M":
        return None
    return Filesystem("btrfs", _uuid(block[32:48]), _text(block[0x12B : 0x12B + 256]))


def _is_blank(descriptor: int, size: int) -> bool:
    places = [
        (0, _EDGE),
        (max(0, size - _EDGE), _EDGE),
        *((p, _CHUNK) for p in _SIGNATURE_OFFSETS if p < size),
    ]
    chunks = (place + step for place, length in places for step in range(0, length, _CHUNK))
    return all(_is_zero(os.pread(descriptor, _CHUNK, chunk)) for chunk in chunks)


def _is_zero(data: bytes) -> bool:
    return data == (_ZEROS if len(data) == _CHUNK else bytes(len(data)))


def _probe_with_blkid(device: str) -> Filesystem:
    completed = processes.run(["blkid", "-p", "-o", "export", device], timeout=30, check=False)
    if completed.code not in (0, 2, 8):  # 2: nothing known found, 8: several found
        raise UnreadableDevice(errno.EIO, completed.output or "blkid failed", device)
    lines = completed.stdout.decode(errors="replace").splitlines()
    facts = dict(line.split("=", 1) for line in lines if "=" in line)
    kind = facts.get("TYPE") or facts.get("PTTYPE") or UNKNOWN
    return Filesystem(kind, facts.get("UUID", ""), facts.get("LABEL", ""))


def _uuid(raw: bytes) -> str:
    return str(uuid.UUID(bytes=raw))


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")


@trace.trace_calls("host", "mkfs")
@failpoint.effect("host:mkfs")
def mkfs(device: str, fstype: str, *, label: str = "", options: Sequence[str] = ()) -> None:
    """Make a file system. The caller has called `probe` before; the tools do not check again."""
    command = [*_mkfs_command(device, fstype), *_label_arguments(fstype, label), *options, device]
    with mkfs_marker.marker_during_mkfs(device, _is_blank):
        processes.run(command, timeout=600)


def _mkfs_command(device: str, fstype: str) -> list[str]:
    match fstype:
        case "ext2" | "ext3" | "ext4":
            # No reserved blocks: the volume belongs to its user. The disk service has discarded the blocks.
            return [f"mkfs.{fstype}", "-F", "-q", "-m", "0", "-E", f"nodiscard{_prezeroed_option(device)}"]
        case "xfs":
            return ["mkfs.xfs", "-f", "-q", "-K"]
        case "btrfs":
            return ["mkfs.btrfs", "-f", "-q", "-K"]
    raise ValueError(f"cannot make a file system of type {fstype!r}")


def _prezeroed_option(device: str) -> str:
    # Without the option mkfs writes zeros to the whole journal, and the kernel later to all inode tables.
    # Skipping that is safe only if every block is known to be zero; a few probed positions do not prove
    # that.
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return ",assume_storage_prezeroed=1" if is_all_hole(device, descriptor) else ""
    finally:
        os.close(descriptor)


def _label_arguments(fstype: str, label: str) -> list[str]:
    return ["-L", label] if label else []


@trace.trace_calls("host", "fsck")
@failpoint.effect("host:fsck")
def fsck(device: str, fstype: str) -> None:
    """Repair what can be repaired automatically. Raises FilesystemNeedsRepair otherwise."""
    if not fstype.startswith("ext") or _ext_is_clean(device):
        return  # xfs and btrfs repair themselves when mounted
    completed = processes.run([f"fsck.{fstype}", "-a", device], timeout=3600, check=False)
    if completed.code & ~0x3:  # 1: errors corrected, 2: the same, and reboot if it were the root
        raise FilesystemNeedsRepair(
            f"'fsck' found errors on device {device} but could not correct them: {completed.output}"
        )


def _ext_is_clean(device: str) -> bool:
    """Whether fsck would do nothing, by the superblock: the journal is replayed by the mount."""
    with open(device, "rb", buffering=0) as file:
        file.seek(1024)
        block = file.read(1024)
    if len(block) < 1024 or block[56:58] != b"\x53\xef":
        return False
    mounts, limit, _, state = struct.unpack_from("<HhHH", block, 52)
    interval, checked = struct.unpack_from("<I", block, 68)[0], limit > 0 and mounts >= limit
    return bool(state & _EXT_CLEAN) and not state & _EXT_ERRORS and not interval and not checked


def read_filesystem_size(device: str, fstype: str) -> int:
    """Size in bytes of the file system on the device, by its superblock; 0 for types we do not make."""
    with open(device, "rb", buffering=0) as file:
        head = os.pread(file.fileno(), 68 << 10, 0)
    if fstype.startswith("ext"):
        low, block, incompatible = (struct.unpack_from("<I", head, 1024 + n)[0] for n in (4, 24, 96))
        high = struct.unpack_from("<I", head, 1024 + 336)[0] if incompatible & 0x80 else 0
        return int((high << 32 | low) << (10 + block))
    if fstype == "xfs":
        block, count = struct.unpack_from(">IQ", head, 4)
        return int(block * count)
    if fstype == "btrfs":
        return int(struct.unpack_from("<Q", head, (64 << 10) + 112)[0])
    return 0


def fills_device(device: str, fstype: str) -> bool:
    """Whether the file system cannot grow any more; less than a block group does not count."""
    claimed = read_filesystem_size(device, fstype)
    return not claimed or devices.size_of(device) - claimed < MIB


@failpoint.effect("host:grow")
def grow(device: str, path: str, fstype: str) -> None:
    """Grow the file system mounted at `path` to the size of its device; ext also unmounted, with path ""."""
    match fstype:
        case "ext2" | "ext3" | "ext4":
            if not path:
                # resize2fs requires a check of an unmounted file system.
                processes.run(["e2fsck", "-f", "-p", device], timeout=3600, check=False)
            processes.run(["resize2fs", device], timeout=600)
        case "xfs":
            processes.run(["xfs_growfs", path], timeout=600)
        case "btrfs":
            processes.run(["btrfs", "filesystem", "resize", "max", path], timeout=600)
        case _:
            raise ValueError(f"cannot grow a file system of type {fstype!r}")
