"""The HTTP client with our server, and with servers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from volplane.web import Handler, HttpClient, HttpError, Request, Response, Upgraded, serve


@asynccontextmanager
async def talking(handler: Handler) -> AsyncIterator[HttpClient]:
    server = await serve(handler)
    http = HttpClient(f"http://127.0.0.1:{server.port}/base/", headers={"Authorization": "Bearer t"})
    try:
        async with asyncio.timeout(10):
            yield http
    finally:
        await http.close()
        await server.close(0.2)


@asynccontextmanager
async def misbehaving(*answers: bytes) -> AsyncIterator[HttpClient]:
    """A server that sends these bytes, one after each request, and then closes."""
    requests: list[bytes] = []

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answers[min(len(requests), len(answers)) - 1])
        writer.close()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    http = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        async with asyncio.timeout(10):
            yield http
    finally:
        await http.close()
        server.close()
        await server.wait_closed()


async def test_a_request_carries_path_headers_and_body() -> None:
    async def handler(request: Request) -> Response:
        seen = [request.method, request.path, request.query.raw, request.body.decode()]
        seen += [request.headers.get(name) for name in ("authorization", "x-y", "content-length")]
        assert request.headers.get("host").startswith("127.0.0.1:")
        return Response(201, {"X-Z": "9"}, "|".join(seen).encode())

    async with talking(handler) as http:
        answer = await http.request("POST", "/a%20b?c=d", headers=[("X-Y", "1")], body=b"hello")
        assert (answer.status, answer.headers.get("x-z")) == (201, "9")
        assert answer.body == b"POST|/base/a b|c=d|hello|Bearer t|1|5"
        assert (await http.request("PATCH", "/")).body.endswith(b"|0")
        assert (await http.request("GET", "/")).body.endswith(b"|")


async def test_connections_are_kept_and_shared() -> None:
    remotes: list[int] = []

    async def handler(request: Request) -> Response:
        await asyncio.sleep(0.01)
        remotes.append(1)
        return Response(body=b"ok")

    async with talking(handler) as http:
        for _ in range(5):
            await http.request("GET", "/")
        assert len(http._open) == 1
        await asyncio.gather(*(http.request("GET", "/") for _ in range(10)))
        assert len(http._open) == 10
        assert len(remotes) == 15


async def test_no_more_connections_than_allowed() -> None:
    async def handler(request: Request) -> Response:
        await asyncio.sleep(0.001)
        return Response()

    server = await serve(handler)
    http = HttpClient(f"http://127.0.0.1:{server.port}", max_connections=3)
    await asyncio.gather(*(http.request("GET", "/") for _ in range(20)))
    assert len(server.connections) == 3
    await http.close()
    await server.close()


async def test_head_and_large_bodies() -> None:
    async def handler(request: Request) -> Response:
        return Response(body=b"x" * (5 << 20))

    async with talking(handler) as http:
        head = await http.request("HEAD", "/")
        assert (head.headers.get("content-length"), head.body) == (str(5 << 20), b"")
        assert len((await http.request("GET", "/")).body) == 5 << 20


async def test_a_stream_gives_pieces_as_they_come_and_ends_with_the_context() -> None:
    step: asyncio.Queue[bytes] = asyncio.Queue()
    closed = asyncio.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield await step.get()
        finally:
            closed.set()

    async def handler(request: Request) -> Response:
        return Response(body=pieces())

    async with talking(handler) as http:
        async with http.stream("GET", "/watch") as (answer, body):
            assert answer.status == 200
            for text in (b"one\n", b"two\n"):
                step.put_nowait(text)
                assert await anext(body) == text
        await closed.wait()


async def test_a_stream_read_to_its_end_leaves_the_connection_for_others() -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"a"
        yield b"b"

    async def handler(request: Request) -> Response:
        return Response(body=pieces())

    async with talking(handler) as http:
        async with http.stream("GET", "/") as (_, body):
            assert b"".join([piece async for piece in body]) == b"ab"
        assert (await http.request("GET", "/")).body == b"ab"
        assert len(http._open) == 1


async def test_a_reader_that_is_slow_holds_the_server_back() -> None:
    produced = 0

    async def flood() -> AsyncGenerator[bytes, None]:
        nonlocal produced
        for _ in range(1000):
            produced += 1
            yield b"x" * 65536

    async def handler(request: Request) -> Response:
        return Response(body=flood())

    async with talking(handler) as http, http.stream("GET", "/") as (_, body):
        await asyncio.sleep(0.3)
        assert produced < 500
        size = 0
        async for piece in body:
            size += len(piece)
        assert size == 65536 * 1000


async def test_an_upgrade_gives_the_raw_stream_or_the_refusal() -> None:
    async def handler(request: Request) -> Response | Upgraded:
        if request.path.endswith("/no"):
            return Response(403, body=b"not you")
        stream = await request.upgrade({"Upgrade": "x"})
        await stream.write(b"hello ")
        while data := await stream.read():
            await stream.write(data[::-1])
        return Upgraded()

    ask = {"Connection": "Upgrade", "Upgrade": "x"}
    async with talking(handler) as http:
        answer, nothing = await http.upgrade("/no", ask)
        assert (answer.status, answer.body, nothing) == (403, b"not you", None)
        answer, stream = await http.upgrade("/yes", ask, method="POST")
        assert stream is not None
        assert (answer.status, answer.headers.get("upgrade")) == (101, "x")
        await stream.write(b"abc")
        seen = b""
        while len(seen) < 9:
            seen += await stream.read()
        assert seen == b"hello cba"
        stream.close()
        assert await stream.read() == b""
        with pytest.raises(ConnectionResetError):
            await stream.write(b"x")


async def test_a_closed_idle_connection_is_replaced_without_a_word() -> None:
    top = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"
    async with misbehaving(top + b"a", top + b"b") as http:
        assert (await http.request("GET", "/")).body == b"a"
        await http._idle[0].gone
        assert (await http.request("POST", "/")).body == b"b"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "during its response"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf", "during its response"),
        (b"220 smtp ready\r\n\r\n", "not an HTTP response"),
    ],
    ids=["nothing", "half a body", "no last chunk", "another protocol"],
)
async def test_an_answer_cut_short_is_an_error(answer: bytes, text: str) -> None:
    async with misbehaving(answer) as http:
        with pytest.raises(HttpError, match=text):
            await http.request("GET", "/")
        async with http.stream("GET", "/") if b"half" in answer else _nothing() as _:
            pass


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield


async def test_a_body_may_end_with_the_connection() -> None:
    async with misbehaving(b"HTTP/1.0 200 OK\r\n\r\nall of it") as http:
        assert (await http.request("GET", "/")).body == b"all of it"


async def test_interim_answers_are_passed_over() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    async with misbehaving(interim + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as http:
        answer = await http.request("GET", "/")
        assert (answer.status, answer.body) == (200, b"ok")
        assert "link" not in answer.headers


async def test_nobody_there_is_said_with_the_address() -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    http = HttpClient(f"http://127.0.0.1:{port}")
    with pytest.raises(HttpError, match=rf"cannot connect to http://127\.0\.0\.1:{port}"):
        await http.request("GET", "/")
    await http.close()
    with pytest.raises(HttpError, match="closed"):
        await http.request("GET", "/")


async def test_a_request_ends_at_its_timeout_and_its_connection_is_not_used_again() -> None:
    async def handler(request: Request) -> Response:
        if request.path.endswith("slow"):
            await asyncio.sleep(60)
        return Response(body=b"fresh")

    async with talking(handler) as http:
        with pytest.raises(TimeoutError):
            await http.request("GET", "/slow", timeout=0.05)
        assert (await http.request("GET", "/")).body == b"fresh"


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:80", "http://"])
async def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not an HTTP address"):
        HttpClient(url)


async def test_what_is_no_path_is_refused() -> None:
    http = HttpClient("http://127.0.0.1:1")
    for path in ("x", "/a b", "/a\r\nX: y"):
        with pytest.raises(ValueError, match=r"path|line break"):
            await http.request("GET", path)
