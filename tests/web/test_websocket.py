"""WebSocket: our client with our server, and invalid handshakes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from volplane.web import Headers, HttpClient, Request, Response, Upgraded, serve, websocket
from volplane.web.websocket import BadHandshake, MessageStream, WebSocket, WebSocketRefused

ASKED = {"Upgrade": "websocket", "Connection": "Upgrade"}
V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"


@asynccontextmanager
async def talking(work: Callable[[WebSocket], Awaitable[None]], *protocols: str) -> AsyncIterator[HttpClient]:
    async def handler(request: Request) -> Response | Upgraded:
        try:
            socket = await websocket.server_accept(request, protocols)
        except BadHandshake as bad:
            return Response(400, body=str(bad).encode())
        await work(socket)
        return Upgraded()

    server = await serve(handler)
    http = HttpClient(f"http://127.0.0.1:{server.port}")
    try:
        async with asyncio.timeout(10):
            yield http
    finally:
        await http.close()
        await server.close(0.2)


async def echo(socket: WebSocket) -> None:
    while (message := await socket.receive()) is not None:
        await socket.send(message)


async def test_messages_go_both_ways_as_they_were_sent() -> None:
    async with talking(echo, "") as http:
        socket = await websocket.connect_websocket(http, "/")
        for message in (b"\0stdin", "text é", b"", b"x" * 300_000):
            await socket.send(message)
            assert await socket.receive() == message
        await socket.close()
        assert socket.close_code == 1000


async def test_the_servers_first_choice_among_the_offers_is_agreed_on() -> None:
    async def work(socket: WebSocket) -> None:
        await socket.send(socket.protocol)
        await socket.close()

    async with talking(work, V5, V4) as http:
        for offers, chosen in (((V4, V5), V5), ((V4,), V4), (("other", V4), V4)):
            socket = await websocket.connect_websocket(http, "/", protocols=offers)
            assert socket.protocol == chosen
            assert await socket.receive() == chosen
            assert await socket.receive() is None
            await socket.close()


async def test_without_a_common_protocol_there_is_no_upgrade() -> None:
    async with talking(echo, V5) as http:
        for offers in (("other",), ()):
            with pytest.raises(WebSocketRefused, match="400: unable to negotiate") as refused:
                await websocket.connect_websocket(http, "/", protocols=offers)
            assert refused.value.answer.status == 400


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Upgrade": "websocket"},
        ASKED | {"Sec-WebSocket-Version": "13"},
        ASKED | {"Sec-WebSocket-Version": "8", "Sec-WebSocket-Key": "x"},
    ],
)
async def test_what_is_no_handshake_is_refused_before_anything_is_answered(headers: dict[str, str]) -> None:
    with pytest.raises(BadHandshake):
        await websocket.server_accept(Request("GET", "/", Headers.of(headers)), [""])


async def test_the_server_closes_with_its_code() -> None:
    async def work(socket: WebSocket) -> None:
        await socket.send(b"\3status")
        await socket.close(4000, "enough")

    async with talking(work, "") as http:
        socket = await websocket.connect_websocket(http, "/")
        assert await socket.receive() == b"\3status"
        assert await socket.receive() is None
        assert socket.close_code == 4000
        with pytest.raises(ConnectionResetError):
            await socket.send(b"late")


async def test_a_peer_that_vanishes_ends_the_reading() -> None:
    ended = asyncio.Event()

    async def work(socket: WebSocket) -> None:
        assert await socket.receive() is None
        ended.set()

    async with talking(work, "") as http:
        socket = await websocket.connect_websocket(http, "/")
        socket._stream.close()
        await ended.wait()


async def test_pings_are_answered_and_pieces_put_together() -> None:
    async with talking(echo, "") as http:
        ask = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        answer, stream = await http.upgrade("/", ask)
        assert stream is not None
        assert answer.headers.get("sec-websocket-accept") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # RFC 6455, 1.3
        await stream.write(b"\x89\x82\0\0\0\0hi")
        assert await stream.read() == b"\x8a\x02hi"
        await stream.write(b"\x02\x81\0\0\0\0a")  # first piece of a binary message
        await stream.write(b"\x80\x81\0\0\0\0b")
        assert await stream.read() == b"\x82\x02ab"
        stream.close()


async def test_a_message_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "MAX_MESSAGE", 1000)
    async with talking(echo, "") as http:
        socket = await websocket.connect_websocket(http, "/")
        await socket.send(b"x" * 2000)
        assert await socket.receive() is None
        assert socket.close_code == 1009


async def test_messages_can_be_read_as_one_stream_of_bytes() -> None:
    async def work(socket: WebSocket) -> None:
        stream = MessageStream(socket)
        while data := await stream.read(3):
            await stream.write(data.upper())
        stream.close()

    async with talking(work, "") as http:
        stream = MessageStream(await websocket.connect_websocket(http, "/"))
        await stream.write(b"abcdefgh")
        seen = b""
        while len(seen) < 8:
            seen += await stream.read()
        assert seen == b"ABCDEFGH"
        stream.close()
        assert await stream.read() == b""


async def test_a_close_while_another_task_receives_waits_for_that_task() -> None:
    async with talking(echo, "") as http:
        socket = await websocket.connect_websocket(http, "/")
        receiving = asyncio.ensure_future(socket.receive())
        await asyncio.sleep(0)
        await socket.close()
        assert await receiving is None


async def test_a_greeting_waits_until_the_peer_reads_or_speaks() -> None:
    greeted = asyncio.Queue[None]()

    async def work(socket: WebSocket) -> None:
        await socket.wait_for_peer()
        greeted.put_nowait(None)
        await echo(socket)

    async with talking(work, "") as http:
        speaks = await websocket.connect_websocket(http, "/")
        await asyncio.sleep(0.05)
        assert greeted.empty()
        await speaks.send(b"not lost")
        await greeted.get()
        assert await speaks.receive() == b"not lost"
        reads = await websocket.connect_websocket(http, "/")
        reading = asyncio.create_task(reads.receive())
        await greeted.get()
        await reads.send(b"heard")
        assert await reading == b"heard"
        for end in (speaks, reads):
            await end.close()


async def test_a_peer_that_never_answers_is_greeted_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket, "GREETING", 0.05)

    async def work(socket: WebSocket) -> None:
        await socket.wait_for_peer()
        await socket.send(b"all the same")
        await echo(socket)

    async with talking(work, "") as http:
        socket = await websocket.connect_websocket(http, "/")
        await asyncio.sleep(0.1)
        assert await socket.receive() == b"all the same"
        await socket.close()
