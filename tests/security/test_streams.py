"""Streams: what a peer sends, or does not read, is never gathered without end."""

from __future__ import annotations

import asyncio
import socket
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from volplane.api.core import ConfigMap
from volplane.client.cache import Cache
from volplane.client.https import HttpsTransport
from volplane.host import Host
from volplane.node.api import portforward
from volplane.node.api.errors import KubeletApiError
from volplane.node.api.logs import LONGEST, LogRequest, _LogReader
from volplane.node.network import relay
from volplane.node.network.interface import StreamPair
from volplane.store import WatchOverrun
from volplane.store.memory import MemoryStore
from volplane.web import Headers, HttpClient, HttpServer, Query, Request, Response, Stream, Upgraded, serve
from volplane.web import client as client_module
from volplane.web.spdy import frames, session
from volplane.web.spdy.dictionary import DICTIONARY
from volplane.web.stream import ByteStream


def syn_stream(block: bytes) -> bytes:
    """A frame that opens stream 1 with this block of headers."""
    packer = zlib.compressobj(level=9, zdict=DICTIONARY)
    payload = struct.pack("!IIBB", 1, 0, 0, 0) + packer.compress(block) + packer.flush(zlib.Z_SYNC_FLUSH)
    return struct.pack("!HHI", frames.VERSION, frames.SYN_STREAM, len(payload)) + payload


def header(name: bytes, value: bytes) -> bytes:
    return struct.pack("!I", len(name)) + name + struct.pack("!I", len(value)) + value


@pytest.mark.parametrize(
    "block",
    [
        struct.pack("!I", 1) + header(b"x", b"a" * 10_000_000),
        struct.pack("!I", 1) + header(b"x", b"a" * 200_000),
        struct.pack("!I", 1) + header(b"x", b"\0" * 16_000),
        struct.pack("!I", 1000) + header(b"x", b"") * 1000,
    ],
    ids=["a bomb", "large", "many values", "many names"],
)
def test_headers_that_unpack_into_much_end_the_session(block: bytes) -> None:
    wire = syn_stream(block)
    assert len(wire) < frames.MAX_CONTROL
    with pytest.raises(frames.SpdyError, match=r"too (large|many)"):
        list(frames.Decoder().feed(wire))


def test_a_data_frame_is_handed_on_as_it_comes() -> None:
    """A frame may announce 16 MiB; its data is passed on before all of it has arrived."""
    decoder = frames.Decoder()
    announced = struct.pack("!II", 1, frames.FIN << 24 | 0xFFFFFF)
    assert list(decoder.feed(announced + b"abc")) == [frames.Data(1, b"abc")]
    rest = 0xFFFFFF - 3
    parts = [frame for _ in range(rest // 65535) for frame in decoder.feed(bytes(65535))]
    parts += list(decoder.feed(bytes(rest % 65535) + frames.ping(2)))
    data = [part for part in parts if isinstance(part, frames.Data)]
    assert sum(len(part.data) for part in data) == rest
    assert [part.fin for part in data][-2:] == [False, True]
    assert parts[-1] == frames.Ping(2)


@asynccontextmanager
async def open_upgraded(handler: Any) -> AsyncIterator[tuple[Stream, HttpServer]]:
    """The client's end of a connection that `handler` takes over."""
    server = await serve(handler)
    http = HttpClient(f"http://127.0.0.1:{server.port}")
    try:
        _, stream = await http.upgrade("/", {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}, method="POST")
        assert stream is not None
        yield stream, server
        stream.close()
    finally:
        await http.close()
        await server.close(0.2)


async def test_streams_that_are_opened_and_reset_do_not_pile_up() -> None:
    waiting: list[int] = []

    async def handler(request: Request) -> Upgraded:
        below: ByteStream = await request.upgrade({"Upgrade": "SPDY/3.1"})
        made = session.SpdySession(below, first_id=2)
        await made._run()  # no reader
        waiting.append(made._incoming.qsize())
        return Upgraded()

    encoder = frames.Encoder()
    async with asyncio.timeout(30), open_upgraded(handler) as (stream, _):
        for id in range(1, 2 * 3000, 2):
            stream.write_nowait(encoder.open(id, {"streamtype": "data"}) + frames.reset(id, frames.CANCEL))
        stream.write_nowait(frames.ping(1))
        decoder = frames.Decoder()
        while frames.Ping(1) not in list(decoder.feed(await stream.read())):
            pass  # everything before it has been worked
        stream.close()
        while not waiting:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)
    assert waiting[0] <= session.MAX_CHANNELS + 1  # and the sign of the end


async def test_a_port_forward_keeps_few_streams_without_their_other_half() -> None:
    async def dial(port: int) -> StreamPair:
        raise OSError("nobody is there")

    async def handler(request: Request) -> Upgraded:
        await portforward._serve(await request.upgrade({"Upgrade": "SPDY/3.1"}), dial)
        return Upgraded()

    async with asyncio.timeout(30), open_upgraded(handler) as (stream, _), session.client(stream) as made:
        channels = [
            await made.open({"streamtype": "data", "port": "80", "requestid": str(number)})
            for number in range(portforward.MAX_UNPAIRED + 10)
        ]
        for channel in channels[:10]:
            assert await channel.read() == b""
            assert channel.was_reset
        assert not channels[-1].was_reset


async def test_what_a_peer_does_not_read_is_not_gathered() -> None:
    written = 0
    blocked = asyncio.Event()

    async def handler(request: Request) -> Upgraded:
        nonlocal written
        stream = await request.upgrade({"Upgrade": "SPDY/3.1"})
        while written < 1 << 30:
            writing = asyncio.ensure_future(stream.write(bytes(65536)))
            done, _ = await asyncio.wait({writing}, timeout=0.5)
            if not done:
                blocked.set()
                writing.cancel()
                break
            written += 65536
        return Upgraded()

    async with asyncio.timeout(30), open_upgraded(handler):
        await blocked.wait()
    assert written < 64 << 20  # what the kernel holds, and a little of ours


async def test_a_watcher_that_does_not_read_keeps_a_bounded_amount_of_memory() -> None:
    store = MemoryStore()
    large = bytes(1 << 20)
    async with store.watch("/registry/configmaps/", revision=0) as watch:
        revision = await store.create("/registry/configmaps/a/b", large)
        for number in range(100):
            value = large + bytes([number])
            revision = await store.update("/registry/configmaps/a/b", value, revision=revision)
        with pytest.raises(WatchOverrun, match="bytes behind"):
            await anext(aiter(watch))
    await store.close()


async def test_a_line_of_a_log_that_never_ends_is_shown_in_parts(tmp_path: Path) -> None:
    path, host = tmp_path / "0.log", Host()
    with path.open("wb") as file:
        file.write(b"2026-01-01T00:00:00Z stdout F ")
        for _ in range(5):
            file.write(b"a" * (1 << 20))
    try:
        pieces = [piece async for piece in _LogReader(LogRequest(), str(path), host).read(None)]
    finally:
        await host.close()
    assert len(pieces) > 1
    assert max(map(len, pieces)) < 2 * LONGEST


@pytest.mark.parametrize("name", ["tailLines", "sinceSeconds", "limitBytes"])
def test_a_number_of_a_thousand_digits_is_just_a_large_one(name: str) -> None:
    asked = LogRequest.from_query(Query(f"{name}={'9' * 5000}"))
    assert asked.tail or asked.since or asked.limit


async def test_a_client_keeps_few_connections_that_it_does_not_need() -> None:
    async def answer(request: Request) -> Response:
        return Response(200, body=b"x")

    server = await serve(answer)
    http = HttpClient(f"http://127.0.0.1:{server.port}")
    count = client_module.MAX_IDLE + 20
    everybody = asyncio.Barrier(count)

    async def ask() -> None:
        async with http.stream("GET", "/") as (_, pieces):
            assert [piece async for piece in pieces] == [b"x"]
            await everybody.wait()

    try:
        async with asyncio.timeout(30):
            await asyncio.gather(*(ask() for _ in range(count)))
            while len(server.connections) > client_module.MAX_IDLE:  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.01)
    finally:
        await http.close()
        await server.close(0.2)


