"""The channels of exec and attach, over WebSocket or SPDY, with one interface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Protocol

from volplane.base.tasks import cancel_and_wait
from volplane.node.api.errors import KubeletApiError
from volplane.web import Request, spdy, websocket
from volplane.web.spdy import SpdyChannel, SpdySession
from volplane.web.websocket import BadHandshake, WebSocket

WEBSOCKET_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
SPDY_PROTOCOLS = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
STREAM_TIMEOUT = 30.0  # seconds for a SPDY client to open the streams it requested
LINGER = 10.0  # seconds for a SPDY client to close the connection at the end


class Channels(Protocol):
    async def __aenter__(self) -> Channels: ...
    async def __aexit__(self, *_: object) -> None: ...
    async def stdout(self, data: bytes) -> None: ...
    async def stderr(self, data: bytes) -> None: ...
    async def send_status(self, status: Mapping[str, Any]) -> None:
        """Send the final Status, also for success."""
        ...

    def incoming(self) -> AsyncIterator[tuple[str, bytes]]:
        """("stdin", data), b"" at the end of input, and ("resize", size), until the client disconnects."""
        ...


async def accept(request: Request) -> Channels:
    if websocket.is_websocket_request(request):
        try:
            socket = await websocket.server_accept(request, WEBSOCKET_PROTOCOLS)
        except BadHandshake as error:
            raise KubeletApiError(400, str(error)) from error
        return WebSocketChannels(socket, request)
    if "spdy/3.1" in request.headers.tokens("upgrade"):
        return await SpdyChannels.accept(request)
    raise KubeletApiError(400, "Upgrade request required")


class WebSocketChannels:
    def __init__(self, socket: WebSocket, request: Request) -> None:
        self._socket = socket
        self._request = request

    async def __aenter__(self) -> WebSocketChannels:
        # A packet on the lowest output channel: clients take it as the sign that the session has begun.
        lowest = next(
            (c for c, name in ((STDOUT, "output"), (STDERR, "error")) if self._is_requested(name)), ERROR
        )
        await self._socket.send(bytes([lowest]))
        # kubectl before 1.35 reads before it has set up its channels, and drops what comes too early.
        await self._socket.wait_for_peer()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._socket.close(1000)

    def _is_requested(self, name: str) -> bool:
        return self._request.query.flag(name)

    async def stdout(self, data: bytes) -> None:
        await self._socket.send(bytes([STDOUT]) + data)

    async def stderr(self, data: bytes) -> None:
        await self._socket.send(bytes([STDERR]) + data)

    async def send_status(self, status: Mapping[str, Any]) -> None:
        await self._socket.send(bytes([ERROR]) + json.dumps(status).encode())

    async def incoming(self) -> AsyncIterator[tuple[str, bytes]]:
        while (message := await self._socket.receive()) is not None:
            data = message.encode() if isinstance(message, str) else message
            match data[:1]:
                case b"\x00" if len(data) > 1:
                    yield "stdin", data[1:]
                case b"\x04":
                    yield "resize", data[1:]
                case b"\xff" if data[1:] == b"\x00":
                    yield "stdin", b""


class SpdyChannels:
    def __init__(self, session: SpdySession, stack: AsyncExitStack, streams: dict[str, SpdyChannel]) -> None:
        self._session, self._stack, self._streams = session, stack, streams

    @classmethod
    async def accept(cls, request: Request) -> SpdyChannels:
        offered = [
            p.strip() for line in request.headers.all("x-stream-protocol-version") for p in line.split(",")
        ]
        chosen = next((p for p in SPDY_PROTOCOLS if p in offered), None)
        if chosen is None:
            raise KubeletApiError(
                403, f"unable to upgrade: the client offers {offered}, supported are {list(SPDY_PROTOCOLS)}"
            )
        stream = await request.upgrade(
            [
                ("Connection", "Upgrade"),
                ("Upgrade", "SPDY/3.1"),
                ("X-Stream-Protocol-Version", chosen),
            ]
        )
        stack = AsyncExitStack()
        session = await stack.enter_async_context(spdy.server(stream))
        query = request.query
        wanted = {"error"}
        wanted |= {name for name, flag in (("stdin", "input"), ("stdout", "output")) if query.flag(flag)}
        if query.flag("tty"):
            wanted.add("resize")
        elif query.flag("error"):
            wanted.add("stderr")
        try:
            async with asyncio.timeout(STREAM_TIMEOUT):
                streams = await _accept_streams(session, wanted)
        except BaseException:
            await stack.aclose()
            raise
        return cls(session, stack, streams)

    async def __aenter__(self) -> SpdyChannels:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._streams.values():
            await channel.close()
        # The client must close first: if the connection breaks before it has read the status, it assumes
        # success.
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                await self._session.wait_closed()
        await self._stack.aclose()

    async def stdout(self, data: bytes) -> None:
        await self._write("stdout", data)

    async def stderr(self, data: bytes) -> None:
        await self._write("stderr", data)

    async def _write(self, name: str, data: bytes) -> None:
        if channel := self._streams.get(name):
            await channel.write(data)

    async def send_status(self, status: Mapping[str, Any]) -> None:
        # Close the outputs first: a client that has seen the status may stop reading.
        for name in ("stdout", "stderr"):
            if channel := self._streams.get(name):
                await channel.close()
        await self._write("error", json.dumps(status).encode())

    async def incoming(self) -> AsyncIterator[tuple[str, bytes]]:
        queue: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue(maxsize=16)

        async def read(name: str, channel: SpdyChannel) -> None:
            while data := await channel.read():
                await queue.put((name, data))
            if name == "stdin":
                await queue.put((name, b""))

        async def watch() -> None:
            async for _ in self._session:
                pass
            await queue.put(None)

        readers = [read(n, c) for n, c in self._streams.items() if n in ("stdin", "resize")]
        tasks = [asyncio.create_task(work) for work in (*readers, watch())]
        try:
            while (item := await queue.get()) is not None:
                yield item
        finally:
            await cancel_and_wait(*tasks)


async def _accept_streams(session: SpdySession, wanted: set[str]) -> dict[str, SpdyChannel]:
    streams: dict[str, SpdyChannel] = {}
    while wanted - streams.keys():
        try:
            channel = await anext(session)
        except StopAsyncIteration:
            raise ConnectionResetError("the client disconnected before it had opened its streams") from None
        kind = channel.headers.get("streamtype")
        if kind in wanted and kind not in streams:
            streams[kind] = channel
        else:
            await channel.reset()
    return streams
