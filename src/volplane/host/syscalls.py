"""Linux system calls that Python does not offer, as blocking functions that raise OSError.

They run on the host's executor threads; ctypes releases the interpreter lock during a call. The newer mount
calls have the same number on every architecture, so the C library need not know them.
"""

from __future__ import annotations

import ctypes
import os
import struct

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_SYNCHRONOUS, MS_REMOUNT = 1, 2, 4, 8, 16, 32
MS_DIRSYNC, MS_NOATIME, MS_NODIRATIME = 128, 1024, 2048
MS_BIND, MS_REC, MS_SILENT = 4096, 16384, 32768
MS_PRIVATE, MS_SLAVE, MS_SHARED = 1 << 18, 1 << 19, 1 << 20
MS_RELATIME, MS_STRICTATIME, MS_LAZYTIME = 1 << 21, 1 << 24, 1 << 25

CLONE_NEWNET = 0x40000000

MNT_FORCE, MNT_DETACH, UMOUNT_NOFOLLOW = 1, 2, 8

AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW, AT_NO_AUTOMOUNT, AT_EMPTY_PATH, AT_RECURSIVE = 0x100, 0x800, 0x1000, 0x8000
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH = 0x4, 0x40
MOUNT_ATTR_RDONLY = 1

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_STATX_ATTR_MOUNT_ROOT = 0x2000
_SYNC_AND_WAIT = 7  # SYNC_FILE_RANGE_WAIT_BEFORE | WRITE | WAIT_AFTER

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def _check(result: int, *names: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        # Arguments of OSError: file, winerror, second file. The message names both ends of a mount.
        raise OSError(number, os.strerror(number), *([names[0], None, names[1]] if len(names) > 1 else names))
    return result


def mount(source: str, target: str, fstype: str = "", flags: int = 0, data: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source) or None,
        os.fsencode(target),
        fstype.encode() or None,
        ctypes.c_ulong(flags),
        os.fsencode(data) or None,
    )
    _check(result, source, target)


def umount(target: str, flags: int = 0) -> None:
    _check(_libc.umount2(os.fsencode(target), flags), target)


def open_tree(path: str, flags: int, directory: int = AT_FDCWD) -> int:
    """A descriptor of the mount at `path`; with OPEN_TREE_CLONE, of a detached copy."""
    name = os.fsencode(path)
    return _check(_libc.syscall(_OPEN_TREE, directory, name, ctypes.c_uint(flags | os.O_CLOEXEC)), path)


def move_mount(tree: int, target: str) -> None:
    flags = ctypes.c_uint(MOVE_MOUNT_F_EMPTY_PATH)
    _check(_libc.syscall(_MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(target), flags), target)


def mount_setattr(
    directory: int, path: str, *, flags: int = 0, add: int = 0, remove: int = 0, propagation: int = 0
) -> None:
    attributes = struct.pack("=QQQQ", add, remove, propagation, 0)
    call = _libc.syscall(
        _MOUNT_SETATTR,
        directory,
        os.fsencode(path),
        ctypes.c_uint(flags),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    _check(call, path)


def is_mount_root(path: str) -> bool:
    """Whether `path` is a mount point, according to the kernel (device numbers do not show bind mounts)."""
    buffer = ctypes.create_string_buffer(256)
    flags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT
    _check(_libc.statx(AT_FDCWD, os.fsencode(path), flags, 0, buffer), path)
    attributes: int = struct.unpack_from("=Q", buffer.raw, 8)[0]
    return bool(attributes & _STATX_ATTR_MOUNT_ROOT)


def write_back(descriptor: int) -> None:
    """Write dirty pages to the device without a flush of its cache, which would cost a journal commit."""
    _check(_libc.sync_file_range(descriptor, 0, 0, _SYNC_AND_WAIT))


def unshare(flags: int) -> None:
    """For the calling thread alone."""
    _check(_libc.unshare(flags))


def setns(descriptor: int, flags: int) -> None:
    """For the calling thread alone."""
    _check(_libc.setns(descriptor, flags))
