"""Connections: unauthenticated ones are dropped first, and no client can block the server."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import select
import socket
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.up import VOLPLANE, wait_until
from volplane.loops.health import health
from volplane.web import BadAddress, HttpServer, Request, Response, ServerLimits, serve
from volplane.web.limits import MAX_LARGE_BODIES
from volplane.web.server import SWEEP

MOST = 40  # connections of the servers here
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
KNOWN = b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\n\r\n"


# --- one server in this process


class Handler:
    """Authenticates clients with a token, and echoes the request."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.held: asyncio.Event | None = None

    async def __call__(self, request: Request) -> Response:
        self.requests.append(request)
        if request.headers.get("authorization"):
            request.user = request.headers.get("authorization")
        if request.path == "/hold":
            self.held = self.held or asyncio.Event()
            await self.held.wait()
        return Response(200, body=request.body)


@asynccontextmanager
async def serving(handler: Handler, limits: ServerLimits) -> AsyncIterator[HttpServer]:
    server = await serve(handler, limits=limits)
    server.linger = 0.2
    try:
        yield server
    finally:
        if handler.held is not None:
            handler.held.set()
        await server.close(grace=0.2)


Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def wires(server: HttpServer, count: int) -> AsyncIterator[list[Wire]]:
    made: list[Wire] = []
    try:
        made += [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(count)]
        yield made
    finally:
        for _, writer in made:
            writer.close()


async def ask(wire: Wire, message: bytes) -> int:
    """The status; 0 if the connection ends instead."""
    wire[1].write(message)
    try:
        head = await wire[0].readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0
    if length := re.search(rb"(?i)content-length: (\d+)", head):
        await wire[0].readexactly(int(length[1]))
    return int(head.split()[1])


async def is_closed(wire: Wire) -> bool:
    try:
        return await wire[0].read(1) == b""
    except ConnectionError:
        return True


async def until(test: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not test():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.005)


