"""One line per record, in one format, to the process's log or to whoever owns the current context.

The sink is a context variable: a sidecar that runs as a coroutine of the node sets it once in its own task,
and every line written below that task, by any room, lands in that container's log as if it were its own
process.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from typing import IO

from volplane.base import clock

sink: ContextVar[Callable[[str], None] | None] = ContextVar("volplane_log_sink", default=None)

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_HOUSES = frozenset({"controllers", "sidecars", "drivers"})  # they only hold rooms: the inner name says more


class Formatter(logging.Formatter):
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
    return parts[1] if parts[0] in _HOUSES and len(parts) > 1 else parts[0]


def _value(value: object) -> str:
    text = str(value)
    return repr(text) if not text or " " in text or "\n" in text else text


class Handler(logging.StreamHandler[IO[str]]):
    def emit(self, record: logging.LogRecord) -> None:
        mine = sink.get()
        if mine is None:
            return super().emit(record)
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
    for old in [h for h in root.handlers if isinstance(h, Handler)]:
        root.removeHandler(old)
    handler = Handler(stream or sys.stderr)
    handler.setFormatter(Formatter())
    root.addHandler(handler)
    root.setLevel(logging.WARNING)  # libraries speak up only when something is wrong
    logging.getLogger("volplane").setLevel(level.upper() if isinstance(level, str) else level)
