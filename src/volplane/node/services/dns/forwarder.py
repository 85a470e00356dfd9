"""Forward questions to the machine's name servers, from the machine's own network.

The question goes out as it came, with another id; the reply comes back as it is. A question over TCP, which
a client asks after a truncated reply, goes out over TCP. A server that cannot answer is followed by the next,
and a client gets a reply before it stops waiting, whatever the servers do.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from volplane.base import clock
from volplane.node.network.resolv_conf import MAX_SERVERS, ResolvConf, read_resolv_conf

log = logging.getLogger(__name__)

PORT = 53
TIMEOUT = 2.0  # seconds for one server, at most
DEADLINE = 4.0  # seconds for all of them: resolvers wait five
MAX_QUESTIONS = 200  # that wait for a reply; more are refused
HEADER = 12  # bytes
UNABLE = frozenset({2, 4, 5})  # SERVFAIL, NOTIMP, REFUSED: another server may know


class NoReply(Exception):
    """No server of the machine has answered, or it has none."""


class Forwarder:
    def __init__(self, read: Callable[[], ResolvConf] = read_resolv_conf, port: int = PORT) -> None:
        """`read`: the machine's configuration, each time as it is."""
        self._read, self._port = read, port
        self._waiting = 0

    async def ask(self, query: bytes, *, tcp: bool) -> bytes:
        """Raises NoReply."""
        if self._waiting >= MAX_QUESTIONS:
            raise NoReply("too many questions are being forwarded")
        self._waiting += 1
        try:
            return await self._ask_each(query, tcp)
        finally:
            self._waiting -= 1

    async def _ask_each(self, query: bytes, tcp: bool) -> bytes:
        number = secrets.token_bytes(2)
        asked = number + query[2:]
        deadline = clock.now() + DEADLINE
        unable = b""
        servers = (await asyncio.to_thread(self._read)).servers[:MAX_SERVERS]
        for tried, server in enumerate(servers):
            patience = min(TIMEOUT, (deadline - clock.now()) / (len(servers) - tried))
            try:
                async with asyncio.timeout(patience):
                    reply = await (self._by_tcp if tcp else self._by_udp)(server, asked)
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                log.debug("name server %s does not answer: %s", server, error or "timeout")
                continue
            reply = query[:2] + reply[2:]
            if reply[3] & 0xF not in UNABLE:
                return reply
            unable = unable or reply
        if not unable:
            raise NoReply("no name server of this machine answers")
        return unable

    async def _by_udp(self, server: str, query: bytes) -> bytes:
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        # A new port for each question: a forged reply would have to guess it, and the id.
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _OneReply(query, waiting), remote_addr=(server, self._port)
        )
        try:
            transport.sendto(query)
            return await waiting
        finally:
            transport.close()

    async def _by_tcp(self, server: str, query: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(server, self._port)
        try:
            writer.write(len(query).to_bytes(2) + query)
            reply = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
        finally:
            writer.close()
        if not _answers(query, reply):
            raise ValueError("the reply is to another question")
        return reply


class _OneReply(asyncio.DatagramProtocol):
    def __init__(self, query: bytes, waiting: asyncio.Future[bytes]) -> None:
        self._query, self._waiting = query, waiting

    def datagram_received(self, data: bytes, addr: object) -> None:
        if not self._waiting.done() and _answers(self._query, data):
            self._waiting.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self._waiting.done():
            self._waiting.set_exception(exc)


def _answers(query: bytes, reply: bytes) -> bool:
    """Whether it is a reply with the question's id."""
    return len(reply) >= HEADER and reply[:2] == query[:2] and bool(reply[2] & 0x80)
