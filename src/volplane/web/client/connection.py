"""One connection of the client: sends a request, receives the response piece by piece."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, cast

import httptools
from msgspec import Struct

from volplane.web.message import Headers
from volplane.web.stream import Flow, Stream

READ_AHEAD = 1 << 20  # unread bytes of a body before the server has to wait


class HttpError(ConnectionError):
    """No connection, or the response is not HTTP."""


class ServerDisconnected(HttpError):
    """The server closed the connection during the exchange."""

    def __init__(self, answered: bool) -> None:
        super().__init__("the server closed the connection" + (" during its response" if answered else ""))
        self.answered = answered  # a part of the response had arrived


class ClientResponse(Struct):
    status: int
    headers: Headers
    body: bytes = b""


class ClientConnection(asyncio.Protocol):
    upgraded: Stream | None = None
    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._flow = Flow()
        self._busy = False
        self._clean = True  # nothing unexpected was received
        self._lost = False
        self._error: HttpError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reset("")

    def _reset(self, method: str) -> None:
        self._method = method
        self._parser: Any = httptools.HttpResponseParser(self)
        self._raw: list[tuple[bytes, bytes]] = []
        self._status = 0
        self._pieces: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._begun = self._headed = self._ended = False
        self._leftover = b""

    # For the client

    def is_reusable(self) -> bool:
        return self._clean and not self._busy and not self._lost and self.upgraded is None

    async def send_request(self, method: str, message: bytes) -> ClientResponse:
        """Send a request and wait for the head of the response."""
        self._reset(method)
        self._busy = True
        self._transport.write(message)
        while not self._headed:
            await self._wait_for_data()
        return ClientResponse(self._status, Headers(self._raw))

    async def read_body(self) -> bytes:
        return b"".join([piece async for piece in self.iterate_body()])

    async def iterate_body(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives; everything received so far is one piece."""
        while True:
            if self._pieces:
                piece = b"".join(self._pieces)
                self._pieces.clear()
                self._resume_reading()
                yield piece
            elif self._ended:
                return
            else:
                await self._wait_for_data()

    def take_over(self) -> Stream:
        self.upgraded = Stream(self._transport, self._flow, self._leftover)
        if self._lost:
            self.upgraded.feed_eof()
        return self.upgraded

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    async def _wait_for_data(self) -> None:
        """Wait until data or the end arrives."""
        if self._error is not None:
            raise self._error
        if self._lost:
            raise ServerDisconnected(self._begun)
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _resume_reading(self) -> None:
        if self._waiting_bytes > READ_AHEAD and not self._lost:
            self._transport.resume_reading()
        self._waiting_bytes = 0

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it

    def data_received(self, data: bytes) -> None:
        if self.upgraded is not None:
            self.upgraded.feed(data)
            return
        if not self._busy or (self._headed and self._status == 101):
            self._clean = False  # unexpected, or data of the stream that is about to be taken over
            self._leftover += data
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._leftover = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            self._clean = False
            self._error = HttpError(f"not an HTTP response: {error}")
        self._wake()

    def eof_received(self) -> None:
        if self.upgraded is not None:
            self.upgraded.feed_eof()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        if not self.gone.done():
            self.gone.set_result(None)
        self._flow.end()
        if self.upgraded is not None:
            self.upgraded.feed_eof()
        elif self._headed and not self._ended and self._is_until_close():
            self._ended = True
        self._parser = None  # breaks the reference cycle with the parser
        self._wake()

    def pause_writing(self) -> None:
        self._flow.pause()

    def resume_writing(self) -> None:
        self._flow.resume()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self._begun = True
        self._raw = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._raw.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            return  # the final response follows
        self._status = status
        self._headed = True
        if self._method == "HEAD":
            self._finish()  # a response to HEAD has no body, whatever its Content-Length

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        before, self._waiting_bytes = self._waiting_bytes, self._waiting_bytes + len(body)
        if before <= READ_AHEAD < self._waiting_bytes:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._headed and not self._ended:
            self._finish()

    def _finish(self) -> None:
        self._ended = True
        self._busy = False
        if self._method != "HEAD" and not self._parser.should_keep_alive():
            self._clean = False

    def _is_until_close(self) -> bool:
        """Whether the body ends with the connection: it has neither a length nor chunks."""
        headers = Headers(self._raw)
        return "content-length" not in headers and "chunked" not in headers.tokens("transfer-encoding")

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
