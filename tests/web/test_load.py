"""A client that sends or holds too much does not affect others; unread data is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.web.test_server import Wire, connect_wire, serving
from volplane.web import DirectWriter, Request, Response
from volplane.web import connection as connection_module

AHEAD = 500


async def test_requests_sent_ahead_do_not_keep_others_waiting() -> None:
    served: list[str] = []
    flooded = asyncio.Event()

    async def note(request: Request) -> Response:
        served.append(request.path)
        if request.path == "/flood":
            flooded.set()
        return Response(body=b"ok")

    async with serving(note) as server, connect_wire(server) as flood, connect_wire(server) as other:
        other.send(b"GET /first HTTP/1.1\r\nHost: x\r\n\r\n")
        await other.answer()
        flood.send(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n" * AHEAD)
        await flooded.wait()
        other.send(b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n")
        await other.answer()
        before = served.index("/other")
        for _ in range(AHEAD):
            await flood.answer()
    assert before < AHEAD // 2
    assert served.count("/flood") == AHEAD


async def drain_of(wire: Wire) -> bytes:
    """Everything received until the connection ends."""
    try:
        async with asyncio.timeout(30):
            return await wire.reader.read()
    except ConnectionError:
        return b""


async def test_a_stream_that_is_not_read_ends_when_its_patience_does() -> None:
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 65536
        finally:
            ended.set()

    async def stream(request: Request) -> Response:
        return Response(body=endless(), patience=0.05)

    async with serving(stream) as server, connect_wire(server) as wire:
        wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await ended.wait()
        await drain_of(wire)
        assert not server.connections


async def test_a_stream_can_be_written_past_while_its_client_takes_it() -> None:
    sinks: list[DirectWriter] = []
    ended: asyncio.Queue[None] = asyncio.Queue()

    async def silent() -> AsyncIterator[bytes]:
        yield b"first"
        try:
            await asyncio.Event().wait()
            yield b"never"
        finally:
            ended.put_nowait(None)

    async def stream(request: Request) -> Response:
        return Response(body=silent(), direct=sinks.append)

    async with serving(stream) as server:
        async with connect_wire(server) as wire, connect_wire(server) as other:
            for one in (wire, other):
                one.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                await one.reader.readuntil(b"\r\n\r\n")
                assert await one.chunk() == b"first"
            piece = b"for all"
            for sink in sinks:
                assert not sink.is_full
                sink.write(piece)
            for one in (wire, other):
                assert await one.chunk() == piece
            while not sinks[0].is_full:  # without a reader
                sinks[0].write(b"x" * 65536)
            assert not sinks[1].is_full
        for _ in sinks:
            await ended.get()
        assert all(sink.is_full for sink in sinks)  # who has gone takes nothing


async def test_an_answer_that_is_not_taken_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "UNREAD", 0.05)

    asked = asyncio.Event()

    async def large(request: Request) -> Response:
        asked.set()
        return Response(body=b"x" * (64 << 20))

    async with serving(large) as server, connect_wire(server) as wire:
        wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asked.wait()
        (connection,) = server.connections
        assert connection.task is not None
        await asyncio.wait([connection.task], timeout=30)
        assert len(await drain_of(wire)) < 64 << 20


async def test_a_stream_without_a_limit_waits_for_its_reader() -> None:
    sent = 0

    async def logs() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(400):
            sent += 65536
            yield b"x" * 65536

    async def stream(request: Request) -> Response:
        return Response(body=logs())

    async with serving(stream) as server, connect_wire(server) as wire:
        wire.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        await asyncio.sleep(0.2)
        held = sent
        assert held < 400 * 65536  # it waits,
        assert len(await drain_of(wire)) > 400 * 65536  # and all of it comes
