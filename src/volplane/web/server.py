"""The listener: accepts connections, sweeps out silent ones, and closes without cutting an answer in two."""

from __future__ import annotations

import asyncio
import errno
import ssl as tls
from contextlib import suppress
from email.utils import format_datetime
from http import HTTPStatus

from volplane.base import clock
from volplane.web.connection import Connection
from volplane.web.message import Handler

MAX_BODY = 3 * 1024 * 1024
IDLE = 300.0  # seconds a connection may wait between requests; clients give up theirs earlier
SLOW = 30.0  # seconds a request may take to arrive
SWEEP = 10.0
LINGER = 2.0
BACKLOG = 1024
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class PortInUse(OSError):
    def __init__(self, host: str, port: int) -> None:
        super().__init__(errno.EADDRINUSE, f"port {port} on {host} is in use by another program")


class Server:
    """Made by `await serve(…)`."""

    port: int

    def __init__(self, handler: Handler, max_body: int) -> None:
        self.handler = handler
        self.max_body = max_body
        self.linger = LINGER
        self.closing = False
        self.connections: set[Connection] = set()
        self._loop = asyncio.get_running_loop()
        self._emptied = asyncio.Event()
        self._second = -1
        self._firsts: dict[int, str] = {}
        self._chunk = (b"", b"")
        self._listener: asyncio.Server
        self._sweeper: asyncio.TimerHandle

    async def _listen(self, host: str, port: int, ssl: tls.SSLContext | None) -> None:
        try:
            self._listener = await self._loop.create_server(
                lambda: Connection(self), host, port, ssl=ssl, backlog=BACKLOG
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(host, port) from None
            raise
        self.port = self._listener.sockets[0].getsockname()[1]
        self._sweeper = self._loop.call_later(SWEEP, self._sweep)

    def chunk(self, piece: bytes) -> bytes:
        """A piece of a stream as it goes over the wire; the same one often goes to many."""
        if self._chunk[0] is not piece:
            self._chunk = piece, b"%x\r\n%b\r\n" % (len(piece), piece)
        return self._chunk[1]

    async def close(self, grace: float = 5.0) -> None:
        """Stop listening, end streams at once, give the rest `grace` seconds to be answered."""
        self.closing = True
        self._sweeper.cancel()
        self._listener.close()
        busy = [task for connection in list(self.connections) if (task := _leave(connection)) is not None]
        if busy:
            _, late = await asyncio.wait(busy, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)
        await self._leave_last()
        await self._listener.wait_closed()

    async def _leave_last(self) -> None:
        """What has been written goes out, if the client takes it."""
        if self.connections:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.linger):
                    await self._emptied.wait()
        for connection in list(self.connections):
            connection.abort()

    def left(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self.closing and not self.connections:
            self._emptied.set()

    def first_lines(self, status: int) -> str:
        """Status line and date, worded once a second."""
        second = int(self._loop.time())
        if second != self._second:
            self._second = second
            self._firsts = {}
        known = self._firsts.get(status)
        if known is None:
            date = format_datetime(clock.wall(), usegmt=True)
            known = f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\nDate: {date}\r\n"
            self._firsts[status] = known
        return known

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in list(self.connections):
            if not connection.is_working():
                patience = SLOW if connection.is_reading() else IDLE
                if now - connection.since > patience:
                    connection.close()
        self._sweeper = self._loop.call_later(SWEEP, self._sweep)


def _leave(connection: Connection) -> asyncio.Task[None] | None:
    """Begin to end a connection; the task that still has something to say."""
    if not connection.is_working():
        connection.close()
        return None
    if connection.task is not None and connection.is_endless():
        connection.task.cancel()
    return connection.task


async def serve(
    handler: Handler,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    ssl: tls.SSLContext | None = None,
    max_body: int = MAX_BODY,
) -> Server:
    """Listen; port 0 takes a free one. PortInUse."""
    server = Server(handler, max_body)
    await server._listen(host, port, ssl)
    return server
