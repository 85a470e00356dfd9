"""Relay TCP connections from a listening socket in one network to a server in another."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from volplane.base import descriptors
from volplane.base.tasks import cancel_and_wait
from volplane.node.network.interface import StreamPair
from volplane.web.listener import dropped as _refused

log = logging.getLogger(__name__)

DIAL_TIMEOUT = 10.0
CHUNK = 1 << 16
DESCRIPTOR_SHARE = 16  # at most 1/16 of the descriptors is the number of links, with two descriptors each
MIN_LINKS = 16

RelayLinks = set["asyncio.Task[None]"]  # connections of all relays in this process
Dial = Callable[[str], Awaitable[StreamPair]]  # takes the client's address


def most_links() -> int:
    """Maximum number of connections of all relays of this process; each takes two descriptors."""
    return max(MIN_LINKS, descriptors.limit() // DESCRIPTOR_SHARE)


class Relay:
    """Serves one listening socket until it is closed, and closes it."""

    def __init__(self, listening: socket.socket, dial: Dial, all_links: RelayLinks) -> None:
        self._listening, self._dial, self._all_links = listening, dial, all_links
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._handle_connection, sock=self._listening)

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._all_links) >= most_links():  # clients here are not authenticated
            _refused.labels("relay").inc()
            writer.close()
            return
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        self._all_links.add(link)
        try:
            await self._serve(reader, writer)
        except (OSError, TimeoutError) as error:
            log.debug("a relayed connection ended: %s", error)
        except asyncio.CancelledError:
            pass  # cancelled by `close` only
        finally:
            self._links.discard(link)
            self._all_links.discard(link)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(DIAL_TIMEOUT):
            client = writer.get_extra_info("peername")
            there, back = await self._dial(client[0] if client else "")
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, back))
                both.create_task(_copy(there, writer))
        except* OSError:
            pass  # one side has closed the connection
        finally:
            back.close()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        else:
            self._listening.close()
        links = list(self._links)
        await cancel_and_wait(*links)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()
