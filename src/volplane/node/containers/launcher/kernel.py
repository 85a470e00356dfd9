"""The kernel's calls for namespaces and mounts, as functions that raise OSError."""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REC, MS_PRIVATE, MS_SLAVE = 16384, 1 << 18, 1 << 19
MNT_DETACH = 2

AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
MOUNT_ATTR_RDONLY = 1

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 1, 15, 24, 36
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same on every architecture

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _check(result: int, name: str = "") -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name or None)
    return result


def mount(source: str, target: str, fstype: str, flags: int = 0, data: str = "") -> None:
    path = os.fsencode(target)
    given = os.fsencode(data) or None
    _check(_libc.mount(source.encode(), path, fstype.encode() or None, ctypes.c_ulong(flags), given), target)


def umount(target: str) -> None:
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), target)


def pivot_root(new: str, old: str) -> None:
    _check(_libc.pivot_root(new.encode(), old.encode()), new)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, flags: int) -> None:
    _check(_libc.setns(descriptor, flags), "setns")


def copy_tree(path: str, *, recursive: bool) -> int:
    """A copy of the mounts at `path` that is mounted nowhere; it stays a peer of what it was copied from."""
    flags = ctypes.c_uint(1 | os.O_CLOEXEC | (AT_RECURSIVE if recursive else 0))
    return _check(_libc.syscall(_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags), path)


def attach_tree(tree: int, target: str) -> None:
    _check(_libc.syscall(_MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(target), ctypes.c_uint(4)), target)


def change_mount(
    path: str, *, tree: int = AT_FDCWD, readonly: bool = False, propagation: int = 0, recursive: bool = False
) -> None:
    flags = ctypes.c_uint((0 if path else AT_EMPTY_PATH) | (AT_RECURSIVE if recursive else 0))
    wanted = struct.pack("=4Q", MOUNT_ATTR_RDONLY if readonly else 0, 0, propagation, 0)
    size = ctypes.c_size_t(len(wanted))
    _check(_libc.syscall(_MOUNT_SETATTR, tree, os.fsencode(path), flags, wanted, size), path)


def die_with_parent() -> None:
    _check(_libc.prctl(_PR_SET_PDEATHSIG, 9))


def adopt_orphans() -> None:
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1))


def set_title(title: str) -> None:
    """What ps shows: instead of this program's name, and over its arguments."""
    _libc.prctl(_PR_SET_NAME, title.encode())
    start, end = _arguments
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, title.encode(), min(len(title), end - start - 1))


def _argument_memory() -> tuple[int, int]:
    with open("/proc/self/stat", "rb", buffering=0) as file:
        fields = file.read().rsplit(b")", 1)[1].split()
    return int(fields[45]), int(fields[46])


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


_arguments = _argument_memory()
BOOT = _boot_id()


def drop_capability(number: int) -> bool:
    """Take it from all that will be executed from here on; False if the kernel knows no such capability."""
    return int(_libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)) == 0


def set_hostname(name: str) -> None:
    data = os.fsencode(name)
    _check(_libc.sethostname(data, ctypes.c_size_t(len(data))), "sethostname")


def start_time(pid: int) -> int:
    """Clock ticks since boot at which the process started, 0 if it is gone: with the pid, its identity."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
