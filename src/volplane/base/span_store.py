"""Spans on disk: each process appends to its own files, in one directory for all processes.

A file is a list of JSON lines: a header with the role and its clocks, then spans. The spans of one turn of
the event loop are one `write`, so a killed process loses at most its last turn. A full file is closed and
another is begun; the oldest files are removed when all together are too large or too old. A full disk pauses
recording and stops nothing else.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from volplane.base.trace import Span

log = logging.getLogger(__name__)

SUFFIX = ".spans"
FILES = 32  # a file has this part of the allowed size
SMALLEST_FILE = 64 * 1024
CLOCK_STEP = 5_000_000  # nanoseconds; a larger change of the wall clock is written down
CLOCK_READINGS = 5
HEADERS = re.compile(rb"^\{.*$", re.MULTILINE)  # in the content of a file
RETRY = 30.0  # seconds until recording is tried again after an error


class RecorderHeader(Struct, frozen=True):
    """Who writes the following spans, and how their times become dates."""

    role: str
    pid: int
    life: str  # differs for every process
    wall_offset: int  # nanoseconds to add to a span's times


class StoredSpan(Struct, frozen=True):
    """A span with times that are comparable between processes: nanoseconds since 1970."""

    role: str
    span: Span
    is_cut_off: bool = False  # its process ended before it did


class WallClock:
    """How times of `time.monotonic_ns` become dates: `offset` is to be added.

    A process may lose its processor between two clocks, so a single comparison of them may be wrong by any
    time.
    """

    def __init__(self) -> None:
        self.offset = self._measure()

    def has_stepped(self) -> bool:
        """Whether the wall clock was set since the last call; then `offset` is another one."""
        if abs(time.time_ns() - time.monotonic_ns() - self.offset) <= CLOCK_STEP:
            return False
        measured = self._measure()
        if abs(measured - self.offset) <= CLOCK_STEP:
            return False
        self.offset = measured
        return True

    def _measure(self) -> int:
        """Read the wall clock between two readings of the other one; of several tries the closest counts."""
        tries = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(CLOCK_READINGS)]
        before, wall, after = min(tries, key=lambda clocks: clocks[2] - clocks[0])
        return wall - (before + after) // 2


Schedule = Callable[[Callable[[], None]], object]


class SpanRecorder:
    """Appends the spans of one process to its files. `SpanRecorder.write` is a sink of a trace.

    `schedule` is the event loop's `call_soon`: spans of its thread are written together. Spans of other
    threads, and all spans if it is None, are written at once.
    """

    def __init__(
        self, directory: Path, role: str, *, max_size: int, max_age: float, schedule: Schedule | None = None
    ) -> None:
        self.directory, self.role = directory, role
        self.max_size, self.max_age = max_size, max_age
        self._schedule, self._thread = schedule, threading.get_ident()
        self._pending: list[bytes] = []
        self._life = f"{os.getpid()}-{time.time_ns():x}"
        self._file = -1
        self._room = 0
        self._clock = WallClock()
        self._retry_at = 0.0
        self._lock = threading.Lock()

    def write(self, span: bytes) -> None:
        """Append an encoded span. Never raises OSError."""
        if self._retry_at and time.monotonic() < self._retry_at:
            return
        with self._lock:  # mounts are recorded by threads
            self._pending.append(span)
            if self._schedule is None or threading.get_ident() != self._thread:
                self._write_pending()
                return
            is_first = len(self._pending) == 1
        if is_first:
            self._schedule(self.flush)

    def flush(self) -> None:
        """Write the spans that wait for the end of the loop's turn."""
        with self._lock:
            self._write_pending()

    def _write_pending(self) -> None:
        pending, self._pending = self._pending, []
        if pending:
            self._append(b"\n".join((*pending, b"")))

    def _append(self, lines: bytes) -> None:
        try:
            if self._room <= 0:
                self._begin_file()
            if self._clock.has_stepped():
                self._write_header()
            if os.write(self._file, lines) != len(lines):
                raise OSError("the disk is full")  # the rest would be part of the next line
            self._room -= len(lines)
            self._retry_at = 0.0
        except OSError as error:
            if not self._retry_at:
                log.warning("steps of volumes are not recorded in %s: %s", self.directory, error)
            self._retry_at = time.monotonic() + RETRY
            self._close_file()

    def close(self) -> None:
        self.flush()
        self._close_file()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._room = -1, 0

    def remove_old_files(self) -> None:
        """Keep the directory within its size and age. The files that are written now are kept."""
        files = sorted(_list_files(self.directory), key=lambda file: file.modified)
        total, oldest = sum(file.size for file in files), time.time() - self.max_age
        newest = {file.role: file.path for file in files}
        for file in files:
            if newest[file.role] == file.path and file.modified >= oldest:
                continue
            if total > self.max_size or file.modified < oldest:
                file.path.unlink(missing_ok=True)
                total -= file.size

    def _begin_file(self) -> None:
        self._close_file()
        self.directory.mkdir(mode=0o700, exist_ok=True)
        name = f"{self.role.replace('/', '-')}.{time.time_ns():x}{SUFFIX}"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(self.directory / name, flags, 0o600)
        self._room = max(self.max_size // FILES, SMALLEST_FILE)
        self._write_header()
        self.remove_old_files()

    def _write_header(self) -> None:
        header = RecorderHeader(self.role, os.getpid(), self._life, self._clock.offset)
        os.write(self._file, msgspec.json.encode(header) + b"\n")


class _SpanFile(Struct, frozen=True):
    path: Path
    role: str
    size: int
    modified: float


def _list_files(directory: Path) -> Iterator[_SpanFile]:
    for path in directory.glob(f"*{SUFFIX}"):
        try:
            found = path.stat()
        except FileNotFoundError:  # removed meanwhile
            continue
        role = path.name.rpartition(".")[0].rpartition(".")[0]  # of ROLE.TIME.spans; node names have dots
        yield _SpanFile(path, role, found.st_size, found.st_mtime)


class SpanReader:
    """Reads what was added to the files of a directory since the last read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[str, int] = {}  # by file: how far it was read
        self._headers: dict[str, RecorderHeader] = {}
        self._open: dict[str, StoredSpan] = {}  # spans that have begun
        self._lives: dict[str, tuple[str, str]] = {}  # by span in `_open`: role and life of its process
        self._newest: dict[str, tuple[float, str]] = {}  # by role: the life that wrote last
        self._reported: set[str] = set()  # files with lines that were skipped

    def read(self) -> list[StoredSpan]:
        """The spans that have ended since the last read, in the order of their start."""
        found: list[StoredSpan] = []
        files = sorted(_list_files(self._directory), key=lambda file: file.path.name)
        for file in files:
            found += self._read_file(file.path)
        return sorted(found, key=lambda stored: stored.span.start)

    def skip(self) -> None:
        """Go to the end of all files: `read` returns what is added from now on."""
        for file in _list_files(self._directory):
            data = _read_bytes(file.path)
            end = data.rfind(b"\n") + 1
            for header in HEADERS.findall(data, 0, end):
                self._decode(file.path, header)
            self._read[file.path.name] = end

    def in_progress(self) -> list[StoredSpan]:
        """The spans that have begun and not ended; those of a process that is gone are cut off."""
        return [
            structs.replace(stored, is_cut_off=not self._may_live(id)) for id, stored in self._open.items()
        ]

    def _may_live(self, id: str) -> bool:
        role, life = self._lives[id]
        return self._newest[role][1] == life and is_running(life)

    def _read_file(self, path: Path) -> Iterator[StoredSpan]:
        at = self._read.get(path.name, 0)
        try:
            with path.open("rb") as file:
                file.seek(at)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    at += len(line)
                    if (stored := self._decode(path, line)) is not None:
                        yield stored
        except FileNotFoundError:  # removed meanwhile
            return
        self._read[path.name] = at

    def _decode(self, path: Path, line: bytes) -> StoredSpan | None:
        try:
            if line.startswith(b"{"):
                header = msgspec.json.decode(line, type=RecorderHeader)
                began = float(int(header.life.partition("-")[2], 16))
                self._headers[path.name] = header
                self._newest[header.role] = max(
                    self._newest.get(header.role, (0.0, "")), (began, header.life)
                )
                return None
            span = msgspec.json.decode(line, type=Span)
        except (msgspec.DecodeError, ValueError) as error:  # damaged by a power cut, or of another program
            self._report_skipped(path, str(error))
            return None
        if path.name not in self._headers:
            self._report_skipped(path, "no header before it tells the role and the clock")
            return None
        header = self._headers[path.name]
        moved = structs.replace(
            span, start=span.start + header.wall_offset, end=span.end and span.end + header.wall_offset
        )
        stored = StoredSpan(header.role, moved)
        if not span.end:
            self._open[span.id] = stored
            self._lives[span.id] = (header.role, header.life)
            return None
        if span.id and self._open.pop(span.id, None) is not None:
            del self._lives[span.id]
        return stored

    def _report_skipped(self, path: Path, why: str) -> None:
        if path.name not in self._reported:
            self._reported.add(path.name)
            log.warning("%s: lines that are no recorded steps are skipped, such as one: %s", path, why)


def _read_bytes(path: Path) -> bytes:
    """The content of a file; nothing if it was removed meanwhile."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def is_running(life: str) -> bool:
    try:
        os.kill(int(life.partition("-")[0]), 0)
    except (ProcessLookupError, ValueError, OverflowError):  # the last two: of a damaged header
        return False
    except PermissionError:
        pass
    return True
