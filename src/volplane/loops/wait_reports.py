"""What the roles of a process wait for, reported on a socket.

Objects show what was decided; only the running role knows timers, backoff and mounts. Each connection gets
the list as JSON and is closed. Only the owner of the socket's directory can connect. There is no other
authentication, so the socket must not be placed elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from volplane.base import clock
from volplane.base.sockets import short_path
from volplane.loops.controller import Controller
from volplane.rules.waits import Wait, WaitData

ANSWER_TIMEOUT = 2.0  # seconds for one connection
SUFFIX = ".waits"


class WaitReport(Struct, frozen=True, omit_defaults=True):
    """One wait, as JSON on the socket.

    Reports are matched with the waits of a plan by role, key, reason and data. `why` is for people: the
    sender renders it, so that a reader also shows reasons that it does not know.
    """

    role: str  # the controller's name, or `node/worker-1`
    key: str
    why: str
    since: datetime
    next_try: datetime | None = None  # None: only an event wakes it
    reason: str = ""  # a WaitReason of the sender's version; "" of an older one
    data: WaitData = WaitData()

    @classmethod
    def of(
        cls, role: str, key: str, wait: Wait, since: datetime, next_try: datetime | None = None
    ) -> WaitReport:
        return cls(role, key, wait.text, since, next_try, wait.reason, wait.data)

    def is_about(self, wait: Wait) -> bool:
        return (self.reason, self.data) == wait.identity


Source = Callable[[], Iterable[WaitReport]]


class WaitRegistry:
    """The running roles of one cluster that report what they wait for.

    The composition root creates it and passes it to every role, so that two clusters in one process do not
    share it.
    """

    def __init__(self) -> None:
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
        self._sources.append(source)

    def remove(self, source: Source) -> None:
        if source in self._sources:
            self._sources.remove(source)

    @contextmanager
    def reporting(self, source: Source) -> Iterator[None]:
        self.add(source)
        try:
            yield
        finally:
            self.remove(source)

    async def run(self, controller: Controller[Any, Any, Any]) -> None:
        """Run a controller and report its waits."""

        def reports() -> Iterator[WaitReport]:
            for wait in controller.waits:
                yield WaitReport.of(controller.name, str(wait.key), wait.wait, wait.since, wait.next_try)

        with self.reporting(reports):
            await controller.run()

    def reports(self) -> list[WaitReport]:
        return [report for source in self._sources for report in source()]


def to_wall_time(moment: float) -> datetime:
    """A time of the event loop's clock as a date and time."""
    return clock.wall() + timedelta(seconds=moment - clock.now())


@asynccontextmanager
async def serve_wait_reports(path: str, registry: WaitRegistry) -> AsyncIterator[None]:
    """Serve the reports on that socket."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_TIMEOUT):
                writer.write(msgspec.json.encode(registry.reports()))
                await writer.drain()
                writer.close()
                await writer.wait_closed()

    server = await asyncio.start_unix_server(answer, sock=_bind(path))
    try:
        yield
    finally:
        server.close()
        _remove(path)


def _bind(path: str) -> socket.socket:
    """A socket bound to the path; one that a killed role left there is replaced."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with short_path(path) as short:
            _remove(path)
            made.bind(short)
            os.chmod(short, 0o600)  # before it listens: no one can connect until then
    except BaseException:
        made.close()
        raise
    return made


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


async def read_wait_reports(path: str) -> list[WaitReport]:
    """Read the reports of the roles behind a socket. Raises OSError or TimeoutError."""
    async with asyncio.timeout(ANSWER_TIMEOUT):
        with short_path(path) as short:
            reader, writer = await asyncio.open_unix_connection(short)
        try:
            return msgspec.json.decode(await reader.read(), type=list[WaitReport])
        except msgspec.DecodeError as error:
            raise OSError(f"{path}: {error}") from error
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
