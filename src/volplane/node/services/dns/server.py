"""Answer DNS questions of pods over UDP and TCP.

Nothing is done, and no library is imported, before the first question. The clients are pods, which are not
trusted: a pod that asks too often gets no answers, and whatever a packet holds, it costs one parse.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from volplane.base import clock
from volplane.base.tasks import TaskSet, cancel_and_wait
from volplane.node.services.dns.forwarder import Forwarder, NoReply
from volplane.node.services.dns.records import DnsZone, NameSource, look_up
from volplane.web.listener import dropped

log = logging.getLogger(__name__)

PORT = 53
QUESTIONS_PER_SECOND = 2000  # of one pod; more are dropped
MAX_STREAMS = 64  # TCP connections of all pods
IDLE_TIMEOUT = 10.0  # seconds
SYNC_TIMEOUT = 2.0  # seconds a question waits for the caches

SERVER_FAILURE = "SERVFAIL"
MESSAGES = "volplane.node.services.dns.messages"


class NamesUnavailable(Exception):
    """The names of Services cannot be known."""


class DnsServer:
    def __init__(
        self,
        zone: DnsZone,
        source: NameSource,
        forwarder: Forwarder,
        wait_synced: Callable[[], Awaitable[None]],
    ) -> None:
        """`wait_synced`: until `source` knows all Services. It raises NamesUnavailable."""
        self._zone, self._source, self._forwarder = zone, source, forwarder
        self._wait_synced = wait_synced
        self._messages: Any = None  # the module, once it is needed
        self._tasks = TaskSet()
        self._streams: set[asyncio.Task[Any]] = set()
        self._datagrams: asyncio.DatagramTransport | None = None
        self._server: asyncio.Server | None = None

    async def start(self, datagrams: socket.socket, streams: socket.socket) -> None:
        """Serve these sockets, and close them in the end."""
        self._server = await asyncio.start_server(self._serve_stream, sock=streams)
        self._datagrams, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Datagrams(self._take_datagram), sock=datagrams
        )

    async def close(self) -> None:
        if self._datagrams is not None:
            self._datagrams.close()
        if self._server is not None:
            self._server.close()
        await cancel_and_wait(*self._streams)
        await self._tasks.close()

    def _take_datagram(self, data: bytes, client: Any) -> None:
        self._tasks.start(self._serve_datagram(data, client), "DNS question")

    async def _serve_datagram(self, data: bytes, client: Any) -> None:
        reply = await self.answer(data, tcp=False)
        if reply and self._datagrams is not None:
            self._datagrams.sendto(reply, client)

    async def _serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._streams) >= MAX_STREAMS:
            dropped.labels("dns").inc()
            writer.close()
            return
        stream = asyncio.current_task()
        assert stream is not None
        self._streams.add(stream)
        try:
            while True:
                async with asyncio.timeout(IDLE_TIMEOUT):
                    size = int.from_bytes(await reader.readexactly(2))
                    asked = await reader.readexactly(size)
                reply = await self.answer(asked, tcp=True)
                if not reply:
                    break
                async with asyncio.timeout(IDLE_TIMEOUT):
                    writer.write(len(reply).to_bytes(2) + reply)
                    await writer.drain()
        except (OSError, EOFError, TimeoutError):
            pass  # the client has closed the connection, or has forgotten it
        except asyncio.CancelledError:
            pass  # cancelled by `close` only
        finally:
            self._streams.discard(stream)
            writer.close()

    async def answer(self, data: bytes, *, tcp: bool) -> bytes:
        """The reply to a packet; empty if it gets none."""
        if self._messages is None:  # the library takes long to import, and many clusters never need it
            self._messages = await asyncio.to_thread(import_module, MESSAGES)
        messages = self._messages
        try:
            question = messages.parse(data)
        except messages.Malformed as malformed:
            return bytes(malformed.reply)
        if not self._zone.owns(question.name):
            return await self._forward(question, data, tcp)
        try:
            async with asyncio.timeout(SYNC_TIMEOUT):
                await self._wait_synced()
        except (NamesUnavailable, TimeoutError):
            return bytes(messages.refuse(question, SERVER_FAILURE))
        answer = look_up(self._zone, question.name, question.type, self._source)
        limit = 0 if tcp else question.limit
        return bytes(messages.render(question, answer, self._zone.domain, limit))

    async def _forward(self, question: Any, data: bytes, tcp: bool) -> bytes:
        try:
            return await self._forwarder.ask(data, tcp=tcp)
        except NoReply as error:
            log.debug("%s: %s", question.name, error)
            return bytes(self._messages.refuse(question, SERVER_FAILURE))


class _Datagrams(asyncio.DatagramProtocol):
    """Passes questions on, but not too many of one pod."""

    def __init__(self, take: Callable[[bytes, Any], None]) -> None:
        self._take = take
        self._second = 0
        self._counts: Counter[str] = Counter()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        second = int(clock.now())
        if second != self._second:
            self._second = second
            self._counts.clear()
        self._counts[addr[0]] += 1
        if self._counts[addr[0]] <= QUESTIONS_PER_SECOND:
            self._take(data, addr)
        else:
            dropped.labels("dns").inc()