async def closed_among(wires: list[Wire]) -> int:
    """How many the server has closed, when it has closed one."""
    ends = [asyncio.ensure_future(is_closed(wire)) for wire in wires]
    done, others = await asyncio.wait(ends, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    for end in others:
        end.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return len(done)


async def test_connections_of_nobody_are_dropped_oldest_first() -> None:
    async with (
        serving(Handler(), ServerLimits(connections=MOST)) as server,
        wires(server, MOST // 4) as first,
    ):
        assert await ask(first[0], KNOWN) == 200
        assert await ask(first[1], GET) == 200  # a request without a token does not authenticate
        async with wires(server, MOST // 2) as later:
            assert await ask(later[-1], GET) == 200
            async with asyncio.timeout(10):
                assert await is_closed(first[1])
                assert await is_closed(first[2])
            assert await ask(first[0], KNOWN) == 200
            assert server.open_connections <= MOST // 4 + 1


async def test_a_full_server_drops_an_idle_connection_rather_than_refusing() -> None:
    async with serving(Handler(), ServerLimits(connections=MOST)) as server, wires(server, 0) as known:
        for _ in range(MOST):
            known.append(await asyncio.open_connection("127.0.0.1", server.port))
            assert await ask(known[-1], KNOWN) == 200
        async with wires(server, 1) as (new,):
            assert await ask(new, KNOWN) == 200
            assert await closed_among(known) == 1


async def test_a_user_who_holds_all_connections_makes_room_for_others() -> None:
    handler, hold = Handler(), b"GET /hold HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer greedy\r\n\r\n"
    async with serving(handler, ServerLimits(connections=MOST)) as server, wires(server, 0) as known:
        for _ in range(MOST):
            known.append(await asyncio.open_connection("127.0.0.1", server.port))
            known[-1][1].write(hold)
            await until(lambda: len(handler.requests) == len(known))
        async with wires(server, 1) as (new,):
            assert await ask(new, KNOWN) == 200
            assert await closed_among(known) == 1


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"GET / HTTP/1.1\r\nX-Slow: ", b"a"),
        (b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n", b"a"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    ],
    ids=["headers", "body", "chunks"],
)
async def test_who_sends_a_byte_at_a_time_is_cut_off(first: bytes, drop: bytes) -> None:
    async with serving(Handler(), ServerLimits()) as server, wires(server, 1) as ((reader, writer),):
        writer.write(first)
        longest = server.limits.body_start + 3 * SWEEP
        for _ in range(int(longest)):
            writer.write(drop)
            await asyncio.sleep(1)
            if reader.at_eof():
                break
        assert reader.at_eof()
        assert not server.connections


@pytest.mark.virtual
async def test_a_large_body_that_makes_progress_is_waited_for() -> None:
    piece = bytes(20_000)
    async with serving(Handler(), ServerLimits()) as server, wires(server, 1) as ((reader, writer),):
        writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (100 * len(piece)))
        for _ in range(100):  # seconds, far more than one piece of it would get
            writer.write(piece)
            await asyncio.sleep(1)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_only_some_large_bodies_of_nobody_are_gathered_at_a_time() -> None:
    most = MAX_LARGE_BODIES
    async with (
        serving(Handler(), ServerLimits(connections=500)) as server,
        wires(server, most + 8) as sending,
    ):
        for _, writer in sending:
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: 300000\r\n\r\n" + bytes(200_000))
            await writer.drain()
        async with asyncio.timeout(20):
            for wire in sending[:8]:
                assert await is_closed(wire)
            assert await ask(sending[-1], bytes(100_000)) == 200


async def test_bodies_sent_ahead_do_not_pile_up() -> None:
    """Each alone is within the limit, and all of a pipeline together would not be."""
    handler = Handler()
    hold = b"GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"
    body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n" + bytes(2_000_000)
    async with serving(handler, ServerLimits()) as server, wires(server, 1) as ((reader, writer),):
        writer.write(hold + 8 * body)
        await until(lambda: any(c._paused_reading for c in server.connections))
        (connection,) = server.connections
        assert len(connection._queue) == 1
        handler.held = handler.held or asyncio.Event()
        handler.held.set()
        async with asyncio.timeout(20):
            for _ in range(9):
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head)[1]))  # type: ignore[index]


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", 400),
        (b"Content-Length: 0\r\nContent-Length: 37\r\n\r\n", 400),
        (b"Content-Length: 0, 37\r\n\r\n", 400),
        (b"Content-Length: +0\r\n\r\n", 400),
        (b"Content-Length : 0\r\n\r\n", 400),
        (b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
        (b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
        (b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n0\n\n", 400),
        (b"X: a\n\r\n", 400),
        (b"X: a\0b\r\n\r\n", 400),
        (b"X: a\r\n" * 300 + b"\r\n", 431),
        (b"X: " + bytes([97]) * 100_000 + b"\r\n\r\n", 431),
    ],
)
async def test_a_request_that_two_servers_could_read_differently_is_refused(
    message: bytes, status: int
) -> None:
    handler = Handler()
    async with serving(handler, ServerLimits()) as server, wires(server, 1) as (wire,), asyncio.timeout(10):
        assert await ask(wire, b"POST / HTTP/1.1\r\nHost: a\r\n" + message + SMUGGLED) == status
        assert await is_closed(wire)
    assert handler.requests == []


async def test_chunks_are_refused_where_the_version_has_none() -> None:
    handler = Handler()
    async with serving(handler, ServerLimits()) as server, wires(server, 1) as (wire,), asyncio.timeout(10):
        assert await ask(wire, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n") == 400
    assert handler.requests == []


async def test_a_trailer_is_no_header() -> None:
    """A proxy in front has looked at the headers; what comes after the body it has not seen."""
    handler = Handler()
    message = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    async with serving(handler, ServerLimits()) as server, wires(server, 1) as (wire,), asyncio.timeout(10):
        assert await ask(wire, message + b"Impersonate-User: admin\r\nAuthorization: x\r\n\r\n") == 200
        assert await ask(wire, GET) == 200
    assert [sorted(request.headers.names()) for request in handler.requests] == [
        ["host", "transfer-encoding"],
        ["host"],
    ]


@pytest.mark.parametrize(
    "endless",
    [
        b"GET / HTTP/1.1\r\nX: ",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    ],
    ids=["header", "chunk extension", "trailer"],
)
async def test_a_line_without_end_is_refused_before_it_fills_the_memory(endless: bytes) -> None:
    async with serving(Handler(), ServerLimits()) as server, wires(server, 1) as (wire,):
        wire[1].write(endless)
        sent = 0
        with suppress(ConnectionError):  # a client that goes on sending may not get the response
            while sent < 20_000_000 and not wire[0].at_eof():
                wire[1].write(b"a" * 50_000)
                sent += 50_000
                await wire[1].drain()
        assert sent < 20_000_000
        await until(lambda: not server.connections)


async def test_a_body_in_tiny_chunks_arrives_whole() -> None:
    handler = Handler()
    chunks = b"".join(b"2\r\n%02d\r\n" % (number % 100) for number in range(5000))
    message = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    async with serving(handler, ServerLimits()) as server, wires(server, 1) as (wire,), asyncio.timeout(10):
        assert await ask(wire, message) == 200
    assert handler.requests[0].body == b"".join(b"%02d" % (number % 100) for number in range(5000))


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("203.0.113.9", 0, "cannot listen on 203.0.113.9 port 0"),
        ("no such host", 0, "cannot listen on no such host"),
        ("a..b", 0, "cannot listen on a..b"),
        ("127.0.0.1", 70000, "a port is a number from 0 to 65535"),
        ("127.0.0.1", -1, "a port is a number from 0 to 65535"),
    ],
)
async def test_an_address_that_is_not_here_is_named(host: str, port: int, words: str) -> None:
    with pytest.raises(BadAddress, match=re.escape(words)):
        await serve(Handler(), host=host, port=port)


