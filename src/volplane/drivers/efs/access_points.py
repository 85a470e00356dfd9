"""Access points as files: what exists is what is on disk, so any number of processes may look.

    <root>/<file system>/<directory>        the data
    <root>/.points/<access point>.json      who owns it, how large it may become
    <root>/.removed/…                       on its way out

A directory may lie in one that a pod can write to, and there any name may become a link at any moment. So
every step goes from a descriptor to the next, and links are refused.

A volume's id follows from its name, so creating twice is creating once. The record is written after the
directory and removed after it: a record always has its directory, unless it is being removed.

All functions block; they run on the host's threads.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
from msgspec import Struct

from volplane.base import failpoint
from volplane.base.files import atomic_write
from volplane.host import FilesystemStats, files

log = logging.getLogger(__name__)

DEFAULT_FILE_SYSTEM = "fs-00000001"

_HANDLE = re.compile(r"(fs-[0-9a-f]{8,40})::(fsap-[0-9a-f]{17})")


class AccessPoint(Struct, frozen=True):
    """An access point."""

    id: str
    name: str  # that CreateVolume was called with
    file_system: str
    path: str  # below the file system
    uid: int
    gid: int
    mode: int
    size: int  # bytes

    @property
    def handle(self) -> str:
        return f"{self.file_system}::{self.id}"


def access_point_id(name: str) -> str:
    return f"fsap-{hashlib.sha256(name.encode()).hexdigest()[:17]}"


def parse_handle(handle: str) -> str:
    """The access point in a volume handle, or nothing if it is none of ours."""
    found = _HANDLE.fullmatch(handle)
    return found[2] if found else ""


class UnreadableRecord(Exception):
    """The record of an access point is there and makes no sense: nothing is done on such a basis."""

    def __init__(self, path: str, why: Exception) -> None:
        super().__init__(f"the record of an access point cannot be read, {path}: {why}; restore it")


class AccessPointStore:
    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        self._points = os.path.join(self._root, ".points")
        self._removed = os.path.join(self._root, ".removed")

    def prepare(self) -> None:
        for directory in (self._points, self._removed):
            os.makedirs(directory, 0o700, exist_ok=True)

    def finish_removals(self) -> None:
        """What was being removed when somebody was killed."""
        for name in os.listdir(self._removed):
            _remove_tree(os.path.join(self._removed, name))

    @contextmanager
    def open_directory(self, point: AccessPoint) -> Iterator[int]:
        """A descriptor of the directory. Raises Escapes, or FileNotFoundError."""
        with files.open_directory(self._root, f"{point.file_system}/{point.path}") as directory:
            yield directory

    @contextmanager
    def _open_parent(self, point: AccessPoint, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """A descriptor of the directory that the point's directory is in, and its name there."""
        path, name = os.path.split(f"{point.file_system}/{point.path}")
        with files.open_directory(self._root, path, make=make) as parent:
            yield parent, name

    def usage(self, point: AccessPoint) -> FilesystemStats:
        with self.open_directory(point) as directory:
            return usage(directory)

    def get(self, point: str) -> AccessPoint | None:
        """None if there is none. Raises UnreadableRecord: its directory may hold somebody's data."""
        path = self._record(point)
        try:
            with open(path, "rb") as file:
                return msgspec.json.decode(file.read(), type=AccessPoint)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            raise UnreadableRecord(path, error) from error

    def all(self) -> Iterator[AccessPoint]:
        for name in sorted(os.listdir(self._points)):
            if not (name.startswith("fsap-") and name.endswith(".json")):
                continue
            try:
                found = self.get(name.removesuffix(".json"))
            except UnreadableRecord as error:
                log.warning("%s", error)
                continue
            if found is not None:
                yield found

    def create(self, point: AccessPoint) -> AccessPoint:
        self.prepare()
        if known := self.get(point.id):
            return known
        with self._open_parent(point, make=True) as (parent, name):
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
            failpoint.hit("efs:CreateVolume:directory")
            with files.open_directory(f"/proc/self/fd/{parent}", name) as directory:
                # A directory that others could write to while it has no owner would not be theirs alone.
                os.fchown(directory, point.uid, point.gid)
                os.fchmod(directory, point.mode)
            os.fsync(parent)  # a record that outlives a power cut has its directory
        self._write(point)
        return point

    def resize(self, point: AccessPoint, size: int) -> AccessPoint:
        changed = msgspec.structs.replace(point, size=size)
        self._write(changed)
        return changed

    def remove(self, point: AccessPoint) -> None:
        """The data first goes out of sight in one step; to delete it may take long. Raises Escapes."""
        self.prepare()
        aside = os.path.join(self._removed, point.id)
        with suppress(FileNotFoundError), self._open_parent(point) as (parent, name):
            os.rename(name, aside, src_dir_fd=parent)
        failpoint.hit("efs:DeleteVolume:aside")
        _remove_tree(aside)
        with suppress(FileNotFoundError):
            os.unlink(self._record(point.id))

    def taken_gids(self, file_system: str) -> set[int]:
        """Of all records, and of all directories: a record that cannot be read still owns its group."""
        taken = {p.gid for p in self.all() if p.file_system == file_system}
        with suppress(FileNotFoundError), os.scandir(os.path.join(self._root, file_system)) as entries:
            taken |= {entry.stat(follow_symlinks=False).st_gid for entry in entries}
        return taken

    def capacity(self) -> int:
        self.prepare()
        return files.stats(self._root).available

    def _record(self, point: str) -> str:
        return os.path.join(self._points, f"{point}.json")

    def _write(self, point: AccessPoint) -> None:
        atomic_write(self._record(point.id), msgspec.json.encode(point), durable=True)


def usage_at(path: str) -> FilesystemStats:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return usage(descriptor)
    finally:
        os.close(descriptor)


def usage(directory: int) -> FilesystemStats:
    """What the files of an open directory take; a file with several names counts once."""
    seen: set[tuple[int, int]] = set()
    taken = 0
    for _, _, names, place in os.fwalk(".", dir_fd=directory):
        for name in (".", *names):
            with suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=place, follow_symlinks=False)
                if (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    taken += 0 if stat.S_ISDIR(found.st_mode) else found.st_blocks * 512
    whole = files.stats(directory)
    return FilesystemStats(
        capacity=whole.capacity,
        available=whole.available,
        used=taken,
        inodes=whole.inodes,
        inodes_free=whole.inodes_free,
        inodes_used=len(seen),
    )


def _remove_tree(path: str) -> None:
    """Delete what was put aside; a pod may have put a link or a file in the place of its directory."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)  # it follows no links
    elif os.path.lexists(path):
        os.unlink(path)
