"""port-forward: several connections to ports of a pod over one client connection.

Three protocols: SPDY streams in pairs (data and error, matched by their request id), the same tunnelled
through a WebSocket, and the plain WebSocket protocol of Python clients with two channels per port.
Connections are made from inside the pod's network, so that servers on its loopback are reached as well.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress

from volplane.base.tasks import TaskSet, cancel_and_wait
from volplane.node.api.errors import KubeletApiError
from volplane.node.network.interface import StreamPair
from volplane.web import Request, Response, Upgraded, spdy, websocket
from volplane.web.spdy import SpdyChannel, SpdySession
from volplane.web.stream import ByteStream
from volplane.web.websocket import BadHandshake, MessageStream, WebSocket

PROTOCOL = "portforward.k8s.io"
TUNNEL = f"SPDY/3.1+{PROTOCOL}"
PLAIN = "v4.channel.k8s.io"
DIAL_TIMEOUT = 10.0
MOST_PORTS = 127
MAX_UNPAIRED = 64  # streams that may wait for the other one of their pair

Dial = Callable[[int], Awaitable[StreamPair]]
Write = Callable[[bytes], Awaitable[None]]


async def forward(request: Request, dial: Dial) -> Response | Upgraded:
    if websocket.is_websocket_request(request):
        ports = _ports(request)
        try:
            socket = await websocket.server_accept(request, (TUNNEL, PLAIN))
        except BadHandshake as error:
            raise KubeletApiError(400, str(error)) from error
        if socket.protocol == PLAIN:
            await _serve_plain(socket, dial, ports)
        else:
            await _serve(MessageStream(socket), dial)
        return Upgraded()
    if "spdy/3.1" not in request.headers.tokens("upgrade"):
        raise KubeletApiError(400, "Upgrade request required")
    answer = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", PROTOCOL)]
    await _serve(await request.upgrade(answer), dial)
    return Upgraded()


def _ports(request: Request) -> list[int]:
    """The ports of the request. Two channels for each must fit into a byte."""
    named = request.query.all("port")
    if len(named) > MOST_PORTS:
        raise KubeletApiError(400, f"too many ports: {len(named)}, at most {MOST_PORTS}")
    for text in named:
        if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536):
            raise KubeletApiError(400, f"invalid port {text[:20]!r}: must be a number from 1 to 65535")
    return [int(text) for text in named]


# --- SPDY


async def _serve(below: ByteStream, dial: Dial) -> None:
    links = TaskSet()
    async with spdy.server(below) as session:
        try:
            await _pair(session, links, dial)
        finally:
            await links.close()


async def _pair(session: SpdySession, links: TaskSet, dial: Dial) -> None:
    waiting: dict[str, SpdyChannel] = {}  # streams without the other one of their pair
    async for channel in session:
        number = channel.headers.get("requestid")
        other = waiting.pop(number, None)
        if other is None:
            waiting[number] = channel
            if len(waiting) > MAX_UNPAIRED:
                await waiting.pop(next(iter(waiting))).reset()
            continue
        data, error = (channel, other) if channel.headers.get("streamtype") == "data" else (other, channel)
        links.start(_connect_channel(data, error, dial), "forwarded connection")


async def _connect_channel(data: SpdyChannel, error: SpdyChannel, dial: Dial) -> None:
    port = data.headers.get("port")
    try:
        async with asyncio.timeout(DIAL_TIMEOUT):
            reader, writer = await dial(int(port))
    except (OSError, ValueError, OverflowError, TimeoutError) as failure:
        await error.write(f"an error occurred forwarding port {port}: {failure}".encode())
        await error.close()
        await data.reset()
        return
    try:
        await _relay(reader, writer, data.read, data.write, data.close)
    finally:
        await error.close()
        await data.reset()


# --- two channels a port


async def _serve_plain(socket: WebSocket, dial: Dial, ports: list[int]) -> None:
    """Channel 2i carries the i-th port's data and 2i+1 its errors; each begins with the port's number."""
    inputs: list[asyncio.Queue[bytes]] = [asyncio.Queue(maxsize=16) for _ in ports]
    for index, port in enumerate(ports):
        for channel in (2 * index, 2 * index + 1):
            await socket.send(bytes([channel]) + struct.pack("<H", port))
    async with asyncio.TaskGroup() as tasks:
        links = [
            tasks.create_task(_connect_plain(socket, dial, index, port, inputs[index]))
            for index, port in enumerate(ports)
        ]
        while (message := await socket.receive()) is not None:
            data = message.encode() if isinstance(message, str) else message
            if data and data[0] % 2 == 0 and data[0] // 2 < len(inputs):
                await inputs[data[0] // 2].put(data[1:])
        for link in links:
            link.cancel()
    await socket.close()


async def _connect_plain(
    socket: WebSocket, dial: Dial, index: int, port: int, incoming: asyncio.Queue[bytes]
) -> None:
    try:
        async with asyncio.timeout(DIAL_TIMEOUT):
            reader, writer = await dial(port)
    except (OSError, TimeoutError) as failure:
        text = f"an error occurred forwarding port {port}: {failure}"
        await socket.send(bytes([2 * index + 1]) + text.encode())
        return

    async def write(data: bytes) -> None:
        await socket.send(bytes([2 * index]) + data)

    await _relay(reader, writer, incoming.get, write, _do_nothing)


async def _do_nothing() -> None:
    return None


async def _relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    take: Callable[[], Awaitable[bytes]],
    give: Write,
    finish: Callable[[], Awaitable[None]],
) -> None:
    """Copy in both directions until the pod's side closes.

    The client's end of data closes our sending side.
    """

    async def inwards() -> None:
        while data := await take():
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    sending = asyncio.create_task(inwards())
    try:
        while data := await reader.read(65536):
            await give(data)
        await finish()
    except ConnectionError:
        pass  # one side has closed the connection
    finally:
        writer.close()  # before the first await: we may be cancelled again
        await cancel_and_wait(sending)
        with suppress(ConnectionError):
            await writer.wait_closed()
