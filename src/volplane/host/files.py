"""Open and change files in a volume without following symbolic links out of it.

A pod owns the content of its volume and may replace a directory by a link to `/` at any moment. So nothing
here opens a path below a volume by name twice: every step goes from one descriptor to the next, without
links.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from msgspec import Struct

from volplane.host import mounts, syscalls
from volplane.host.ownership import change_owner

_WALK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = 0o440
_WRITE = 0o660
_EXECUTE = 0o110


class PathEscapesVolume(OSError):
    """A path that leaves its volume, or goes through a link."""


class FilesystemStats(Struct, frozen=True):
    """Sizes for NodeGetVolumeStats."""

    capacity: int
    available: int
    used: int
    inodes: int
    inodes_free: int
    inodes_used: int


def list_directories(path: str) -> list[str]:
    """The names of the directories in a directory, without touching what is mounted there."""
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []


def stats(path: str | int) -> FilesystemStats:
    info = os.statvfs(path)
    return FilesystemStats(
        capacity=info.f_blocks * info.f_frsize,
        available=info.f_bavail * info.f_frsize,
        used=(info.f_blocks - info.f_bfree) * info.f_frsize,
        inodes=info.f_files,
        inodes_free=info.f_ffree,
        inodes_used=info.f_files - info.f_ffree,
    )


def split_subpath(subpath: str) -> list[str]:
    """The parts of a relative path. Raises PathEscapesVolume if it is absolute or contains ".."."""
    steps = [part for part in subpath.split("/") if part not in ("", ".")]
    if subpath.startswith("/") or ".." in steps:
        raise PathEscapesVolume(f"{subpath!r} must be relative and must not contain '..'")
    return steps


def make_directory(root: str, subpath: str) -> None:
    """Create missing directories of `subpath` below `root`, with the root's mode, never through a link."""
    if os.path.exists(os.path.join(root, *split_subpath(subpath))):
        return  # perhaps through links inside the volume: `open_below` checks them
    mode = stat.S_IMODE(os.stat(root).st_mode)
    for parent, name in _walk(root, subpath):
        try:
            os.mkdir(name, dir_fd=parent)
        except FileExistsError:
            continue
        with _open_entry(parent, name) as made:
            os.chmod(f"/proc/self/fd/{made}", mode)  # mkdir applies our umask


def _walk(root: str, subpath: str) -> Iterator[tuple[int, str]]:
    """(descriptor of the parent, name) for each step; the consumer creates it if it is missing."""
    current = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in split_subpath(subpath):
            yield current, name
            with _open_entry(current, name) as following:
                os.close(current)
                current = os.dup(following)
    finally:
        os.close(current)


@contextmanager
def _open_entry(parent: int, name: str) -> Iterator[int]:
    descriptor = os.open(name, _WALK, dir_fd=parent)
    try:
        if stat.S_ISLNK(os.fstat(descriptor).st_mode):
            raise PathEscapesVolume(f"{name!r} is a symbolic link")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_below(root: str, subpath: str) -> Iterator[int]:
    """An O_PATH descriptor of `subpath` below `root`; links are resolved once, and only inside the root."""
    root = os.path.realpath(root)
    resolved = os.path.realpath(os.path.join(root, *split_subpath(subpath)))
    if resolved != root and not resolved.startswith(root.rstrip("/") + "/"):
        raise PathEscapesVolume(f"{subpath!r} leads out of the volume")
    current = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in split_subpath(os.path.relpath(resolved, root)):
            with _open_entry(current, name) as following:
                os.close(current)
                current = os.dup(following)
        yield current
    finally:
        os.close(current)


@contextmanager
def open_directory(root: str, subpath: str, *, make: bool = False) -> Iterator[int]:
    """A descriptor of the directory `subpath` below `root`; with `make`, missing ones are created.

    No part may be a link, not even one that stays inside the root: raises PathEscapesVolume.
    """
    current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in split_subpath(subpath):
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=current)
            parent, current = current, _open_child_directory(current, name, subpath)
            os.close(parent)
        yield current
    finally:
        os.close(current)


def _open_child_directory(parent: int, name: str, subpath: str) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise PathEscapesVolume(
                f"{subpath!r} leads through a symbolic link or a file: {name!r}"
            ) from error
        raise


def bind_below(root: str, subpath: str, target: str, *, readonly: bool = False) -> None:
    """Bind-mount `subpath` of `root`. `target` is created, or kept if the same file is mounted there."""
    with open_below(root, subpath) as source:
        kind = os.fstat(source)
        if mounts.is_mount(target):
            if os.path.samestat(os.stat(target), kind):
                return
            mounts.unmount(target, detach=True)
        _make_target(target, directory=stat.S_ISDIR(kind.st_mode))
        with mounts.clone("", recursive=True, directory=source) as tree:
            if readonly:
                mounts.set_readonly(tree)
            syscalls.move_mount(tree, target)


def _make_target(target: str, *, directory: bool) -> None:
    os.makedirs(target if directory else os.path.dirname(target), mode=0o750, exist_ok=True)
    if not directory:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640))


def apply_fs_group(
    root: str,
    gid: int,
    *,
    readonly: bool = False,
    only_if_root_differs: bool = False,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Apply fsGroup: give everything below `root` to `gid`, with access for it. Return the number of files.

    Children come first and the root last, so that a correct root shows that an earlier run was complete.
    """
    if only_if_root_differs and _has_fs_group(root, gid, readonly):
        return 0
    count = 0
    for _, directories, files, descriptor in os.fwalk(root, topdown=False, follow_symlinks=False):
        for name in files:
            _apply_group(name, descriptor, gid, readonly)
        for name in directories:
            if stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                _apply_group(name, descriptor, gid, readonly)
        count += len(files) + 1
        _apply_group_to_directory(descriptor, gid, readonly)
        if progress:
            progress(count)
    return count


def _has_fs_group(root: str, gid: int, readonly: bool) -> bool:
    info = os.stat(root)
    wanted = (_READ if readonly else _WRITE) | _EXECUTE | stat.S_ISGID
    return info.st_gid == gid and info.st_mode & wanted == wanted


def _apply_group(name: str, directory: int, gid: int, readonly: bool) -> None:
    try:
        descriptor = os.open(name, _WALK, dir_fd=directory)
    except FileNotFoundError:
        return  # removed meanwhile
    try:
        info = os.fstat(descriptor)
        change_owner(name, -1, gid, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISLNK(info.st_mode):
            os.chmod(
                f"/proc/self/fd/{descriptor}", stat.S_IMODE(info.st_mode) | (_READ if readonly else _WRITE)
            )
    finally:
        os.close(descriptor)


def _apply_group_to_directory(descriptor: int, gid: int, readonly: bool) -> None:
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    change_owner(descriptor, -1, gid)
    os.fchmod(descriptor, mode | (_READ if readonly else _WRITE) | _EXECUTE | stat.S_ISGID)
