"""Log lines of a moment: of roles in this process while a page is open, and of roles that log into files."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

from volplane.base.log import LogFormatter

MOST_LINES = 4_000  # kept of this process
MOST_BYTES = 4 << 20  # read of the end of each file
AROUND = timedelta(milliseconds=3)  # before and after the step
SHOWN = 40  # lines of one moment
MOST_FILES = 100
# A line of ours; in a container's file, with what the container runtime interface puts before it.
LINE = re.compile(r"(?:\S+ std\w+ [FP] )?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6})Z (.*)")
ANSI_TIME = "%Y-%m-%dT%H:%M:%S.%f"


class LogLine(Struct, frozen=True):
    at: datetime
    text: str
    role: str = ""


class LogRing(logging.Handler):
    """The newest lines of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(LogFormatter())
        self.lines: deque[str] = deque(maxlen=MOST_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class LogReader:
    def __init__(self, files: Sequence[tuple[Path, str]] = (), *, has_own: bool = False) -> None:
        """`files`: directories, each with a pattern of log files; `has_own`: whether roles run here."""
        self._files = files
        self._ring = LogRing() if has_own else None

    def open(self) -> None:
        if self._ring is not None:
            logging.getLogger("volplane").addHandler(self._ring)

    def close(self) -> None:
        if self._ring is not None:
            logging.getLogger("volplane").removeHandler(self._ring)

    async def find(self, begins: datetime, ends: datetime, names: Collection[str]) -> list[LogLine]:
        """Lines of that time that mention one of the names, the oldest first."""
        found = await asyncio.to_thread(self._search_files, begins, ends, names)
        known = {(line.at, line.text) for line in found}
        if self._ring is not None:  # also has what sidecars log into their containers' files
            own = _select(tuple(self._ring.lines), "", begins, ends, names)
            found += [line for line in own if (line.at, line.text) not in known]
        found.sort(key=lambda line: line.at)
        if (hidden := len(found) - SHOWN) > 0:
            found[SHOWN:] = [LogLine(found[SHOWN].at, f"({hidden} more lines of this moment are not shown)")]
        return found

    def _search_files(self, begins: datetime, ends: datetime, names: Collection[str]) -> list[LogLine]:
        found: list[LogLine] = []
        for path in self._list_files(begins - AROUND):
            role = path.parent.name if path.stem.isdecimal() else path.stem
            found += _select(_read_end(path), role, begins, ends, names)
        return found

    def _list_files(self, since: datetime) -> list[Path]:
        """Files that were written since then, the newest first."""
        times: dict[Path, float] = {}
        for directory, pattern in self._files:
            for path in directory.glob(pattern):
                with suppress(OSError):  # removed meanwhile
                    times[path] = path.stat().st_mtime
        recent = [path for path, time in times.items() if time >= since.timestamp()]
        return sorted(recent, key=lambda path: times[path], reverse=True)[:MOST_FILES]


def _read_end(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - MOST_BYTES, 0))
            return file.read().decode(errors="replace").splitlines()
    except OSError:  # removed, or of another user
        return []


def _select(
    lines: Collection[str], role: str, begins: datetime, ends: datetime, names: Collection[str]
) -> Iterator[LogLine]:
    first, last = (f"{at:{ANSI_TIME}}" for at in (begins - AROUND, ends + AROUND))
    for line in lines:
        match = LINE.match(line)
        if match is not None and first <= match[1] <= last and any(name in line for name in names):
            yield LogLine(datetime.strptime(match[1], ANSI_TIME).replace(tzinfo=UTC), match[2], role)
