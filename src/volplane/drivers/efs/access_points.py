"""Access points as files, so that several processes can use them.

    <root>/<file system>/<directory>        the data
    <root>/.points/<access point>.json      its record: owner, size
    <root>/.removed/…                       data that is being deleted

A pod may be able to write to the parent of a directory and replace it with a symbolic link at any time. So
paths are opened part by part from a descriptor, and links are refused.

A volume's id is derived from its name, so creating it twice creates it once. The record is written after the
directory and removed after it: a record always has its directory, unless it is being deleted.

All functions block; they run on the host's threads.
"""

from __future__ import annotations

import errno
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
from volplane.base.user_namespace import is_user_namespace
from volplane.host import FilesystemStats, files

log = logging.getLogger(__name__)

DEFAULT_FILE_SYSTEM = "fs-00000001"

_HANDLE = re.compile(r"(fs-[0-9a-f]{8,40})::(fsap-[0-9a-f]{17})")


class AccessPoint(Struct, frozen=True):
    """An access point."""

    id: str
    name: str  # in CreateVolume
    file_system: str
    path: str  # in the file system
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
    """The access point in a volume handle; "" if the handle is invalid."""
    found = _HANDLE.fullmatch(handle)
    return found[2] if found else ""


class UnreadableRecord(Exception):
    """The record of an access point exists but cannot be read: its directory is left alone."""

    def __init__(self, path: str, why: Exception) -> None:
        super().__init__(f"cannot read the record of an access point, {path}: {why}; restore it")


class AccessPointStore:
    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        self._points = os.path.join(self._root, ".points")
        self._removed = os.path.join(self._root, ".removed")

    def prepare(self) -> None:
        for directory in (self._points, self._removed):
            os.makedirs(directory, 0o700, exist_ok=True)

    def finish_removals(self) -> None:
        """Delete what a killed process has left half deleted."""
        for name in os.listdir(self._removed):
            _remove_tree(os.path.join(self._removed, name))

    @contextmanager
    def open_directory(self, point: AccessPoint) -> Iterator[int]:
        """A descriptor of the directory. Raises PathEscapesVolume or FileNotFoundError."""
        with files.open_directory(self._root, f"{point.file_system}/{point.path}") as directory:
            yield directory

    @contextmanager
    def _open_parent(self, point: AccessPoint, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """A descriptor of the parent directory, and the name of the directory in it."""
        path, name = os.path.split(f"{point.file_system}/{point.path}")
        with files.open_directory(self._root, path, make=make) as parent:
            yield parent, name

    def usage(self, point: AccessPoint) -> FilesystemStats:
        with self.open_directory(point) as directory:
            return usage(directory)

    def get(self, point: str) -> AccessPoint | None:
        """None if it does not exist. Raises UnreadableRecord: then its directory may have data."""
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
                # Owner before mode: others must not write to it meanwhile.
                _give_away(directory, point)
                os.fchmod(directory, point.mode)
            os.fsync(parent)  # after a power loss a record must have its directory
        self._write(point)
        return point

    def resize(self, point: AccessPoint, size: int) -> AccessPoint:
        changed = msgspec.structs.replace(point, size=size)
        self._write(changed)
        return changed

    def remove(self, point: AccessPoint) -> None:
        """Move the directory away in one step, then delete it, which may take long. Raises
        PathEscapesVolume.
        """
        self.prepare()
        aside = os.path.join(self._removed, point.id)
        with suppress(FileNotFoundError), self._open_parent(point) as (parent, name):
            os.rename(name, aside, src_dir_fd=parent)
        failpoint.hit("efs:DeleteVolume:aside")
        _remove_tree(aside)
        with suppress(FileNotFoundError):
            os.unlink(self._record(point.id))

    def taken_gids(self, file_system: str) -> set[int]:
        """Group ids of all records and directories: a record that cannot be read still owns its group."""
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


def _give_away(directory: int, point: AccessPoint) -> None:
    """Set the owner. A cluster without root has too few user ids; there all pods are the same user anyway."""
    try:
        os.fchown(directory, point.uid, point.gid)
    except OSError as error:
        if error.errno != errno.EINVAL or not is_user_namespace():
            raise


def usage_at(path: str) -> FilesystemStats:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return usage(descriptor)
    finally:
        os.close(descriptor)


def usage(directory: int) -> FilesystemStats:
    """The space that an open directory uses; a file with several links counts once."""
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
    """Delete a directory that was moved away; a pod may have replaced it with a link or a file."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)  # does not follow links
    elif os.path.lexists(path):
        os.unlink(path)
