"""What the roles of this process wait for, told to whoever may open a socket of theirs.

Objects show what was decided; timers, backoff and mounts only the running role knows. One connection is one
answer: the list as JSON, then the end. The subtle thing: the socket's directory is its owner's alone, and
that is the whole of the authentication, so it is never put anywhere else.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from msgspec import Struct

from volplane.base import clock
from volplane.base.sockets import short_path
from volplane.loops.controller import running

ANSWER = 2.0  # seconds that a role gets to tell
SUFFIX = ".waits"


class Told(Struct, frozen=True, omit_defaults=True):
    role: str  # the controller's name, or `node/worker-1`
    key: str
    why: str
    since: datetime
    next_try: datetime | None = None  # None: only an event wakes it


Source = Callable[[], Iterable[Told]]
sources: set[Source] = set()  # roles that are no controllers


def told() -> list[Told]:
    """Of every role at work in this process."""
    found = [
        Told(controller.name, str(w.key), w.why, w.since, w.next_try)
        for controller in running
        for w in controller.waits
    ]
    return [*found, *(each for source in sources for each in source())]


def on_wall(moment: float) -> datetime:
    """A moment of the loop's clock, as people write it."""
    return clock.wall() + timedelta(seconds=moment - clock.now())


@asynccontextmanager
async def telling(path: str) -> AsyncIterator[None]:
    """Tell at that socket meanwhile."""

    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(ANSWER):
                writer.write(msgspec.json.encode(told()))
                await writer.drain()
                writer.close()
                await writer.wait_closed()

    server = await asyncio.start_unix_server(tell, sock=_bound(path))
    try:
        yield
    finally:
        server.close()
        _gone(path)


def _bound(path: str) -> socket.socket:
    """What a killed role left there is no reason not to start."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with short_path(path) as short:
            _gone(path)
            made.bind(short)
            os.chmod(short, 0o600)  # before it listens: until then nobody can connect
    except BaseException:
        made.close()
        raise
    return made


def _gone(path: str) -> None:
    Path(path).unlink(missing_ok=True)


async def ask(path: str) -> list[Told]:
    """What the roles behind a socket wait for; OSError or TimeoutError where nobody answers."""
    async with asyncio.timeout(ANSWER):
        with short_path(path) as short:
            reader, writer = await asyncio.open_unix_connection(short)
        try:
            return msgspec.json.decode(await reader.read(), type=list[Told])
        except msgspec.DecodeError as error:
            raise OSError(f"{path}: {error}") from error
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
