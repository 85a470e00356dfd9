"""Read the files of one log as if they were one: the rotated ones, oldest first, and the current one.

The container may rotate them at any moment. An open file stays readable when it is renamed or removed, and
its inode shows its position in the sequence. So nothing is read twice, and nothing is skipped unless it was
removed before it was opened.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from typing import BinaryIO

from volplane.node.containers.launcher.log import list_rotated

BLOCK = 64 << 10  # bytes read at a time, backwards, to find the last lines
TRIES = 100  # attempts to open a file that is being renamed


class LogFiles:
    """Blocking, for executor threads."""

    def __init__(self, path: str, *, follow: bool) -> None:
        self._path, self._follow = path, follow
        self._files: list[BinaryIO] = []
        self._end = b"\n"  # the last byte that was read

    def open(self, tail: int | None, since: datetime | None) -> None:
        """Start at the last `tail` lines, or at the oldest file that was written after `since`."""
        # Create a missing file: the container has no output yet, and will append to it.
        os.makedirs(os.path.dirname(self._path), mode=0o755, exist_ok=True)
        newest = os.fdopen(os.open(self._path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o640), "rb")
        self._files = [newest]
        self._files[:0] = self._open_older(newest)
        if since is not None:
            while len(self._files) > 1 and _written_at(self._files[0]) < since.timestamp():
                self._files.pop(0).close()
        if tail is not None:
            self._skip_to_last(tail)

    def _open_older(self, newest: BinaryIO) -> list[BinaryIO]:
        own = os.fstat(newest.fileno())
        found: list[BinaryIO] = []
        if not own.st_nlink:  # removed meanwhile, and all older ones before it
            return found
        for path in list_rotated(self._path):
            if _inode(path) == own.st_ino:  # rotated meanwhile: the following files are newer
                break
            with suppress(FileNotFoundError):
                found.append(open(path, "rb"))  # noqa: SIM115  # closed with the others
        return found

    def _skip_to_last(self, lines: int) -> None:
        for number in range(len(self._files) - 1, -1, -1):
            offset, found = _start_of_last(self._files[number], lines)
            self._files[number].seek(offset)
            lines -= found
            if lines <= 0:
                for old in self._files[:number]:
                    old.close()
                del self._files[:number]
                return

    def read(self, limit: int) -> bytes:
        """The next data; b"" if there is no more at the moment."""
        while True:
            file = self._files[0]
            if data := file.read(limit):
                self._end = data[-1:]
                return data
            if len(self._files) > 1:
                self._files.pop(0).close()
                if self._end != b"\n":  # the disk became full in the middle of a line
                    self._end = b"\n"
                    return b"\n"
            elif os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)  # it could not be renamed and was truncated instead
            elif (newer := self._open_newer(file)) is not None:
                self._files.append(newer)  # then read this one to its end: it is complete now
            else:
                return b""

    def _open_newer(self, file: BinaryIO) -> BinaryIO | None:
        """The file after this one; None if this is the newest, or if the log is not followed."""
        if not self._follow:
            return None
        for _ in range(TRIES):
            row = [*list_rotated(self._path), self._path]
            inodes = [_inode(path) for path in row]
            own = os.fstat(file.fileno())
            if row[:-1] != list_rotated(self._path) or (own.st_ino not in inodes and own.st_nlink):
                continue  # rotated between two listings
            after = inodes.index(own.st_ino) + 1 if own.st_ino in inodes else 0  # 0: this one was removed
            if after == len(row) or inodes[after] is None:
                return None
            with suppress(FileNotFoundError):
                newer = open(row[after], "rb")  # noqa: SIM115  # closed with the others
                if os.fstat(newer.fileno()).st_ino == inodes[after]:
                    return newer
                newer.close()
        return None

    def close(self) -> None:
        for file in self._files:
            file.close()


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _written_at(file: BinaryIO) -> float:
    return os.fstat(file.fileno()).st_mtime


def _start_of_last(file: BinaryIO, lines: int) -> tuple[int, int]:
    """The offset of the last `lines` lines, and how many there are."""
    offset = end = file.seek(0, os.SEEK_END)
    if lines == 0 or end == 0:
        return end, 0
    found = 0
    while offset > 0:
        step = min(BLOCK, offset)
        offset -= step
        file.seek(offset)
        block = file.read(step)
        cut = len(block) - 1 if offset + step == end and block.endswith(b"\n") else len(block)
        while (cut := block.rfind(b"\n", 0, cut)) >= 0:
            found += 1
            if found == lines:
                return offset + cut + 1, found
    return 0, found + 1
