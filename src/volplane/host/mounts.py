"""Mounting, unmounting, and the mount table.

A read-only bind mount is never writable, not even for a moment: the copied mount gets the flag before it is
attached. Ordinary file systems are mounted by system calls; those that need a helper program (NFS, FUSE …) go
through mount(8), which only `host.processes` may start.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from volplane.base import failpoint, trace
from volplane.host import syscalls as sys

_SET = {
    "ro": sys.MS_RDONLY,
    "nosuid": sys.MS_NOSUID,
    "nodev": sys.MS_NODEV,
    "noexec": sys.MS_NOEXEC,
    "sync": sys.MS_SYNCHRONOUS,
    "remount": sys.MS_REMOUNT,
    "dirsync": sys.MS_DIRSYNC,
    "noatime": sys.MS_NOATIME,
    "nodiratime": sys.MS_NODIRATIME,
    "relatime": sys.MS_RELATIME,
    "strictatime": sys.MS_STRICTATIME,
    "lazytime": sys.MS_LAZYTIME,
    "silent": sys.MS_SILENT,
    "bind": sys.MS_BIND,
    "rbind": sys.MS_BIND | sys.MS_REC,
}
_CLEAR = {
    "rw": sys.MS_RDONLY,
    "suid": sys.MS_NOSUID,
    "dev": sys.MS_NODEV,
    "exec": sys.MS_NOEXEC,
    "async": sys.MS_SYNCHRONOUS,
    "atime": sys.MS_NOATIME,
    "diratime": sys.MS_NODIRATIME,
    "norelatime": sys.MS_RELATIME,
    "nostrictatime": sys.MS_STRICTATIME,
    "nolazytime": sys.MS_LAZYTIME,
    "loud": sys.MS_SILENT,
    "defaults": 0,
}
# Options for fstab and its tools; the kernel would refuse them.
_USERSPACE_OPTIONS = frozenset(
    {"auto", "noauto", "user", "nouser", "users", "owner", "group", "_netdev", "nofail"}
)
_ESCAPE = re.compile(r"\\([0-7]{3})")


class MountEntry(Struct, frozen=True):
    """A line of mountinfo."""

    id: int
    parent: int
    device: str  # "7:0"
    root: str  # which directory of the file system is mounted
    target: str
    options: tuple[str, ...]
    peers: str  # propagation: "shared:12", "master:3", both, or ""
    fstype: str
    source: str
    super_options: tuple[str, ...]

    @property
    def readonly(self) -> bool:
        return "ro" in self.options

    @property
    def is_shared(self) -> bool:
        return "shared:" in self.peers


class MountTable:
    """The mounts of this namespace, oldest first; a later mount on a path hides the earlier one.

    A node with many pods has hundreds of lines and each query is about one or two of them, so only lines
    that may match are parsed.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines

    @classmethod
    def parse(cls, text: str) -> MountTable:
        return cls(text.splitlines())

    @property
    def entries(self) -> list[MountEntry]:
        return [_parse_entry(line) for line in self._lines]

    def __iter__(self) -> Iterator[MountEntry]:
        return iter(self.entries)

    def filter_lines(self, text: str, or_text: str = "\n") -> list[MountEntry]:
        """Entries whose line contains the text anywhere: a cheap filter before an exact comparison."""
        return [_parse_entry(line) for line in self._lines if text in line or or_text in line]

    def at(self, path: str) -> MountEntry | None:
        path = os.path.abspath(path)
        found = [e for e in self.filter_lines(f" {_escape_path(path)} ") if e.target == path]
        return found[-1] if found else None

    def under(self, path: str) -> list[MountEntry]:
        """Mounts at and below `path`, innermost first: the order in which they can be unmounted."""
        path = os.path.abspath(path)
        below = path.rstrip("/") + "/"
        entries = self.filter_lines(f" {_escape_path(path)}")
        return [e for e in entries if e.target == path or e.target.startswith(below)][::-1]

    def is_on_itself(self, path: str) -> bool:
        """Whether the directory is bind-mounted to itself, which only makes it a mount."""
        top = self.at(path)
        if top is None:
            return False
        return is_self_bind(top, next((e for e in self if e.id == top.parent), None))

    def references(self, device: str) -> list[MountEntry]:
        """Mounts of a block device, given by its path (links are followed) or by its `major:minor`."""
        if device.startswith("/"):
            number = os.stat(device).st_rdev
            device = f"{os.major(number)}:{os.minor(number)}"
        return [e for e in self.filter_lines(f" {device} ") if e.device == device]

    def same_directory(self, path: str) -> list[str]:
        """Other mount points of the directory mounted at `path`."""
        own = self.at(path)
        entries = self.filter_lines(f" {own.device} ") if own is not None else []
        return [
            e.target
            for e in entries
            if own is not None and (e.device, e.root) == (own.device, own.root) and e.target != own.target
        ]

    def siblings(self, path: str) -> list[str]:
        """Other mount points of the directory mounted at `path`, or of one inside it."""
        own = self.at(path)
        if own is None:
            return []
        inside = own.root.rstrip("/") + "/"
        return [
            e.target
            for e in self.filter_lines(f" {own.device} ")
            if e.device == own.device
            and e.target != own.target
            and (e.root == own.root or e.root.startswith(inside))
        ]


