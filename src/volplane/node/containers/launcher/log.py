"""A container's log in the format of Kubernetes nodes: `time stream F text`, parts of a line marked P.

A file that has reached its maximum size is renamed to `0.log.20261115-200000` and a new one is started; the
newest old files are kept, uncompressed. The writer rotates by itself, at the end of a line, so that no
container ever has more on the disk than its limit.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

MAX_LINE = 16 << 10  # a longer line is written in parts
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class RotatingFile:
    """Appends whole lines.

    Lines are lost while the disk is full; the log says how many when there is space.
    """

    def __init__(self, path: str, max_size: int = 0, max_files: int = 0) -> None:
        """`max_size`: bytes of one file, 0 for no limit; `max_files`: number of files, including this one."""
        self._path, self._max_size, self._max_files = path, max_size, max_files
        self._lost, self._why = 0, ""  # lines that were not written, and why
        self._torn = False  # the last line in the file is incomplete
        self._file = -1
        self._size = 0
        with suppress(OSError):  # a full disk: the next line tries again
            self._open()

    def _open(self) -> None:
        if not self._path:
            self._file = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            return
        os.makedirs(os.path.dirname(self._path) or "/", mode=0o755, exist_ok=True)
        self._file = os.open(self._path, FLAGS, 0o640)
        self._size = os.fstat(self._file).st_size

    def append(self, lines: list[bytes]) -> None:
        """Append lines with their line ends, with one write for each file: readers see whole lines."""
        while lines:
            count = self._count_fitting(lines)
            if not count:
                self._rotate()
                count = max(1, self._count_fitting(lines))
            self._write(lines[:count])
            lines = lines[count:]

    def _count_fitting(self, lines: list[bytes]) -> int:
        """How many of the lines fit into the file."""
        size = self._size
        if not self._max_size or size + sum(map(len, lines)) <= self._max_size:
            return len(lines)
        for count, line in enumerate(lines):
            size += len(line)
            if size > self._max_size:
                return count
        return len(lines)

    def _write(self, lines: list[bytes]) -> None:
        head, data = b"\n" if self._torn else b"", b"".join(lines)
        if self._lost:
            head += (
                f"{format_now()} stderr F {self._lost} lines of this log were lost: {self._why}\n".encode()
            )
        try:
            if self._file < 0:
                self._open()
            written = os.write(self._file, head + data)
        except OSError as error:
            self._lost, self._why = self._lost + len(lines), os.strerror(error.errno or 0)
            return
        self._size += written
        whole = head + data
        self._torn = whole[written - 1 : written] != b"\n"
        lost = data[max(0, written - len(head)) :].count(
            b"\n"
        )  # of a short write: the disk is full from there
        self._lost = lost + (self._lost if written < len(head) else 0)
        if lost:
            self._why = "No space left on device"

    def _rotate(self) -> None:
        if self._file < 0 or not self._path:
            return
        try:
            os.rename(self._path, rotated_name(self._path))
        except OSError:
            os.ftruncate(self._file, 0)  # the limit holds even if renaming fails
        else:
            os.close(self._file)
            self._file = -1
        self._torn, self._size = False, 0
        with suppress(OSError):
            for old in list_rotated(self._path)[: -(self._max_files - 1) or None]:
                os.unlink(old)
        with suppress(OSError):
            if self._file < 0:
                self._open()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class ContainerLog:
    def __init__(self, path: str, max_size: int = 0, max_files: int = 0) -> None:
        self._file = RotatingFile(path, max_size, max_files)
        self._rest = {"stdout": b"", "stderr": b""}

    def write(self, stream: str, data: bytes) -> None:
        *lines, rest = (self._rest[stream] + data).split(b"\n")
        head = f"{format_now()} {stream} ".encode()
        parts = [head + mark + part + b"\n" for line in lines for mark, part in split_line(line)]
        while len(rest) >= MAX_LINE:
            parts.append(head + b"P " + rest[:MAX_LINE] + b"\n")
            rest = rest[MAX_LINE:]
        self._rest[stream] = rest
        self._file.append(parts)

    def flush(self) -> None:
        """Write what is left of incomplete lines, marked as partial."""
        for stream, rest in self._rest.items():
            if rest:
                self._file.append([f"{format_now()} {stream} P ".encode() + rest + b"\n"])


def split_line(line: bytes) -> list[tuple[bytes, bytes]]:
    """(mark, part) for each part of a line; a short line has one."""
    pieces = [line[i : i + MAX_LINE] for i in range(0, len(line), MAX_LINE)] or [b""]
    return [(b"P ", piece) for piece in pieces[:-1]] + [(b"F ", pieces[-1])]


def rotated_name(path: str) -> str:
    """A name that sorts after all others: numbered within a second, and also if the clock goes back."""
    when, count = time.strftime("%Y%m%d-%H%M%S", time.gmtime()), 0
    if others := list_rotated(path):
        newest, number = _rotation_key(os.path.basename(others[-1]), os.path.basename(path))
        if newest >= when:
            when, count = newest, number + 1
    return f"{path}.{when}.{count}" if count else f"{path}.{when}"


def list_rotated(path: str) -> list[str]:
    """The rotated files of a log, oldest first."""
    directory, name = os.path.split(path)
    try:
        names = os.listdir(directory or ".")
    except FileNotFoundError:
        return []
    found = [other for other in names if _is_rotated(other, name)]
    return [os.path.join(directory, other) for other in sorted(found, key=lambda n: _rotation_key(n, name))]


def _is_rotated(other: str, name: str) -> bool:
    if not other.startswith(f"{name}."):
        return False
    when, _, count = other[len(name) + 1 :].partition(".")
    is_time = len(when) == 15 and when[8] == "-" and when.replace("-", "", 1).isdigit()
    return is_time and (not count or count.isdigit())


def _rotation_key(other: str, name: str) -> tuple[str, int]:
    when, _, count = other[len(name) + 1 :].partition(".")
    return when, int(count or 0)


def format_now() -> str:
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanoseconds:09d}Z"
