"""The HTTP server: its connections, which of them are dropped when there are too many, and how it closes.

When the limit of connections is reached, one is dropped for each new one: first unauthenticated connections,
the oldest first; then idle ones; then one of the user who has the most.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl as tls
from collections import Counter
from contextlib import suppress
from email.utils import format_datetime
from functools import partial
from http import HTTPStatus

from volplane.base import clock
from volplane.base.tasks import cancel_and_wait
from volplane.web.connection import ServerConnection
from volplane.web.limits import MAX_LARGE_BODIES, ServerLimits, descriptors_for_connections
from volplane.web.listener import BadAddress, PortInUse, TcpListener
from volplane.web.message import Handler

__all__ = ["BadAddress", "HttpServer", "PortInUse", "ServerLimits", "serve"]

log = logging.getLogger(__name__)

SWEEP = 5.0
LINGER = 2.0
GIVEN_BACK = 8  # unauthenticated connections that are dropped when descriptors have run out
FAIR_SHARE = 4  # users with less than this part of the connections are never cut off
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class HttpServer:
    """Created by `await serve(…)`."""

    port: int

    def __init__(self, handler: Handler, limits: ServerLimits, ssl: tls.SSLContext | None) -> None:
        self.handler = handler
        self.limits = limits
        self.linger = LINGER
        self.closing = False
        self.connections: set[ServerConnection] = set()
        self.most = limits.max_connections()
        self.most_unauthenticated = limits.max_unauthenticated()
        self._ssl = ssl
        self._loop = asyncio.get_running_loop()
        self._listener = TcpListener(self._add_connection, self._free_descriptors)
        self._handshakes: dict[ServerConnection, None] = {}
        self._unauthenticated: dict[ServerConnection, None] = {}  # in order of arrival
        self._large: dict[ServerConnection, None] = {}  # unauthenticated connections that send a large body
        self._below = descriptors_for_connections()
        self._emptied = asyncio.Event()
        self._second = -1
        self._firsts: dict[int, str] = {}
        self._chunk = (b"", b"")
        self._sweeper: asyncio.TimerHandle

    async def _listen(self, host: str, port: int) -> None:
        self.port = await self._listener.open(host, port)
        self._sweeper = self._loop.call_later(SWEEP, self._sweep)

    # Accepting connections

    def _add_connection(self, made: socket.socket) -> None:
        connection = ServerConnection(self)
        if len(self._unauthenticated) >= self.most_unauthenticated:
            self._listener.report_drop(
                "unauthenticated",
                "a connection was dropped: %d have not authenticated",
                self.most_unauthenticated,
            )
            self._drop_unauthenticated()
        # The kernel assigns the lowest free number: a high one means that all below are in use.
        if made.fileno() >= self._below or self.open_connections >= self.most:
            self._listener.report_drop(
                "connections", "a connection was dropped: %d are open", self.open_connections
            )
            if not self._make_room():
                made.close()
                return
        self._unauthenticated[connection] = None
        self._handshakes[connection] = None
        connection.handshake = task = self._loop.create_task(self._run_handshake(connection, made))
        task.add_done_callback(partial(self._end_handshake, connection, made))

    async def _run_handshake(self, connection: ServerConnection, made: socket.socket) -> None:
        if self._ssl is None:
            await self._loop.connect_accepted_socket(lambda: connection, made)
        else:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                made,
                ssl=self._ssl,
                ssl_handshake_timeout=self.limits.handshake,
                ssl_shutdown_timeout=self.limits.goodbye,
            )

    def _end_handshake(
        self, connection: ServerConnection, made: socket.socket, task: asyncio.Task[None]
    ) -> None:
        connection.handshake = None
        self._handshakes.pop(connection, None)
        error = None if task.cancelled() else task.exception()
        if error is not None or task.cancelled():
            self.remove_connection(connection)
            made.close()
        if error is not None and not isinstance(error, OSError):  # TLS errors are OSErrors
            log.warning("a connection could not be set up", exc_info=error)

    @property
    def open_connections(self) -> int:
        """The number of connections, including those in their handshake."""
        return len(self.connections) + len(self._handshakes)

    def mark_authenticated(self, connection: ServerConnection) -> None:
        """Note that the client of a connection has authenticated."""
        self._unauthenticated.pop(connection, None)
        self._large.pop(connection, None)

    def admit_large_body(self, connection: ServerConnection) -> None:
        """Note that an unauthenticated client sends a large body. Few may, since each takes memory."""
        self._large.pop(connection, None)
        self._large[connection] = None
        for oldest in list(self._large):
            if len(self._large) <= MAX_LARGE_BODIES:
                break
            if not oldest.is_authenticated() and not oldest.is_working():
                self._listener.report_drop(
                    "large-bodies", "a connection was dropped: too many send large bodies unauthenticated"
                )
                oldest.abort()
            self._large.pop(oldest, None)

    def _make_room(self) -> bool:
        """Drop the least important connection. Returns False if there is none."""
        return self._drop_unauthenticated() or self._drop_idle() or self._drop_from_largest_holder()

    def _free_descriptors(self) -> bool:
        """Drop one connection, and some more unauthenticated ones, after descriptors have run out."""
        given = self._make_room()
        for _ in range(GIVEN_BACK):
            if not self._drop_unauthenticated():
                break
        return given

    def _drop_unauthenticated(self) -> bool:
        """Drop the oldest that waits for its client; if there is none, the oldest with a running handler."""
        victim: ServerConnection | None = None
        for connection in list(self._unauthenticated):
            if connection.is_authenticated():  # which removes it from the dictionary
                continue
            if not connection.is_working():
                victim = connection
                break
            victim = victim or connection
        return self._drop(victim)

    def _drop_idle(self) -> bool:
        idle = (c for c in self.connections if not c.is_working())
        return self._drop(min(idle, key=lambda c: c.since, default=None))

    def _drop_from_largest_holder(self) -> bool:
        """Drop a connection of the user who has the most. Clients reopen a watch that ends."""
        held = Counter(connection.user for connection in self.connections)
        user, count = next(iter(held.most_common(1)), ("", 0))
        if count * FAIR_SHARE < self.most:
            return False
        theirs = (c for c in self.connections if c.user == user)
        return self._drop(min(theirs, key=lambda c: c.since, default=None))

    def _drop(self, connection: ServerConnection | None) -> bool:
        if connection is None:
            return False
        self.remove_connection(connection)  # now, so that it no longer counts for the next one
        connection.abort()
        return True

    def chunk(self, piece: bytes) -> bytes:
        """A piece of a stream in chunked encoding; cached, because the same piece often goes to many
        watchers.
        """
        if self._chunk[0] is not piece:
            self._chunk = piece, b"%x\r\n%b\r\n" % (len(piece), piece)
        return self._chunk[1]

    async def close(self, grace: float = 5.0) -> None:
        """Stop listening, end streams at once, and give other requests `grace` seconds to complete."""
        self.closing = True
        self._sweeper.cancel()
        self._listener.close()
        handshakes = [task for c in self._handshakes if (task := c.handshake) is not None]
        await cancel_and_wait(*handshakes)
        busy = [
            task for connection in list(self.connections) if (task := _begin_closing(connection)) is not None
        ]
        if busy:
            _, late = await asyncio.wait(busy, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)
        await self._flush_and_abort()

    async def _flush_and_abort(self) -> None:
        """Wait until clients have read what was written, then abort the rest."""
        if self.connections:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.linger):
                    await self._emptied.wait()
        for connection in list(self.connections):
            connection.abort()

    def remove_connection(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)
        self._handshakes.pop(connection, None)
        self._unauthenticated.pop(connection, None)
        self._large.pop(connection, None)
        if self.closing and not self.connections:
            self._emptied.set()

    def response_start(self, status: int) -> str:
        """The status line and the Date header, formatted once a second."""
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
            if connection.is_overdue(now, self.limits):
                connection.end()
        self._sweeper = self._loop.call_later(SWEEP, self._sweep)


def _begin_closing(connection: ServerConnection) -> asyncio.Task[None] | None:
    """Begin to close a connection. Returns the task that still sends a response, if any."""
    if not connection.is_working():
        connection.close()
        return None
    if connection.task is not None and connection.is_streaming():
        connection.task.cancel()
    return connection.task


async def serve(
    handler: Handler,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    ssl: tls.SSLContext | None = None,
    limits: ServerLimits | None = None,
) -> HttpServer:
    """Start a server; port 0 picks a free port. Raises PortInUse, BadAddress."""
    server = HttpServer(handler, limits or ServerLimits(), ssl)
    await server._listen(host, port)
    return server
