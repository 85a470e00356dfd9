"""Add directory trees to an archive: the shared directories, which pods may change meanwhile."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from volplane.cluster.backup.members import show_name
from volplane.cluster.backup.writer import ArchiveWriter, is_archivable

TRIES = 3  # reads of a file that is being written
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_GONE = (errno.ENOENT, errno.ELOOP, errno.ENXIO)


class _StoredFile(NamedTuple):
    """A file with several names, under the last one that it was stored with."""

    path: str
    size: int
    modified: int


class TreeBackup:
    """Walks from descriptor to descriptor: a pod may replace a directory by a link at any moment."""

    def __init__(self, archive: ArchiveWriter) -> None:
        self._archive = archive
        self._links: dict[tuple[int, int], _StoredFile] = {}  # files with several names, by device and inode
        self.directories: set[str] = set()  # that were added
        self.count = 0  # files
        self.unsteady: list[str] = []  # files that were written while they, or their other names, were read

    def add(self, directory: str, prefix: str, *, without: Collection[str] = ()) -> None:
        """Add what is below a directory. `without`: names directly in it that are left out."""
        if not os.path.isdir(directory):
            return
        for place, inner, files, descriptor in os.fwalk(directory, follow_symlinks=False):
            where = f"{prefix}{place.removeprefix(directory)}"
            if place == directory:
                inner[:] = [name for name in inner if name not in without]
            else:
                # Each directory is followed by what it contains: so other programs restore its time, too.
                self._archive.add_entry(where, os.fstat(descriptor), source=descriptor)
                self.directories.add(where)
            inner.sort()
            for name in sorted((*inner, *files)):
                with suppress(FileNotFoundError):  # removed meanwhile
                    self._add_entry(f"{where}/{name}", name, descriptor)

    def _add_entry(self, path: str, name: str, directory: int) -> None:
        """Add anything but a directory."""
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode) or not is_archivable(found.st_mode):
            return  # a socket cannot be stored
        inode = found.st_dev, found.st_ino
        stored = self._links.get(inode)
        if stored is not None and (stored.size, stored.modified) == (found.st_size, found.st_mtime_ns):
            self._archive.add_hard_link(path, stored.path, found)
            return
        if stat.S_ISREG(found.st_mode):
            if self._add_file(path, name, directory):
                self.count += 1
                if found.st_nlink > 1:
                    self._links[inode] = _StoredFile(path, found.st_size, found.st_mtime_ns)
                    if stored is not None and show_name(path) not in self.unsteady:
                        # Written between its names, so it becomes two files; or another file has its number.
                        self.unsteady.append(show_name(path))
            return
        target = os.readlink(name, dir_fd=directory) if stat.S_ISLNK(found.st_mode) else ""
        self._archive.add_entry(path, found, target=target)

    def _add_file(self, path: str, name: str, directory: int) -> bool:
        """Returns False if the file was removed meanwhile."""
        try:
            source = os.open(name, _OPEN, dir_fd=directory)
        except OSError as error:
            if error.errno in _GONE:  # or replaced by something else
                return False
            raise
        try:
            for _ in range(TRIES):
                before = _version(source)

                def is_unchanged(before: tuple[int, int] = before) -> bool:
                    return _version(source) == before

                if self._archive.add_file(path, source, is_unchanged=is_unchanged):
                    return True
            self.unsteady.append(show_name(path))
            while not self._archive.add_file(path, source):
                pass  # it became shorter
            return True
        finally:
            os.close(source)


def _version(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns
