"""The HTTP server, tested with raw bytes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from volplane.web import Handler, HttpServer, PortInUse, Request, Response, ServerLimits, Upgraded, serve
from volplane.web import server as server_module


@asynccontextmanager
async def serving(handler: Handler, *, max_body: int = 1000) -> AsyncIterator[HttpServer]:
    server = await serve(handler, limits=ServerLimits(body=max_body))
    server.linger = 0.2
    try:
        yield server
    finally:
        await server.close(grace=0.2)


class Wire:
    """A client that sees every byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers, and the body if it has a Content-Length."""
        top = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in top[1:] if line)
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(top[0].split()[1]), headers, body

    async def chunk(self) -> bytes:
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size)
        assert await self.reader.readexactly(2) == b"\r\n"
        return data


@asynccontextmanager
async def connect_wire(server: HttpServer) -> AsyncIterator[Wire]:
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            yield Wire(reader, writer)
        finally:
            writer.close()


async def echo(request: Request) -> Response:
    text = f"{request.method} {request.path} ".encode()
    return Response(200, [("Content-Type", "text/plain")], text + request.body)


async def test_a_request_gets_its_answer_on_a_connection_that_stays() -> None:
    async with serving(echo) as server, connect_wire(server) as wire:
        for _ in range(3):
            wire.send(b"POST /a%20b?x=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
            status, headers, body = await wire.answer()
            assert (status, body) == (200, b"POST /a b hello")
            assert headers["content-type"] == "text/plain"
            assert "connection" not in headers
            assert headers["date"].endswith("gmt")


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def slow_first(request: Request) -> Response:
        if request.path == "/0":
            await asyncio.sleep(0.02)
        return Response(body=request.path.encode())

    async with serving(slow_first) as server, connect_wire(server) as wire:
        wire.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(200)))
        assert [(await wire.answer())[2] for _ in range(200)] == [b"/%d" % n for n in range(200)]


async def test_a_request_may_come_in_single_bytes_and_in_chunks() -> None:
    async with serving(echo) as server, connect_wire(server) as wire:
        top = b"PUT /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        for byte in top + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n":
            wire.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await wire.answer())[2] == b"PUT /x abcde"


async def test_the_client_is_told_to_go_on_before_it_sends_its_body() -> None:
    async with serving(echo) as server, connect_wire(server) as wire:
        wire.send(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.send(b"ok")
        assert (await wire.answer())[2] == b"POST / ok"


async def test_connection_close_closes() -> None:
    async with serving(echo) as server, connect_wire(server) as wire:
        wire.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await wire.answer())[1]["connection"] == "close"
        assert await wire.reader.read() == b""


async def test_head_and_204_have_no_body() -> None:
    async def handler(request: Request) -> Response:
        return Response(204) if request.path == "/204" else Response(body=b"12345")

    async with serving(handler) as server, connect_wire(server) as wire:
        for line in (b"HEAD /", b"GET /204", b"GET /"):
            wire.send(line + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"Content-Length: 5\r\n" in await wire.reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length" not in await wire.reader.readuntil(b"\r\n\r\n")
        assert (await wire.answer())[2] == b"12345"


@pytest.mark.parametrize("framing", [b"Content-Length: 5002\r\n", b"Transfer-Encoding: chunked\r\n\r\n1388"])
async def test_a_body_over_the_limit_is_refused(framing: bytes) -> None:
    async with serving(echo, max_body=1000) as server, connect_wire(server) as wire:
        wire.send(b"POST / HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n" + b"x" * 5000)
        status, headers, text = await wire.answer()
        assert (status, headers["connection"]) == (413, "close")
        assert b"too large" in text
        wire.writer.write_eof()
        assert await wire.reader.read() == b""


async def test_garbage_behind_a_request_does_not_cost_its_answer() -> None:
    async with serving(echo) as server, connect_wire(server) as wire:
        wire.send(b"GET /good HTTP/1.1\r\nHost: x\r\n\r\nthis is none\r\n\r\n")
        status, headers, body = await wire.answer()
        assert (status, headers["connection"], body) == (200, "close", b"GET /good ")
        assert await wire.reader.read() == b""


async def test_a_client_that_never_stops_sending_is_cut_off() -> None:
    async with serving(echo, max_body=10) as server, connect_wire(server) as wire:
        wire.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert (await wire.answer())[0] == 413
        assert await wire.reader.read() == b""  # we never said that we were done


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000, 431),
        (b"GET /" + b"x" * 70_000, 431),
    ],
    ids=["no request", "two lengths", "endless header", "endless path"],
)
async def test_what_is_no_request_is_refused_and_the_connection_closed(message: bytes, status: int) -> None:
    async with serving(echo) as server, connect_wire(server) as wire:
        wire.send(message)
        assert (await wire.answer())[0] == status
        assert await wire.reader.read() == b""


async def test_a_handler_that_fails_gives_500_and_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: Request) -> Response:
        raise ZeroDivisionError("oops")

    with caplog.at_level(logging.ERROR):
        async with serving(handler) as server, connect_wire(server) as wire:
            wire.send(b"GET /p HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await wire.answer())[0] == 500
    assert "ZeroDivisionError" in caplog.text


async def test_a_stream_flushes_its_head_and_every_piece_at_once() -> None:
    step: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def pieces() -> AsyncGenerator[bytes, None]:
        while (piece := await step.get()) is not None:
            yield piece

    async def handler(request: Request) -> Response:
        return Response(200, {"Content-Type": "application/json"}, pieces())

    async with serving(handler) as server, connect_wire(server) as wire:
        wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        _, headers, _ = await wire.answer()
        assert headers["transfer-encoding"] == "chunked"
        for text in (b"one\n", b"two\n"):
            step.put_nowait(text)
            assert await wire.chunk() == text
        step.put_nowait(None)
        assert await wire.chunk() == b""
        wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")  # and the connection goes on
        step.put_nowait(None)
        assert (await wire.answer())[0] == 200


async def test_an_old_client_gets_a_stream_without_chunks() -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"one"
        yield b"two"

    async def handler(request: Request) -> Response:
        return Response(body=pieces())

    async with serving(handler) as server, connect_wire(server) as wire:
        wire.send(b"GET / HTTP/1.0\r\n\r\n")
        assert (await wire.answer())[1]["connection"] == "close"
        assert await wire.reader.read() == b"onetwo"


async def test_a_stream_is_closed_when_its_client_leaves() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            yield b"x"
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def handler(request: Request) -> Response:
        return Response(body=endless())

    async with serving(handler) as server:
        async with connect_wire(server) as wire:
            wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await wire.answer()
        async with asyncio.timeout(10):
            await closed.wait()


async def test_a_client_that_does_not_read_holds_its_stream_and_not_the_memory() -> None:
    produced = 0
    stalled = asyncio.Event()

    async def flood() -> AsyncGenerator[bytes, None]:
        nonlocal produced
        loop = asyncio.get_running_loop()
        while True:
            watchdog = loop.call_later(0.3, stalled.set)
            yield b"x" * 65536
            watchdog.cancel()
            produced += 65536

    async def handler(request: Request) -> Response:
        return Response(body=flood())

    async with serving(handler) as server, connect_wire(server) as wire:
        wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await stalled.wait()
        assert produced < 32 << 20


async def test_a_stream_that_breaks_off_does_not_look_complete(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> AsyncGenerator[bytes, None]:
        yield b"part"
        raise OSError("disk gone")

    async def handler(request: Request) -> Response:
        return Response(body=broken())

    with caplog.at_level(logging.ERROR):
        async with serving(handler) as server, connect_wire(server) as wire:
            wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await wire.answer()
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError, ValueError)):  # noqa: PT012
                assert await wire.chunk() == b"part"
                await wire.chunk()
    assert "disk gone" in caplog.text


async def test_a_client_may_shut_its_side_and_still_read_the_answer() -> None:
    async def slow(request: Request) -> Response:
        await asyncio.sleep(0.05)
        return Response(body=b"late")

    async with serving(slow) as server, connect_wire(server) as wire:
        wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        wire.writer.write_eof()
        assert (await wire.answer())[2] == b"late"
        assert await wire.reader.read() == b""


async def test_an_upgrade_hands_the_connection_over_with_what_was_already_sent() -> None:
    async def handler(request: Request) -> Response | Upgraded:
        if request.path == "/no":
            return Response(403, body=b"no")
        stream = await request.upgrade([("Upgrade", "SPDY/3.1")])
        while data := await stream.read():
            await stream.write(data.upper())
        return Upgraded()

    ask = b" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
    async with serving(handler) as server:
        async with connect_wire(server) as wire:
            wire.send(b"POST /yes" + ask + b"early ")
            status, headers, _ = await wire.answer()
            assert (status, headers["upgrade"], headers["connection"]) == (101, "spdy/3.1", "upgrade")
            wire.send(b"late")
            assert await wire.reader.readexactly(10) == b"EARLY LATE"
            wire.writer.write_eof()
            assert await wire.reader.read() == b""
        async with connect_wire(server) as wire:
            wire.send(b"POST /no" + ask)
            status, headers, body = await wire.answer()
            assert (status, headers["connection"], body) == (403, "close", b"no")
            assert await wire.reader.read() == b""


async def test_only_a_client_that_asked_can_be_upgraded(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: Request) -> Response | Upgraded:
        await request.upgrade({"Upgrade": "websocket"})
        return Upgraded()

    with caplog.at_level(logging.CRITICAL):
        async with serving(handler) as server, connect_wire(server) as wire:
            wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await wire.answer())[0] == 500


async def test_closing_lets_a_running_request_finish_and_ends_streams() -> None:
    started = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        yield b"x"
        await asyncio.Event().wait()

    async def handler(request: Request) -> Response:
        if request.path == "/watch":
            return Response(body=endless())
        started.set()
        await asyncio.sleep(0.05)
        return Response(body=b"done")

    server = await serve(handler)
    async with connect_wire(server) as slow, connect_wire(server) as watch, connect_wire(server) as idle:
        slow.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        watch.send(b"GET /watch HTTP/1.1\r\nHost: x\r\n\r\n")
        await watch.answer()
        assert await watch.chunk() == b"x"
        await started.wait()
        closing = asyncio.ensure_future(server.close(grace=5))
        status, headers, body = await slow.answer()
        assert (status, headers["connection"], body) == (200, "close", b"done")
        assert await watch.chunk() == b""
        assert await idle.reader.read() == b""
        await closing
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await asyncio.open_connection("127.0.0.1", server.port)


async def test_a_request_that_does_not_end_is_cancelled_after_the_grace() -> None:
    cancelled = asyncio.Event()

    async def handler(request: Request) -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    server = await serve(handler)
    server.linger = 0.1
    async with connect_wire(server) as wire:
        wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.05)
        await server.close(grace=0.05)
        assert cancelled.is_set()


async def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"port {port} on 127\.0\.0\.1 is in use"):
            await serve(echo, port=port)


@pytest.mark.virtual
async def test_silent_and_slow_connections_are_swept_out() -> None:
    async with serving(echo) as server, wired_forever(server) as (idle, slow):
        slow.send(b"GET / HTTP/1.1\r\nHos")
        await asyncio.sleep(server.limits.head + 2 * server_module.SWEEP)
        assert await slow.reader.read() == b""
        assert len(server.connections) == 1
        await asyncio.sleep(server.limits.unauthenticated_idle)
        assert await idle.reader.read() == b""


@asynccontextmanager
async def wired_forever(server: HttpServer) -> AsyncIterator[tuple[Wire, Wire]]:
    wires = [Wire(*await asyncio.open_connection("127.0.0.1", server.port)) for _ in range(2)]
    yield wires[0], wires[1]
    for wire in wires:
        wire.writer.close()
