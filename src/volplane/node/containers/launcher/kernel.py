"""System calls for namespaces, mounts, paths and privileges, as functions that raise OSError."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REC, MS_PRIVATE, MS_SLAVE = 16384, 1 << 18, 1 << 19
MNT_DETACH = 2

AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NODEV = 1, 4
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH, RESOLVE_IN_ROOT = 2, 4, 8, 16
PROC_MAGIC, DEVPTS_MAGIC = 0x9FA0, 0x1CD1  # file system types of statfs

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 15, 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL, _SECCOMP_MODE_FILTER = 4, 2
_CAPABILITY_VERSION_3 = 0x20080522
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 0x04, 0x40
# The same on every architecture.
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 428, 429, 430, 431, 432
_CLOSE_RANGE, _OPENAT2, _MOUNT_SETATTR = 436, 437, 442
_FSCONFIG_CMD_CREATE, _CLOSE_RANGE_CLOEXEC = 6, 4
_STATX_TYPE_AND_MOUNT = 0x1 | 0x1000

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


def mount_detached(fstype: str) -> int:
    """Create a file system of that type that is mounted nowhere, so that no path leads to it."""
    context = _check(_libc.syscall(_FSOPEN, fstype.encode(), ctypes.c_uint(1)), fstype)
    try:
        _check(_libc.syscall(_FSCONFIG, context, ctypes.c_uint(_FSCONFIG_CMD_CREATE), None, None, 0), fstype)
        return _check(_libc.syscall(_FSMOUNT, context, ctypes.c_uint(1), ctypes.c_uint(0)), fstype)
    finally:
        os.close(context)


def umount(target: str) -> None:
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), target)


def pivot_root(new: str, old: str) -> None:
    _check(_libc.pivot_root(new.encode(), old.encode()), new)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, flags: int) -> None:
    _check(_libc.setns(descriptor, flags), "setns")


def copy_tree(path: str, *, recursive: bool) -> int:
    """A copy of the mounts at `path` that is mounted nowhere; it stays in the peer group of the original."""
    flags = ctypes.c_uint(1 | os.O_CLOEXEC | (AT_RECURSIVE if recursive else 0))
    return _check(_libc.syscall(_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags), path)


def copy_mount(descriptor: int) -> int:
    """A copy of the mount that `descriptor` is open on, mounted nowhere."""
    flags = ctypes.c_uint(1 | os.O_CLOEXEC | AT_EMPTY_PATH)
    return _check(_libc.syscall(_OPEN_TREE, descriptor, b"", flags))


def attach_tree(tree: int, target: str) -> None:
    flags = ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
    _check(_libc.syscall(_MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(target), flags), target)


def attach_tree_at(tree: int, target: int) -> None:
    """Mount the tree on the file or directory that `target` is open on; no path is looked up."""
    flags = ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH)
    _check(_libc.syscall(_MOVE_MOUNT, tree, b"", target, b"", flags))


def change_mount(
    path: str,
    *,
    tree: int = AT_FDCWD,
    readonly: bool = False,
    nodev: bool = False,
    propagation: int = 0,
    recursive: bool = False,
) -> None:
    flags = ctypes.c_uint((0 if path else AT_EMPTY_PATH) | (AT_RECURSIVE if recursive else 0))
    attributes = (MOUNT_ATTR_RDONLY if readonly else 0) | (MOUNT_ATTR_NODEV if nodev else 0)
    attr = struct.pack("=4Q", attributes, 0, propagation, 0)
    size = ctypes.c_size_t(len(attr))
    _check(_libc.syscall(_MOUNT_SETATTR, tree, os.fsencode(path), flags, attr, size), path)


def open_at(directory: int, path: str, flags: int, resolve: int, mode: int = 0) -> int:
    """openat2: `resolve` says which links are followed and which root the walk cannot leave."""
    how = struct.pack("=3Q", flags | os.O_CLOEXEC, mode, resolve)
    size = ctypes.c_size_t(len(how))
    while True:
        result = _libc.syscall(_OPENAT2, directory, os.fsencode(path), how, size)
        # EAGAIN: a directory was renamed during the walk.
        if result >= 0 or ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            return _check(result, path)


def filesystem_magic(descriptor: int) -> int:
    """The type (magic number) of the file system of an open file."""
    space = ctypes.create_string_buffer(256)
    _check(_libc.fstatfs(descriptor, space))
    (magic,) = struct.unpack_from("@l", space)
    return int(magic)


def inspect(descriptor: int) -> tuple[int, int]:
    """Mode of an open file, and the id of its mount as in /proc/self/mountinfo."""
    space = ctypes.create_string_buffer(256)
    _check(_libc.statx(descriptor, b"", AT_EMPTY_PATH, _STATX_TYPE_AND_MOUNT, space))
    (mode,) = struct.unpack_from("=H", space, 28)
    (mount,) = struct.unpack_from("=Q", space, 144)
    return int(mode), int(mount)


def close_on_exec(first: int) -> None:
    """Set close-on-exec on this and all higher descriptors."""
    flags = ctypes.c_uint(_CLOSE_RANGE_CLOEXEC)
    _check(_libc.syscall(_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(0xFFFFFFFF), flags))


def die_with_parent() -> None:
    _check(_libc.prctl(_PR_SET_PDEATHSIG, 9))


def become_subreaper() -> None:
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1))


def set_title(title: str) -> None:
    """Set what ps shows: the process name, and the memory of its arguments."""
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


def _is_user_namespace() -> bool:
    with open("/proc/self/uid_map") as file:
        return file.read().split() != ["0", "0", "4294967295"]


_arguments = _argument_memory()
BOOT = _boot_id()
# Whether root has fewer rights, because it is in a user namespace that is not the machine's. Read here: in a
# container, /proc does not show this process.
IN_USER_NAMESPACE = _is_user_namespace()


def drop_capability(number: int) -> bool:
    """Drop it from the bounding set; False if the kernel has no such capability."""
    if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        return True
    if ctypes.get_errno() != errno.EINVAL:
        _check(-1, "capability bounding set")
    return False


def capabilities() -> int:
    """The permitted capabilities of this process, as a mask."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    data = ctypes.create_string_buffer(24)
    _check(_libc.capget(header, data), "capget")
    low, high = struct.unpack_from("=4xI8xI", data)
    return int(low | high << 32)


def set_capabilities(mask: int) -> None:
    """Set the effective and permitted capabilities; clear the inheritable and ambient ones."""
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = struct.pack("=6I", low, low, 0, high, high, 0)  # effective, permitted, inheritable; twice 32 bits
    _check(_libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), data), "capset")
    _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "ambient capabilities")


def forbid_new_privileges() -> None:
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def filter_calls(program: bytes) -> None:
    """Install a seccomp filter: an array of struct sock_filter, eight bytes each."""
    code = ctypes.create_string_buffer(program, len(program))
    given = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, given, 0, 0), "seccomp")


def make_undumpable() -> None:
    """Keep processes without CAP_SYS_PTRACE from tracing this one and from opening its files in /proc."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def set_hostname(name: str) -> None:
    data = os.fsencode(name)
    _check(_libc.sethostname(data, ctypes.c_size_t(len(data))), "sethostname")


def start_time(pid: int) -> int:
    """When the process started, in clock ticks since boot; 0 if it is gone.

    With the pid it is its identity.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