@pytest.mark.parametrize("endpoint", ["8080", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:99999"])
async def test_an_endpoint_that_is_no_address_is_named(endpoint: str) -> None:
    with pytest.raises(BadAddress, match="cannot listen on"):
        async with health(endpoint, {}):
            pass


@pytest.mark.parametrize(
    "flags",
    [
        ("--host", "203.0.113.9"),
        ("--port", "70000"),
        ("--max-connections", "-1"),
        ("--max-requests-inflight", "-1"),
    ],
)
def test_what_the_server_cannot_use_is_said_in_a_sentence(flags: tuple[str, str], tmp_path: Path) -> None:
    command = [VOLPLANE, "apiserver", "--data-dir", str(tmp_path / "data"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2)
    assert flags[1] in done.stderr
    assert "Traceback" not in done.stderr


# --- a whole API server, as a process of its own


class ApiServer:
    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        command = [VOLPLANE, "apiserver", "--data-dir", str(directory), *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.port = int(re.search(r":(\d+),", line)[1])  # type: ignore[index]
        self.token = (directory / "pki" / "admin.token").read_text().strip()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def secure(self) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(self.directory / "pki" / "ca.crt"))
        return context.wrap_socket(self.connect(), server_hostname="localhost")

    def ask(self, wire: ssl.SSLSocket, path: str, *, known: bool = True) -> bytes:
        """The whole answer; the status comes first."""
        who = f"Authorization: Bearer {self.token}\r\n" if known else ""
        wire.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n{who}\r\n".encode())
        text = b""
        while b"\r\n\r\n" not in text:
            text += _receive(wire)
        head, _, body = text.partition(b"\r\n\r\n")
        length = int(re.search(rb"Content-Length: (\d+)", head)[1])  # type: ignore[index]
        while len(body) < length:
            body += _receive(wire)
        return head.split()[1] + b" " + body

    def status(self) -> bytes:
        with self.secure() as wire:
            return self.ask(wire, "/api/v1/namespaces")[:3]

    def count_dropped(self, reason: str) -> float:
        with self.secure() as wire:
            text = self.ask(wire, "/metrics").decode()
        found = re.search(rf'volplane_connections_dropped_total{{reason="{reason}"}} (\S+)', text)
        return float(found[1]) if found else 0.0

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def _receive(wire: ssl.SSLSocket) -> bytes:
    if not (data := wire.recv(65536)):
        raise ConnectionError("the server has closed the connection")
    return data


@contextmanager
def api_server(*arguments: str) -> Iterator[ApiServer]:
    with tempfile.TemporaryDirectory() as directory:
        server = ApiServer(Path(directory), *arguments)
        try:
            yield server
        finally:
            server.process.terminate()
            server.process.wait(30)
            assert server.process.stdout is not None
            server.process.stdout.close()


def count_open(sockets: list[socket.socket]) -> int:
    """Those that the server has not closed; nothing else ever comes in on them."""
    readable, _, _ = select.select(sockets, [], [], 0)
    return len(sockets) - len(readable)


def test_idle_and_unfinished_handshakes_do_not_keep_clients_out() -> None:
    with api_server("--max-connections", str(MOST)) as server, ExitStack() as stack:
        known = stack.enter_context(server.secure())
        assert server.ask(known, "/api/v1/namespaces").startswith(b"200")
        raw = [stack.enter_context(server.connect()) for _ in range(150)]
        secure = [stack.enter_context(server.secure()) for _ in range(30)]
        assert server.status() == b"200"
        wait_until("the oldest are dropped", lambda: count_open(raw) == 0)
        assert count_open(list(secure)) <= MOST // 4
        assert server.ask(known, "/api/v1/namespaces").startswith(b"200")
        assert server.count_dropped("unauthenticated") >= 150


def test_a_server_without_descriptors_goes_on_with_those_it_knows() -> None:
    with api_server() as server, ExitStack() as stack:
        known = stack.enter_context(server.secure())
        assert server.ask(known, "/api/v1/namespaces").startswith(b"200")
        _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (server.open_files() + 6, hard))
        idle = [stack.enter_context(server.connect()) for _ in range(60)]
        assert server.ask(known, "/api/v1/namespaces").startswith(b"200")
        wait_until("somebody new gets in", lambda: server.status() == b"200")
        wait_until("idle ones are dropped", lambda: count_open(idle) <= 6)
        assert server.ask(known, "/api/v1/namespaces").startswith(b"200")
        assert server.count_dropped("descriptors") >= 1
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert server.status() == b"200"


def test_a_handshake_that_does_not_end_is_given_up() -> None:
    async def scenario() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server = await serve(Handler(), ssl=context, limits=ServerLimits(handshake=0.1))
        async with asyncio.timeout(20), wires(server, 3) as silent:
            for wire in silent:
                assert await is_closed(wire)
            assert server.open_connections == 0
        await server.close(0)

    asyncio.run(scenario())
