"""SPDY/3.1: exact frames, and sessions of our client with our server."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from volplane.web import Headers, HttpClient, Request, Response, Upgraded, serve, spdy, websocket
from volplane.web.spdy import frames, session
from volplane.web.spdy.dictionary import DICTIONARY
from volplane.web.stream import ByteStream
from volplane.web.websocket import MessageStream

Work = Callable[[spdy.SpdySession], Awaitable[None]]


@asynccontextmanager
async def talking(work: Work, *, tunnel: bool = False) -> AsyncIterator[spdy.SpdySession]:
    """A client session whose server runs `work`."""

    async def handler(request: Request) -> Response | Upgraded:
        below: ByteStream
        if tunnel:
            below = MessageStream(await websocket.server_accept(request, ["SPDY/3.1+portforward.k8s.io"]))
        else:
            below = await request.upgrade({"Upgrade": "SPDY/3.1"})
        async with spdy.server(below) as server_session:
            await work(server_session)
        return Upgraded()

    server = await serve(handler)
    http = HttpClient(f"http://127.0.0.1:{server.port}")
    try:
        async with asyncio.timeout(10), spdy.client(await _below(http, tunnel)) as client_session:
            yield client_session
    finally:
        await http.close()
        await server.close(0.2)


async def _below(http: HttpClient, tunnel: bool) -> ByteStream:
    if tunnel:
        return MessageStream(
            await websocket.connect_websocket(http, "/", protocols=["SPDY/3.1+portforward.k8s.io"])
        )
    _, stream = await http.upgrade("/", {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}, method="POST")
    assert stream is not None
    return stream


async def everything(channel: spdy.SpdyChannel) -> bytes:
    pieces = []
    while piece := await channel.read():
        pieces.append(piece)
    return b"".join(pieces)


# Frames


def test_the_dictionary_is_the_one_of_spdy_3() -> None:
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


def test_frames_have_their_bytes() -> None:
    assert frames.data(1, b"hi", fin=True) == b"\x00\x00\x00\x01\x01\x00\x00\x02hi"
    assert frames.reset(3, frames.CANCEL) == b"\x80\x03\x00\x03\0\0\0\x08\0\0\0\x03\0\0\0\x05"
    assert frames.ping(7) == b"\x80\x03\x00\x06\x00\x00\x00\x04\x00\x00\x00\x07"
    assert frames.goaway(5) == b"\x80\x03\x00\x07\x00\x00\x00\x08\x00\x00\x00\x05\x00\x00\x00\x00"
    opened = frames.Encoder().open(1, {"StreamType": "error"}, fin=True)
    assert opened[:4] == b"\x80\x03\x00\x01"
    assert opened[4] == frames.FIN
    plain = zlib.decompressobj(zdict=DICTIONARY).decompress(opened[18:])
    assert plain == b"\x00\x00\x00\x01\x00\x00\x00\x0astreamtype\x00\x00\x00\x05error"


def test_headers_share_one_context_and_keep_all_values() -> None:
    encoder, decoder = frames.Encoder(), frames.Decoder()
    wire = b"".join(
        encoder.open(id, [("streamtype", kind), ("X", "1"), ("x", "2")])
        for id, kind in ((1, "error"), (3, "stdin"), (5, "stdout"))
    )
    found = [frame for byte in wire for frame in decoder.feed(bytes([byte]))]
    opened = [frame for frame in found if isinstance(frame, frames.SynStream)]
    assert [(f.stream, f.headers.get("streamtype"), f.headers.all("x")) for f in opened] == [
        (1, "error", ["1", "2"]),
        (3, "stdin", ["1", "2"]),
        (5, "stdout", ["1", "2"]),
    ]


@pytest.mark.parametrize(
    "wire",
    [
        b"\x80\x02\x00\x06\x00\x00\x00\x04\x00\x00\x00\x07",
        b"\x80\x03\x00\x01\x00\x00\x00\x04\x00\x00\x00\x01",
        b"\x80\x03\x00\x01\x00\xff\xff\xff",
        b"\x80\x03\x00\x02\x00\x00\x00\x08\x00\x00\x00\x01junk",
        b"\x80\x03\x00\x02\x00\x00\x00\x04\x00\x00\x00\x01",
    ],
    ids=["version 2", "too short", "too long", "not zlib", "no headers"],
)
def test_what_is_no_spdy_is_told_apart(wire: bytes) -> None:
    with pytest.raises(frames.SpdyError):
        list(frames.Decoder().feed(wire))


def test_a_header_bomb_is_not_unpacked() -> None:
    wire = frames.Encoder().open(1, {"x": "a" * 10_000_000})
    with pytest.raises(frames.SpdyError, match="too large"):
        list(frames.Decoder().feed(wire))


def test_frames_that_we_do_not_use_are_passed_over() -> None:
    settings = b"\x80\x03\x00\x04\x00\x00\x00\x04\x00\x00\x00\x00"
    window = b"\x80\x03\x00\x09\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\xff\xff"
    assert list(frames.Decoder().feed(settings + window + frames.ping(1))) == [frames.Ping(1)]


# Sessions


async def exec_cat(server_session: spdy.SpdySession) -> None:
    """As exec does: wait for the channels, copy stdin to stdout, put the status on the error channel."""
    channels: dict[str, spdy.SpdyChannel] = {}
    async for channel in server_session:
        channels[channel.headers.get("streamType")] = channel
        if len(channels) == 3:
            break
    while piece := await channels["stdin"].read():
        await channels["stdout"].write(piece)
    await channels["stdout"].close()
    await channels["error"].write(b'{"metadata":{},"status":"Success"}')
    await channels["error"].close()


@pytest.mark.parametrize("tunnel", [False, True], ids=["upgrade", "websocket"])
async def test_exec_with_three_channels(tunnel: bool) -> None:
    async with talking(exec_cat, tunnel=tunnel) as client_session:
        error, stdin, stdout = [
            await client_session.open({"streamtype": kind}) for kind in ("error", "stdin", "stdout")
        ]
        assert [error.id, stdin.id, stdout.id] == [1, 3, 5]
        await stdin.write(b"hello " * 50_000)
        await stdin.close()
        assert await everything(stdout) == b"hello " * 50_000
        assert await everything(error) == b'{"metadata":{},"status":"Success"}'
        with pytest.raises(StopAsyncIteration):
            await anext(client_session)


async def test_port_forward_opens_pairs_while_others_run() -> None:
    async def forward(server_session: spdy.SpdySession) -> None:
        async with asyncio.TaskGroup() as group:
            async for channel in server_session:
                if channel.headers.get("streamtype") == "data":
                    group.create_task(shout(channel))
                else:
                    await channel.close()

    async def shout(channel: spdy.SpdyChannel) -> None:
        while piece := await channel.read():
            await channel.write(piece.upper() + channel.headers.get("port").encode())
        await channel.close()

    async with talking(forward) as client_session:

        async def one(number: int) -> bytes:
            common = {"port": "80", "requestID": str(number)}
            await client_session.open({"streamtype": "error", **common})
            data = await client_session.open({"streamtype": "data", **common})
            await data.write(b"request-%d" % number)
            await data.close()
            return await everything(data)

        answers = await asyncio.gather(*(one(n) for n in range(20)))
        assert answers == [b"REQUEST-%d80" % n for n in range(20)]


async def test_a_ping_is_answered() -> None:
    async def handler(request: Request) -> Upgraded:
        async with spdy.server(await request.upgrade({"Upgrade": "SPDY/3.1"})) as server_session:
            async for _ in server_session:
                pass
        return Upgraded()

    server = await serve(handler)
    http = HttpClient(f"http://127.0.0.1:{server.port}")
    stream = await _below(http, tunnel=False)
    await stream.write(frames.ping(1))
    assert await stream.read() == frames.ping(1)
    stream.close()
    await http.close()
    await server.close(0.2)


async def test_a_client_that_vanishes_ends_its_channels() -> None:
    seen: list[object] = []
    ended = asyncio.Event()

    async def work(server_session: spdy.SpdySession) -> None:
        channel = await anext(server_session)
        seen.append(await channel.read())
        seen.append(await channel.read())
        seen.append(channel.was_reset)
        with pytest.raises(ConnectionResetError):
            await channel.write(b"x")
        await channel.close()
        ended.set()

    async with talking(work) as client_session:
        channel = await client_session.open({"streamtype": "stdin"})
        await channel.write(b"last words")
        client_session._below.close()
        await ended.wait()
    assert seen == [b"last words", b"", True]


async def test_a_reset_reaches_the_other_side() -> None:
    async def work(server_session: spdy.SpdySession) -> None:
        channel = await anext(server_session)
        await channel.reset()
        await channel.reset()
        async for _ in server_session:
            pass

    async with talking(work) as client_session:
        channel = await client_session.open({})
        assert await channel.read() == b""
        assert channel.was_reset
        with pytest.raises(ConnectionResetError):
            await channel.write(b"x")


async def test_a_channel_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_CHANNELS", 2)

    async def work(server_session: spdy.SpdySession) -> None:
        async for _ in server_session:
            pass

    async with talking(work) as client_session:
        for _ in range(2):
            await client_session.open({})
        client_session._channels.clear()  # the limit is the same module's; only the server shall meet it
        with pytest.raises(ConnectionResetError, match="refused"):
            await client_session.open({})


async def test_a_session_stops_reading_while_nobody_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "READ_AHEAD", 100_000)
    read = asyncio.Event()
    size = 0

    async def work(server_session: spdy.SpdySession) -> None:
        nonlocal size
        channel = await anext(server_session)
        await read.wait()
        size = len(await everything(channel))
        await channel.write(b"all")

    async with talking(work) as client_session:
        channel = await client_session.open({})
        writing = asyncio.ensure_future(channel.write(b"x" * (20 << 20)))
        await asyncio.wait([writing], timeout=0.2)
        assert not writing.done()
        read.set()
        await writing
        await channel.close()
        assert await everything(channel) == b"all"
    assert size == 20 << 20


async def test_data_for_a_channel_that_never_was_is_reset() -> None:
    async def work(server_session: spdy.SpdySession) -> None:
        async for _ in server_session:
            pass

    async with talking(work) as client_session:
        known = await client_session.open({})
        await client_session._send(frames.data(9, b"?"))
        await known.close()
        lost = session.SpdyChannel(client_session, 9, Headers())
        client_session._channels[9] = lost
        assert await lost.read() == b""
        assert lost.was_reset
