"""One client's connection to the server.

One task handles the requests of a connection in order, and is parked between them. Reading stops when the
client sends too many requests ahead, when a body exceeds the limit, and when the client is lost. None of
these may affect other clients.

A connection is unauthenticated until a client certificate or a handler names its user. Only a few
unauthenticated connections are allowed, and they are the first to be closed when there are too many.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections import deque
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from volplane.web.message import (
    BodyTooLarge,
    HeaderItems,
    Headers,
    Peer,
    Request,
    Response,
    Upgraded,
    format_head,
    header_pairs,
)
from volplane.web.request_parser import MalformedRequest, RequestParser
from volplane.web.stream import Flow, Stream

if TYPE_CHECKING:
    from volplane.web.limits import ServerLimits
    from volplane.web.server import HttpServer

log = logging.getLogger(__name__)

PIPELINE = 32  # requests read ahead of the one being answered
AHEAD = 64 * 1024  # bytes of their bodies
UNREAD = 300.0  # seconds a client may leave a response unread
COPY_LIMIT = 64 * 1024  # larger bodies are not copied next to their head
_BODILESS = frozenset({204, 304})


class ServerConnection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self.since = 0.0  # loop time of the last change between idle, reading and working
        self.task: asyncio.Task[None] | None = None
        self.handshake: asyncio.Task[None] | None = None  # until the transport exists
        self.user = ""  # "" until the client has authenticated
        self._server = server
        self._request: Request | None = None  # the one being answered
        self._queued = 0  # bytes of bodies in the queue
        self._reader = RequestParser(self, server.limits.body)
        self._flow = Flow()
        self._queue: deque[Request] = deque()
        self._parked: asyncio.Future[None] | None = None  # the task, waiting for the next request
        self._stream: Stream | None = None  # after an upgrade
        # Bytes after a request to upgrade, which belong to the next protocol.
        self._leftover: bytes | None = None
        self._paused_reading = False
        self._discards_input = False  # drop all further input
        self._eof = False
        self._streaming = False
        self._client_eof: asyncio.Future[None] | None = None  # set when the client closes its side

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it
        self._loop = asyncio.get_running_loop()
        self.since = self._loop.time()
        peername = transport.get_extra_info("peername")
        self._remote = peername[0] if isinstance(peername, tuple) else ""
        self._secure = transport.get_extra_info("sslcontext") is not None
        self._peer = _peer(transport)
        self._server.connections.add(self)
        if self._peer is not None and self._peer.common_name:
            self._set_user(self._peer.common_name)

    def data_received(self, data: bytes) -> None:
        if self._stream is not None:
            self._stream.feed(data)
            return
        if self._discards_input:
            return
        try:
            self._leftover = self._reader.feed(data)
        except MalformedRequest as malformed:
            self._refuse(malformed.status)
            return
        if self._leftover is not None:
            self._discards_input = True  # until the handler takes over the connection
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._eof = True
        if self._stream is not None:
            self._stream.feed_eof()
        if self._client_eof is not None and not self._client_eof.done():
            self._client_eof.set_result(None)
        # A client may close its side and still read the response. A stream without end has no reader left,
        # and TLS cannot be half closed.
        return self.is_working() and not self._streaming and not self._secure

    def connection_lost(self, error: Exception | None) -> None:
        self._server.remove_connection(self)
        self._flow.end()
        if self._stream is not None:
            self._stream.feed_eof()
        self._queue.clear()
        self._request = None
        self._reader.close()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self._flow.pause()

    def resume_writing(self) -> None:
        self._flow.resume()

    # Callbacks of the request parser

    def handle_request_start(self) -> None:
        if not self.is_working():
            self.since = self._loop.time()

    def send_continue(self) -> None:
        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def handle_request(self, reader: RequestParser, body: bytes | None) -> None:
        if body is None:
            self._discards_input = True
        request = Request(
            reader.method,
            reader.target,
            Headers(reader.raw),
            body,
            peer=self._peer,
            remote=self._remote,
            secure=self._secure,
            version=reader.version,
            keep_alive=body is not None and reader.keep_alive,
            hijack=self._hijack,
        )
        self._queue.append(request)
        self._queued += len(body or b"")
        if self._parked is not None:
            self._parked.set_result(None)
            self._parked = None
        elif self.task is None:
            self.task = self._loop.create_task(self._work())
        elif (len(self._queue) >= PIPELINE or self._queued > AHEAD) and not self._paused_reading:
            self._paused_reading = True
            self._transport.pause_reading()

    def handle_large_body(self) -> None:
        if not self.is_authenticated():
            self._server.admit_large_body(self)

    def _refuse(self, status: int) -> None:
        """Reject malformed input, unless a response to an earlier request is still being sent."""
        self._discards_input = True
        if not self.is_working():
            text = f"{HTTPStatus(status).phrase}\n".encode()
            self._transport.write(self._head(Response(status), len(text), keep=False) + text)
            self._transport.close()

    # Handling requests

    async def _work(self) -> None:
        try:
            while True:
                request = self._request = self._queue.popleft()
                self._queued -= len(request._body or b"")
                response = await self._answer(request)
                if request.user and not self.user:
                    self._set_user(request.user)
                if isinstance(response, Upgraded) or not await self._send(request, response):
                    break
                if self._paused_reading:
                    self._resume_reading()
                if not self._queue:
                    await self._park()
                else:
                    # Many requests may be queued, all answered from memory: let other connections run.
                    await asyncio.sleep(0)
            if self._discards_input and self._leftover is None and not self._eof:
                await self._linger()
            self._transport.close()
        except (ConnectionError, asyncio.CancelledError):
            self._transport.abort()  # the client left, or the server is closing
        except Exception:
            log.exception("a response could not be sent")
            self._transport.abort()
        finally:
            self.task = None
            self.since = self._loop.time()  # of the close, which the client may never acknowledge

    async def _park(self) -> None:
        self.since = self._loop.time()
        self._request = None
        self._parked = self._loop.create_future()
        await self._parked

    async def _answer(self, request: Request) -> Response | Upgraded:
        try:
            return await self._server.handler(request)
        except BodyTooLarge:
            return Response(413, {"Content-Type": "text/plain"}, b"the request body is too large\n")
        except Exception:
            if self._stream is not None and self._flow.lost:
                return Upgraded()  # the client left: errors that follow from it are expected
            log.exception("a handler failed", extra={"method": request.method, "path": request.raw_path})
            if self._stream is not None:
                return Upgraded()
            return Response(500, {"Content-Type": "text/plain"}, b"internal error\n")

    async def _send(self, request: Request, response: Response) -> bool:
        """Send a response. Returns whether the connection stays open."""
        keep = request.keep_alive and not (self._discards_input or self._eof or self._server.closing)
        body = response.body
        if not isinstance(body, bytes):
            return await self._send_stream(request, response, body, keep)
        top = self._head(response, len(body), keep=keep)
        if request.method == "HEAD" or response.status in _BODILESS:
            self._transport.write(top)
        elif len(body) < COPY_LIMIT:
            self._transport.write(top + body)
        else:
            self._transport.writelines([top, body])
        if self._flow.paused:
            await self._wait_until_sent(UNREAD)
        return keep

    async def _send_stream(
        self, request: Request, response: Response, body: AsyncIterator[bytes], keep: bool
    ) -> bool:
        chunked = request.version == "1.1"
        keep = keep and chunked
        self._streaming = True
        try:
            self._transport.write(self._head(response, -1 if chunked else None, keep=keep))
            if request.method != "HEAD" and not self._eof:
                if response.direct is not None and chunked:
                    response.direct(ChunkWriter(self))
                await self._pump(body, response.patience, chunked=chunked)
            return keep
        except asyncio.CancelledError:
            if not self._server.closing or self._flow.lost:
                raise
            # A regular end of the stream, since the server ends it.
            self._transport.write(b"0\r\n\r\n" if chunked else b"")
            return False
        finally:
            self._streaming = False
            if (aclose := getattr(body, "aclose", None)) is not None:
                await aclose()

    async def _wait_until_sent(self, patience: float | None) -> None:
        """Wait until the client has read what was written. Raises ConnectionResetError after `patience`
        seconds.
        """
        try:
            async with asyncio.timeout(patience):
                await self._flow.drain()
        except TimeoutError:
            raise ConnectionResetError("the client does not read the response") from None

    async def _pump(self, body: AsyncIterator[bytes], patience: float | None, *, chunked: bool) -> None:
        write, flow = self._transport.write, self._flow
        async for piece in body:
            if piece:
                write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            if flow.paused:
                await self._wait_until_sent(patience)
        if chunked:
            write(b"0\r\n\r\n")

    def _head(self, response: Response, length: int | None, *, keep: bool) -> bytes:
        """The head of a response. `length` of the body; -1: chunked; None: until the connection closes."""
        lines = [f"{name}: {value}\r\n" for name, value in header_pairs(response.headers)]
        if length == -1:
            lines.append("Transfer-Encoding: chunked\r\n")
        elif length is not None and response.status not in _BODILESS:
            lines.append(f"Content-Length: {length}\r\n")
        if not keep:
            lines.append("Connection: close\r\n")
        text = "".join(lines)
        if text.count("\n") != len(lines) or text.count("\r") != len(lines):
            raise ValueError("line break in a header")
        return f"{self._server.response_start(response.status)}{text}\r\n".encode("latin-1")

    def _hijack(self, request: Request, headers: HeaderItems) -> Stream:
        if self._stream is not None or self._leftover is None:
            raise RuntimeError("the client did not request an upgrade")
        more = [] if "Connection" in Headers.of(headers) else [("Connection", "Upgrade")]
        self._transport.write(format_head("HTTP/1.1 101 Switching Protocols", headers, *more))
        self._stream = Stream(self._transport, self._flow, self._leftover)
        if self._eof:
            self._stream.feed_eof()
        self._transport.resume_reading()
        return self._stream

    def _resume_reading(self) -> None:
        if len(self._queue) < PIPELINE // 2 and self._queued <= AHEAD:
            self._paused_reading = False
            self._transport.resume_reading()

    async def _linger(self) -> None:
        """Wait for the client to close: closing while it sends a body would reset the connection and lose the
        response.
        """
        self._client_eof = self._loop.create_future()
        await asyncio.wait([self._client_eof], timeout=self._server.linger)

    # For the server

    def is_working(self) -> bool:
        return self.task is not None and self._parked is None

    def is_authenticated(self) -> bool:
        """Whether the client has authenticated; a handler that still runs may have set the user already."""
        if not self.user and self._request is not None and self._request.user:
            self._set_user(self._request.user)
        return bool(self.user)

    def is_overdue(self, now: float, limits: ServerLimits) -> bool:
        """Whether the client exceeds the time limit of what it has to do next."""
        if self.is_working():
            return False
        if self._transport.is_closing():
            patience = limits.goodbye
        elif not self._reader.in_request:
            patience = limits.idle if self.user else limits.unauthenticated_idle
        elif self._reader.in_body:
            patience = limits.body_start + self._reader.size / limits.body_rate
        else:
            patience = limits.head
        return now - self.since > patience

    def is_streaming(self) -> bool:
        """Whether the connection handles a stream, which does not end soon by itself."""
        return self._streaming or self._stream is not None

    def end(self) -> None:
        """Close; the second call does not wait for the client to read what was written."""
        if self._transport.is_closing():
            self._transport.abort()
        else:
            self.since = self._loop.time()
            self._transport.close()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        """Close at once, also during the handshake."""
        if self.handshake is not None:
            self.handshake.cancel()
        else:
            self._transport.abort()

    def _set_user(self, user: str) -> None:
        self.user = user
        self._server.mark_authenticated(self)


class ChunkWriter:
    """Writes chunks to a stream in progress. Implements `DirectWriter`."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._write = connection._transport.write
        self._chunk = connection._server.chunk

    @property
    def is_full(self) -> bool:
        connection = self._connection
        return connection._flow.paused or connection._flow.lost or not connection._streaming

    def write(self, piece: bytes) -> None:
        self._write(self._chunk(piece))


def _peer(transport: asyncio.BaseTransport) -> Peer | None:
    """The verified client certificate. The dict of `ssl` is empty unless it was verified."""
    certificate: dict[str, Any] | None = transport.get_extra_info("peercert")
    if not certificate:
        return None
    subject = [pair for names in certificate.get("subject", ()) for pair in names]
    names = [value for key, value in subject if key == "commonName"]
    groups = tuple(value for key, value in subject if key == "organizationName")
    der = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    begin, end = (ssl.cert_time_to_seconds(certificate[key]) for key in ("notBefore", "notAfter"))
    return Peer(names[0] if names else "", groups, hashlib.sha256(der).hexdigest(), begin, end)
