"""A connection as a stream of bytes, for protocols after an upgrade.

Both directions have backpressure: the transport stops reading while the stream is not read, and `write`
waits while the peer does not read.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

READ_AHEAD = 256 * 1024


class ByteStream(Protocol):
    """What a framing such as SPDY needs below it."""

    async def read(self, n: int = 65536) -> bytes: ...
    async def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...


class Flow:
    """Flow control of a transport's writing side: writers wait while its buffer is full."""

    def __init__(self) -> None:
        self.paused = False
        self.lost = False
        self._waiters: list[asyncio.Future[None]] = []

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._wake()

    def end(self) -> None:
        self.lost = True
        self._wake()

    async def drain(self) -> None:
        while self.paused and not self.lost:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self.lost:
            raise ConnectionResetError("the peer closed the connection")

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Stream:
    def __init__(self, transport: asyncio.Transport, flow: Flow, first: bytes = b"") -> None:
        self._transport = transport
        self._flow = flow
        self._buffer = bytearray(first)  # bytes that arrived with the handshake
        self._eof = False
        self._waiter: asyncio.Future[None] | None = None
        self._stopped = False

    # For the connection

    def feed(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > READ_AHEAD and not self._stopped:
            self._stopped = True
            self._transport.pause_reading()
        self._wake()

    def feed_eof(self) -> None:
        self._eof = True
        self._wake()

    # For the reader and writer

    async def read(self, n: int = 65536) -> bytes:
        """Up to n bytes, as soon as there are any; `b""` at the end."""
        while not self._buffer:
            if self._eof or self._transport.is_closing():
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = bytes(self._buffer[:n])
        del self._buffer[:n]
        if self._stopped and len(self._buffer) < READ_AHEAD // 2 and not self._transport.is_closing():
            self._stopped = False
            self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        self.write_nowait(data)
        if self._flow.paused:
            await self._flow.drain()

    def write_nowait(self, data: bytes) -> None:
        """Write without waiting for the peer; for small final messages."""
        if self._flow.lost or self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._transport.write(data)

    async def drain(self) -> None:
        await self._flow.drain()

    def close(self) -> None:
        """Send what is buffered, then close."""
        self._transport.close()
        self.feed_eof()

    @property
    def is_closed(self) -> bool:
        return self._transport.is_closing()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