@pytest.mark.virtual
async def test_a_cache_comes_back_when_the_server_has_asked_it_to() -> None:
    asked: list[float] = []
    loop = asyncio.get_running_loop()

    async def busy(request: Request) -> Response:
        asked.append(loop.time())
        return Response(429, {"Retry-After": "20", "Content-Type": "text/plain"}, b"too many requests\n")

    server = await serve(busy)
    http = HttpClient(f"http://127.0.0.1:{server.port}")
    following = asyncio.create_task(Cache(HttpsTransport(http), ConfigMap).run())
    try:
        await asyncio.sleep(100)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await http.close()
        await server.close(0.2)
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert len(pauses) >= 2
    assert all(20 <= pause <= 31 for pause in pauses)


@pytest.mark.parametrize(
    "query", ["&".join(["port=80"] * 200), f"port={'9' * 5000}", "port=70000", "port=0", "port=x"]
)
async def test_a_port_forward_refuses_ports_that_cannot_be(query: str) -> None:
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "x",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": portforward.PLAIN,
    }

    async def dial(port: int) -> StreamPair:
        raise AssertionError("nobody is dialled")

    with pytest.raises(KubeletApiError, match=r"port") as refused:
        await portforward.forward(Request("GET", f"/portForward?{query}", Headers.of(headers)), dial)
    assert refused.value.status == 400


async def test_a_host_port_hands_on_a_bounded_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes two descriptors of the node's process, and the clients are not authenticated."""
    monkeypatch.setattr(relay, "DESCRIPTOR_SHARE", 1 << 30)
    behind = await asyncio.start_server(_echo, "127.0.0.1", 0)
    port = behind.sockets[0].getsockname()[1]
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    made = relay.Relay(listening, lambda _: asyncio.open_connection("127.0.0.1", port), set())
    await made.start()
    wires = []
    try:
        async with asyncio.timeout(20):
            for _ in range(relay.MIN_LINKS):
                wires.append(await asyncio.open_connection(*address))
                assert await _is_echoed(wires[-1])
            wires.append(await asyncio.open_connection(*address))
            assert not await _is_echoed(wires[-1])
            wires[0][1].close()
            let_in = False
            while not let_in:  # there is room once the end has been seen
                wires.append(await asyncio.open_connection(*address))
                let_in = await _is_echoed(wires[-1])
            assert await _is_echoed(wires[1])
    finally:
        for _, writer in wires:
            writer.close()
        await made.close()
        behind.close()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


async def _is_echoed(wire: StreamPair) -> bool:
    wire[1].write(b"x")
    try:
        return await wire[0].read(1) == b"x"
    except ConnectionError:
        return False