def is_self_bind(entry: MountEntry, parent: MountEntry | None) -> bool:
    """Whether the mount is a directory bound to itself, as a node's root is: it shows the same files."""
    if parent is None or entry.device != parent.device:
        return False
    inside = os.path.relpath(entry.target, parent.target)
    return entry.root == os.path.normpath(os.path.join(parent.root, inside))


def read_table() -> MountTable:
    with open("/proc/self/mountinfo", errors="surrogateescape") as file:
        return MountTable.parse(file.read())


def split_options(options: Sequence[str]) -> tuple[int, str]:
    """Split mount options into flags and the data string for the file system."""
    flags, rest = 0, []
    for option in (o for group in options for o in _split(group) if o):
        if option in _SET:
            flags |= _SET[option]
        elif option in _CLEAR:
            flags &= ~_CLEAR[option]
        elif option not in _USERSPACE_OPTIONS and not option.startswith(("x-", "comment=")):
            rest.append(option)
    return flags, ",".join(rest)


def helper_for(fstype: str) -> str | None:
    """The helper program that mounts this type, if there is one."""
    return shutil.which(f"mount.{fstype}", path=f"/sbin:/usr/sbin:{os.environ.get('PATH', '')}")


@trace.trace_calls("host", "mount")
@failpoint.effect("host:mount")
def mount(source: str, target: str, fstype: str, options: Sequence[str]) -> None:
    flags, data = split_options(options)
    if flags & sys.MS_BIND:
        bind(source, target, readonly=bool(flags & sys.MS_RDONLY), recursive=bool(flags & sys.MS_REC))
    else:
        sys.mount(source, target, fstype, flags, data)


@trace.trace_calls("host", "bind")
@failpoint.effect("host:bind")
def bind(source: str, target: str, *, readonly: bool, recursive: bool, directory: int = sys.AT_FDCWD) -> None:
    """Bind-mount `source`; if it is "", the file or directory that the descriptor `directory` is open on."""
    try:
        with clone(source, recursive=recursive, directory=directory) as tree:
            if readonly:
                set_readonly(tree)
            sys.move_mount(tree, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, source, None, target) from error


@contextmanager
def clone(source: str, *, recursive: bool, directory: int = sys.AT_FDCWD) -> Iterator[int]:
    flags = (
        sys.OPEN_TREE_CLONE | (sys.AT_RECURSIVE if recursive else 0) | (0 if source else sys.AT_EMPTY_PATH)
    )
    tree = sys.open_tree(source, flags, directory)
    try:
        yield tree
    finally:
        os.close(tree)  # unmounts the copy if it was not attached


def set_readonly(tree: int) -> None:
    # Only this mount, like readOnly in Kubernetes; mounts below keep their flags.
    sys.mount_setattr(tree, "", flags=sys.AT_EMPTY_PATH, add=sys.MOUNT_ATTR_RDONLY)


@failpoint.effect("host:remount")
def remount_readonly(target: str) -> None:
    sys.mount_setattr(sys.AT_FDCWD, target, add=sys.MOUNT_ATTR_RDONLY)


@failpoint.effect("host:share")
def make_shared(path: str) -> None:
    """Make `path` a shared mount: mounts made in it later propagate to its copies, and theirs to it."""
    if not is_mount(path):
        bind(path, path, readonly=False, recursive=True)
    sys.mount("", path, flags=sys.MS_SHARED | sys.MS_REC)


@trace.trace_calls("host", "unmount")
@failpoint.effect("host:unmount")
def unmount(path: str, *, force: bool = False, detach: bool = False) -> bool:
    """Unmount the topmost mount at `path`; False if nothing is mounted there."""
    flags = sys.UMOUNT_NOFOLLOW | (sys.MNT_FORCE if force else 0) | (sys.MNT_DETACH if detach else 0)
    try:
        sys.umount(path, flags)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return False
        raise
    return True


def is_mount(path: str) -> bool:
    try:
        return sys.is_mount_root(path)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _split(group: str) -> Iterator[str]:
    """Split at commas outside of quotes: `context="system_u:object_r:x:s0:c1,c2"` is one option."""
    start, quoted = 0, False
    for position, letter in enumerate(group):
        quoted ^= letter == '"'
        if letter == "," and not quoted:
            yield group[start:position].strip()
            start = position + 1
    yield group[start:].strip()


def _parse_entry(line: str) -> MountEntry:
    left, right = line.split(" - ", 1)
    number, parent, device, root, target, options, *peers = left.split()
    fstype, source, *super_options = right.split(" ", 2)
    return MountEntry(
        id=int(number),
        parent=int(parent),
        device=device,
        root=_unescape(root),
        target=_unescape(target),
        options=tuple(options.split(",")),
        peers=" ".join(peers),
        fstype=fstype,
        source=_unescape(source),
        super_options=tuple(super_options[0].split(",")) if super_options else (),
    )


def _escape_path(path: str) -> str:
    """A path as it is written in mountinfo."""
    for letter in "\\ \t\n":
        path = path.replace(letter, f"\\{ord(letter):03o}")
    return path


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda m: chr(int(m[1], 8)), text) if "\\" in text else text
