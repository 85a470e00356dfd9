"""WebSocket server and client. The handshake is done here, the frames by wsproto.

Pings and closes are answered only while `receive` is called: without it, the peer's close is not noticed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from io import StringIO

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from volplane.web.client import ClientResponse, HttpClient
from volplane.web.message import HeaderItems, Request, header_pairs
from volplane.web.stream import Stream

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455
MAX_MESSAGE = 32 << 20
CLOSE_TIMEOUT = 1.0  # seconds for the peer to return a close
GREETING = 0.5  # seconds for the peer to answer a first ping


class BadHandshake(Exception):
    """The request is not a valid WebSocket handshake; no response has been sent."""


class WebSocketRefused(Exception):
    """The server rejected the WebSocket."""

    def __init__(self, answer: ClientResponse) -> None:
        super().__init__(f"the server answered {answer.status}: {answer.body[:200].decode(errors='replace')}")
        self.answer = answer


class WebSocket:
    def __init__(self, stream: Stream, protocol: str, *, kind: ConnectionType) -> None:
        self.protocol = protocol  # the negotiated subprotocol, or ""
        self.close_code = 0  # sent by the peer when it closed
        self._stream = stream
        self._frames = Connection(kind)
        # Parts of one message, all text or all bytes; joined, because many small parts waste memory.
        self._text = StringIO()
        self._bytes = bytearray()
        self._size = 0
        self._messages: deque[str | bytes] = deque()
        self._ended = asyncio.Event()
        self._receiving = False
        self._peer_has_answered = False  # a pong or a message has arrived

    async def send(self, data: bytes | str) -> None:
        if self._frames.state is not ConnectionState.OPEN:
            raise ConnectionResetError("the WebSocket is closed")
        await self._write(TextMessage(data=data) if isinstance(data, str) else BytesMessage(data=data))

    async def receive(self) -> bytes | str | None:
        """The next message; None after the peer has closed or is gone."""
        self._receiving = True
        try:
            while not self._messages and not self._ended.is_set():
                await self._receive_frames()
            return self._messages.popleft() if self._messages else None
        finally:
            self._receiving = False

    async def wait_for_peer(self) -> None:
        """Before `receive`: wait a moment for the peer to answer a ping or send a message."""
        await self._write(Ping())
        with suppress(TimeoutError):
            async with asyncio.timeout(GREETING):
                while not self._peer_has_answered and not self._ended.is_set():
                    await self._receive_frames()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Send a close and wait a moment for the peer's."""
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                if self._frames.state is ConnectionState.OPEN:
                    await self._write(CloseConnection(code=code, reason=reason))
                if self._receiving:
                    await self._ended.wait()
                else:
                    while await self.receive() is not None:
                        pass
        self._end()

    def close_now(self, code: int = 1000) -> None:
        """Send a close without waiting for the peer's."""
        if self._frames.state is ConnectionState.OPEN and not self._stream.is_closed:
            self._stream.write_nowait(self._frames.send(CloseConnection(code=code)))
        self._end()

    async def _receive_frames(self) -> None:
        data = await self._stream.read()
        self._frames.receive_data(data or None)
        await self._handle_frames()

    async def _handle_frames(self) -> None:
        for event in self._frames.events():
            match event:
                case TextMessage() | BytesMessage():
                    self._peer_has_answered = True
                    await self._gather(event)
                case Pong():
                    self._peer_has_answered = True
                case Ping():
                    await self._write(event.response())
                case CloseConnection():
                    self.close_code = event.code
                    if self._frames.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
                        with suppress(ConnectionError):
                            await self._write(event.response())
                    self._end()

    async def _gather(self, event: TextMessage | BytesMessage) -> None:
        if isinstance(event.data, str):
            self._text.write(event.data)
        else:
            self._bytes += event.data
        self._size += len(event.data)
        if self._size > MAX_MESSAGE:
            await self._write(CloseConnection(code=1009, reason="message too big"))
            self._end()
        elif event.message_finished:
            is_text = isinstance(event.data, str)
            self._messages.append(self._text.getvalue() if is_text else bytes(self._bytes))
            self._text, self._bytes, self._size = StringIO(), bytearray(), 0

    async def _write(self, event: Event) -> None:
        await self._stream.write(self._frames.send(event))

    def _end(self) -> None:
        self._ended.set()
        self._stream.close()


class MessageStream:
    """The binary messages of a WebSocket as one stream of bytes, for protocols tunnelled through it."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._rest = b""

    async def read(self, n: int = 65536) -> bytes:
        while not self._rest:
            message = await self._socket.receive()
            if message is None:
                return b""
            self._rest = message.encode() if isinstance(message, str) else message
        data, self._rest = self._rest[:n], self._rest[n:]
        return data

    async def write(self, data: bytes) -> None:
        await self._socket.send(data)

    def close(self) -> None:
        self._socket.close_now()


def is_websocket_request(request: Request) -> bool:
    """Whether the client requests a WebSocket."""
    headers = request.headers
    return "websocket" in headers.tokens("upgrade") and "upgrade" in headers.tokens("connection")


async def server_accept(request: Request, protocols: Sequence[str]) -> WebSocket:
    """Upgrade with the first of `protocols` that the client offers (`""`: none). Raises BadHandshake."""
    headers = request.headers
    key = headers.get("sec-websocket-key")
    if request.method != "GET" or not is_websocket_request(request) or not key:
        raise BadHandshake("not a WebSocket handshake")
    if headers.get("sec-websocket-version") != "13":
        raise BadHandshake("unsupported WebSocket version")
    offered = [word.strip() for line in headers.all("sec-websocket-protocol") for word in line.split(",")]
    chosen = next((protocol for protocol in protocols if protocol in (offered or [""])), None)
    if chosen is None:
        raise BadHandshake(f"unable to negotiate: the client offers {offered}, we speak {list(protocols)}")
    answer = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", _accept(key))]
    if chosen:
        answer.append(("Sec-WebSocket-Protocol", chosen))
    return WebSocket(await request.upgrade(answer), chosen, kind=ConnectionType.SERVER)


async def connect_websocket(
    http: HttpClient, path: str, *, protocols: Sequence[str] = (), headers: HeaderItems = ()
) -> WebSocket:
    """Open a WebSocket. Raises WebSocketRefused and the errors of `HttpClient.upgrade`."""
    key = base64.b64encode(os.urandom(16)).decode()
    ask = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", key),
        *header_pairs(headers),
    ]
    if protocols:
        ask.append(("Sec-WebSocket-Protocol", ", ".join(protocols)))
    answer, stream = await http.upgrade(path, ask)
    if stream is None or answer.headers.get("sec-websocket-accept") != _accept(key):
        if stream is not None:
            stream.close()
        raise WebSocketRefused(answer)
    return WebSocket(stream, answer.headers.get("sec-websocket-protocol"), kind=ConnectionType.CLIENT)


def _accept(key: str) -> str:
    return base64.b64encode(hashlib.sha1((key + _GUID).encode()).digest()).decode()
