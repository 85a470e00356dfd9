"""The listening sockets.

When descriptors run out, connections are dropped and accepting pauses for a moment, instead of failing in a
busy loop.

One descriptor is held in reserve. With it a connection can be accepted and closed at once when no other
descriptor is free, so that the client does not wait.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from volplane.base import clock, metrics

log = logging.getLogger(__name__)

BACKLOG = 1024
AT_ONCE = 64  # connections accepted before other callbacks run
PAUSE = 0.05  # seconds without accepting, after descriptors ran out
LOG_INTERVAL = 60.0  # seconds between two log lines about the same problem
_IDLE: int = getattr(socket, "TCP_KEEPIDLE", 0) or getattr(socket, "TCP_KEEPALIVE", 0)  # its name on macOS
KEEPALIVE = ((_IDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

dropped = metrics.counter(
    "volplane_connections_dropped_total",
    "Connections that the server closed because it was out of resources, by reason.",
    ("reason",),
)


class PortInUse(OSError):
    def __init__(self, host: str, port: int) -> None:
        super().__init__(errno.EADDRINUSE, f"port {port} on {host} is in use by another program")


class BadAddress(OSError):
    """This machine cannot listen on the address."""

    def __init__(self, host: str, port: int | str, why: str) -> None:
        super().__init__(errno.EADDRNOTAVAIL, f"cannot listen on {host or '*'} port {port}: {why}")


class TcpListener:
    """`accepted` gets each connection; `make_room` closes a connection that can be spared, if any."""

    def __init__(self, accepted: Callable[[socket.socket], None], make_room: Callable[[], bool]) -> None:
        self._accepted, self._make_room = accepted, make_room
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._reserve = -1
        self._paused: asyncio.TimerHandle | None = None
        self._last_logged: dict[str, float] = {}

    async def open(self, host: str, port: int) -> int:
        """Start listening. Returns the port. Raises PortInUse, BadAddress."""
        addresses = await self._resolve(host, port)
        try:
            for family, address in addresses:
                self._sockets.append(_open_socket(family, address))
        except OSError as error:
            self.close()
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(host, port) from None
            raise BadAddress(host, port, error.strerror or str(error)) from None
        self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        for each in self._sockets:
            each.listen(BACKLOG)
        self._resume()
        bound_port: int = self._sockets[0].getsockname()[1]
        return bound_port

    async def _resolve(self, host: str, port: int) -> Iterable[tuple[int, Any]]:
        if not 0 <= port <= 65535:  # a resolver would silently truncate it
            raise BadAddress(host, port, "a port is a number from 0 to 65535")
        passive, stream = socket.AI_PASSIVE, socket.SOCK_STREAM
        try:
            try:
                literal = passive | socket.AI_NUMERICHOST  # without a resolver
                found = socket.getaddrinfo(host or None, port, type=stream, flags=literal)
            except socket.gaierror:
                found = await self._loop.getaddrinfo(host, port, type=stream, flags=passive)
        except OSError as error:
            raise BadAddress(host, port, error.strerror or str(error)) from None
        except UnicodeError:
            raise BadAddress(host, port, "not a host name") from None
        return dict.fromkeys((family, address) for family, _, _, _, address in found)

    def close(self) -> None:
        if self._paused is not None:
            self._paused.cancel()
        for each in self._sockets:
            self._loop.remove_reader(each)
            each.close()
        self._sockets = []
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    def report_drop(self, reason: str, text: str, *values: object) -> None:
        """Count a dropped connection, and log the reason at most once per interval."""
        dropped.labels(reason).inc()
        now = clock.now()
        if now - self._last_logged.get(reason, -LOG_INTERVAL) >= LOG_INTERVAL:
            self._last_logged[reason] = now
            log.warning(text, *values)

    def _resume(self) -> None:
        self._paused = None
        for each in self._sockets:
            self._loop.add_reader(each, self._accept, each)

    def _pause(self) -> None:
        """Stop accepting until closed connections have released their descriptors."""
        for each in self._sockets:
            self._loop.remove_reader(each)
        self._paused = self._loop.call_later(PAUSE, self._resume)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                made, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._handle_exhaustion(listening, error)
                    return
                continue  # the client has already disconnected
            made.setblocking(False)
            self._accepted(made)

    def _handle_exhaustion(self, listening: socket.socket, error: OSError) -> None:
        self.report_drop("descriptors", "a connection was dropped: %s", error.strerror)
        if not self._make_room():
            self._refuse(listening)
        self._pause()

    def _refuse(self, listening: socket.socket) -> None:
        """Accept one connection with the reserve descriptor, and close it."""
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1
        with suppress(OSError):
            made, _ = listening.accept()
            made.close()
        with suppress(OSError):  # taken by another thread meanwhile; try again next time
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _open_socket(family: int, address: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # inherited by accepted connections
        for option, value in KEEPALIVE:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made
