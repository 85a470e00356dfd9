"""What the roles of a process wait for, and the state of their volumes, reported on a socket.

Objects show what was decided; only the running role knows timers, backoff and mounts. A connection asks one
question, a line with a `Question`, gets a JSON list and is closed. Only the owner of the socket's directory
can connect. There is no other authentication, so the socket must not be placed elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from volplane.base import clock
from volplane.base.sockets import bind_privately, remove_socket, short_path
from volplane.loops.controller import Controller
from volplane.loops.volume_states import StateComparison
from volplane.rules.waits import Wait, WaitData

log = logging.getLogger(__name__)

ANSWER_TIMEOUT = 2.0  # seconds for one connection
SUFFIX = ".waits"

T = TypeVar("T")


class Question(StrEnum):
    """What a connection to the socket asks for."""

    WAITS = "waits"
    VOLUMES = "volumes"
    PLUGINS = "plugins"
    DISKS = "disks"


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


# Reports of the type that belongs to the question. A source that calls other processes is a coroutine.
Source = Callable[[], Iterable[Any] | Awaitable[Iterable[Any]]]


class WaitRegistry:
    """The running roles of one cluster, and what they report.

    The composition root creates it and passes it to every role, so that two clusters in one process do not
    share it.
    """

    def __init__(self) -> None:
        self._sources: dict[Question, list[Source]] = {question: [] for question in Question}

    def add(self, source: Source, question: Question = Question.WAITS) -> None:
        self._sources[question].append(source)

    def remove(self, source: Source, question: Question = Question.WAITS) -> None:
        if source in self._sources[question]:
            self._sources[question].remove(source)

    @contextmanager
    def reporting(self, source: Source, question: Question = Question.WAITS) -> Iterator[None]:
        self.add(source, question)
        try:
            yield
        finally:
            self.remove(source, question)

    async def run(self, controller: Controller[Any, Any, Any]) -> None:
        """Run a controller, and report its waits and the state of its volumes."""

        def reports() -> Iterator[WaitReport]:
            for wait in controller.waits:
                yield WaitReport.of(controller.name, str(wait.key), wait.wait, wait.since, wait.next_try)

        async def volumes() -> list[StateComparison]:
            compared = await controller.compare_states() if controller.is_running else None
            return [compared] if compared is not None else []

        with self.reporting(reports), self.reporting(volumes, Question.VOLUMES):
            await controller.run()

    async def answer(self, question: Question) -> list[Any]:
        """What all roles report to a question."""
        answers = await asyncio.gather(*map(_read, self._sources[question]), return_exceptions=True)
        reports: list[Any] = []
        for answer in answers:
            if isinstance(answer, BaseException):  # of one role: the others can be reported
                log.error("a role cannot report its %s", question, exc_info=answer)
            else:
                reports += answer
        return reports


async def _read(source: Source) -> Iterable[Any]:
    found = source()
    return await found if isinstance(found, Awaitable) else found


def to_wall_time(moment: float) -> datetime:
    """A time of the event loop's clock as a date and time."""
    return clock.wall() + timedelta(seconds=moment - clock.now())


@asynccontextmanager
async def serve_wait_reports(path: str, registry: WaitRegistry) -> AsyncIterator[None]:
    """Serve the reports on that socket."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError):  # ValueError: a question that is not known
            async with asyncio.timeout(ANSWER_TIMEOUT):
                try:
                    question = Question((await reader.readline()).decode().strip())
                    writer.write(msgspec.json.encode(await registry.answer(question)))
                    await writer.drain()
                finally:
                    writer.close()
                await writer.wait_closed()

    server = await asyncio.start_unix_server(answer, sock=bind_privately(path))
    try:
        yield
    finally:
        server.close()
        remove_socket(path)


async def ask(path: str, question: Question, type: type[T]) -> list[T]:
    """Ask the roles behind a socket. Raises OSError or TimeoutError."""
    async with asyncio.timeout(ANSWER_TIMEOUT):
        with short_path(path) as short:
            reader, writer = await asyncio.open_unix_connection(short)
        try:
            writer.write(f"{question}\n".encode())
            return msgspec.json.decode(await reader.read(), type=list[type])  # type: ignore[valid-type]
        except msgspec.DecodeError as error:
            raise OSError(f"{path}: {error}") from error
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
