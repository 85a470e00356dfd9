"""One log line per record, in one format, to the log of the process or of the current container.

The sink is a context variable: a sidecar that runs as a coroutine of the node sets it once in its own task,
and every line that this task and its child tasks log goes to that container's log, as if it were a process of
its own. A process whose output goes to a file (`VOLPLANE_LOG_FILE`) rotates the file when it is large, output
of the Python interpreter included.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from glob import escape, glob
from typing import IO

from volplane.base import clock

FILE = "VOLPLANE_LOG_FILE"  # environment variable: the file that standard output and error go to
MAX_SIZE, MAX_FILES = 10 << 20, 5  # of a role's log: bytes per file, number of files

sink: ContextVar[Callable[[str], None] | None] = ContextVar("volplane_log_sink", default=None)

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_GROUPING_PACKAGES = frozenset(
    {"controllers", "sidecars", "drivers"}
)  # packages of components: the inner name says more


class LogFormatter(logging.Formatter):
    """`2026-11-15T20:00:00.123456Z INFO  attacher: text key=value`; pairs come from `extra=`."""

    def format(self, record: logging.LogRecord) -> str:
        more = record.__dict__
        pairs = "" if more.keys() <= _PLAIN else _format_pairs(more)
        head = f"{clock.microstamp()} {record.levelname:<5} {component(record.name)}:"
        line = f"{head} {record.getMessage()}{pairs}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


def _format_pairs(attributes: Mapping[str, object]) -> str:
    return "".join(f" {k}={_value(v)}" for k, v in attributes.items() if k not in _PLAIN)


@cache
def component(logger: str) -> str:
    """The component of a logger: `attacher` for `volplane.sidecars.attacher.controller`."""
    parts = logger.removeprefix("volplane.").split(".")
    return parts[1] if parts[0] in _GROUPING_PACKAGES and len(parts) > 1 else parts[0]


def _value(value: object) -> str:
    text = str(value)
    return repr(text) if not text or " " in text or "\n" in text else text


def rotate(path: str) -> bool:
    """Rename a file that has reached its size and delete the oldest ones. Returns whether it was renamed."""
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
    """Switch standard output and error to a new file if the present one is too large."""
    if rotate(path) or not os.path.exists(path):
        with suppress(OSError):  # a full disk: continue in the old file
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            for stream in (1, 2):
                os.dup2(file, stream)
            os.close(file)


class LogHandler(logging.StreamHandler[IO[str]]):
    def __init__(self, stream: IO[str], file: str = "") -> None:
        """`file`: the file behind the stream, if it is to be rotated."""
        super().__init__(stream)
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        container_sink = sink.get()
        if container_sink is None:
            super().emit(record)
            if self._file:
                _rotate_output(self._file)
            return
        try:
            container_sink(self.format(record))
        except Exception:  # a full disk must not end the container
            self.handleError(record)


def setup(level: str | int = logging.INFO, stream: IO[str] | None = None) -> None:
    """Send all records to one handler; calling it again replaces the earlier one."""
    # Log lines show neither source position nor thread, so `logging` need not look them up. These are the
    # documented switches for that.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, LogHandler)]:
        root.removeHandler(old)
    handler = LogHandler(stream or sys.stderr, "" if stream else os.environ.get(FILE, ""))
    handler.setFormatter(LogFormatter())
    root.addHandler(handler)
    root.setLevel(logging.WARNING)  # libraries log only warnings and errors
    logging.getLogger("volplane").setLevel(level.upper() if isinstance(level, str) else level)
