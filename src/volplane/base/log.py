"""One line per record, in one format, to the process's log or to whoever owns the current context.

The sink is a context variable: a sidecar that runs as a coroutine of the node sets it once in its own task,
and every line written below that task, by any room, lands in that container's log as if it were its own
process. A process whose output goes to a file (`VOLPLANE_LOG_FILE`) renames it when it is large and begins a
new one, for what Python itself writes there, too.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from glob import escape, glob
from typing import IO

from volplane.base import clock

FILE = "VOLPLANE_LOG_FILE"  # the variable that names the file of the standard streams
MAX_SIZE, MAX_FILES = 10 << 20, 5  # of a role's log: bytes of a file, and files

sink: ContextVar[Callable[[str], None] | None] = ContextVar("volplane_log_sink", default=None)

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_GROUPING_PACKAGES = frozenset(
    {"controllers", "sidecars", "drivers"}
)  # they only hold rooms: the inner name says more


class LogFormatter(logging.Formatter):
    """`2026-11-15T20:00:00.123456Z INFO  attacher: text key=value`; the values come from `extra=`."""

    def format(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {k}={_value(v)}" for k, v in record.__dict__.items() if k not in _PLAIN)
        head = f"{clock.microstamp()} {record.levelname:<5} {component(record.name)}:"
        line = f"{head} {record.getMessage()}{pairs}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


@cache
def component(logger: str) -> str:
    """Whose line it is: `volplane.sidecars.attacher.controller` is the attacher's."""
    parts = logger.removeprefix("volplane.").split(".")
    return parts[1] if parts[0] in _GROUPING_PACKAGES and len(parts) > 1 else parts[0]


def _value(value: object) -> str:
    text = str(value)
    return repr(text) if not text or " " in text or "\n" in text else text


def rotate(path: str) -> bool:
    """Rename a file that has reached its size, and keep the newest of those. Whether it was renamed."""
    try:
        old = time.strftime(f"{path}.%Y%m%d-%H%M%S", time.gmtime())
        if os.stat(path).st_size < MAX_SIZE or os.path.exists(old):
            return False
        os.rename(path, old)
        for surplus in sorted(glob(f"{escape(path)}.????????-??????"))[: -(MAX_FILES - 1)]:
            os.unlink(surplus)
    except OSError:
        return False
    return True


def _rotate_output(path: str) -> None:
    """Go on in a new file if the one of our standard streams has become too large."""
    if rotate(path) or not os.path.exists(path):
        with suppress(OSError):  # a full disk: on in the old one
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            for stream in (1, 2):
                os.dup2(file, stream)
            os.close(file)


class LogHandler(logging.StreamHandler[IO[str]]):
    def __init__(self, stream: IO[str], file: str = "") -> None:
        """`file`: where the stream ends, if that is to be rotated."""
        super().__init__(stream)
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        mine = sink.get()
        if mine is None:
            super().emit(record)
            if self._file:
                _rotate_output(self._file)
            return
        try:
            mine(self.format(record))
        except Exception:  # a full disk under a container's log must not end the container
            self.handleError(record)


def setup(level: str | int = logging.INFO, stream: IO[str] | None = None) -> None:
    """Route everything through one handler; calling it again replaces the earlier one."""
    # No line says where in the code or in which thread it was written, so nobody has to find out. These are
    # the switches that the library documents for it.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, LogHandler)]:
        root.removeHandler(old)
    handler = LogHandler(stream or sys.stderr, "" if stream else os.environ.get(FILE, ""))
    handler.setFormatter(LogFormatter())
    root.addHandler(handler)
    root.setLevel(logging.WARNING)  # libraries speak up only when something is wrong
    logging.getLogger("volplane").setLevel(level.upper() if isinstance(level, str) else level)
