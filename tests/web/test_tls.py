"""TLS: server and client certificates."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from volplane.web import HttpClient, HttpError, Request, Response, Upgraded, serve, tls
from volplane.web import connection as server_side
from volplane.web.client import connection as client_side


class Authority(Protocol):
    pem: str

    def issue(self, name: str, organizations: tuple[str, ...] = ()) -> tuple[str, str]: ...


async def whoami(request: Request) -> Response | Upgraded:
    if request.path == "/raw":
        stream = await request.upgrade({"Upgrade": "x"})
        await stream.write(await stream.read())
        return Upgraded()
    assert request.secure
    peer = request.peer
    return Response(body=f"{peer.common_name} {','.join(peer.organizations)}".encode() if peer else b"nobody")


@asynccontextmanager
async def serving(authority: Authority) -> AsyncIterator[int]:
    server = await serve(whoami, ssl=tls.server_context(*authority.issue("server"), authority.pem))
    try:
        yield server.port
    finally:
        await server.close(0.2)


async def ask(
    port: int, *, ca: str | None, pair: tuple[str, str] | None = None, verify: bool = True
) -> bytes:
    context = tls.client_context(ca, *(pair or (None, None)), verify=verify)
    http = HttpClient(f"https://127.0.0.1:{port}", ssl=context)
    try:
        async with asyncio.timeout(10):
            return (await http.request("GET", "/")).body
    finally:
        await http.close()


async def test_a_client_certificate_names_its_user_and_groups(authority: Authority) -> None:
    async with serving(authority) as port:
        alice = authority.issue("alice", ("dev", "ops"))
        assert await ask(port, ca=authority.pem, pair=alice) == b"alice dev,ops"


async def test_a_client_without_a_certificate_is_nobody(authority: Authority) -> None:
    async with serving(authority) as port:
        assert await ask(port, ca=authority.pem) == b"nobody"


async def test_a_certificate_of_another_authority_ends_the_handshake(authority: Authority) -> None:
    async with serving(authority) as port:
        mallory = type(authority)().issue("system:masters")
        with pytest.raises(OSError):  # noqa: PT011  # worded by OpenSSL
            await ask(port, ca=authority.pem, pair=mallory)


async def test_a_server_of_another_authority_is_not_trusted(authority: Authority) -> None:
    async with serving(authority) as port:
        with pytest.raises(HttpError, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(port, ca=type(authority)().pem)
        with pytest.raises(HttpError, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(port, ca=None)
        assert await ask(port, ca=None, verify=False) == b"nobody"


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> dict[str, Path]:
    cert, key = authority.issue("bob")
    paths = {"ca": tmp_path / "ca.crt", "cert": tmp_path / "bob.crt", "key": tmp_path / "bob.key"}
    for path, text in zip(paths.values(), (authority.pem, cert, key), strict=True):
        path.write_text(text)
    return paths


async def test_certificates_may_come_as_files(files: dict[str, Path], authority: Authority) -> None:
    async with serving(authority) as port:
        context = tls.client_context(files["ca"], str(files["cert"]), files["key"])
        http = HttpClient(f"https://localhost:{port}", ssl=context)
        assert (await http.request("GET", "/")).body == b"bob "
        await http.close()


async def test_upgrades_and_streams_go_through_tls(authority: Authority) -> None:
    async with serving(authority) as port:
        http = HttpClient(f"https://127.0.0.1:{port}", ssl=tls.client_context(authority.pem))
        _, stream = await http.upgrade("/raw", {"Connection": "Upgrade", "Upgrade": "x"})
        assert stream is not None
        await stream.write(b"ping")
        assert await stream.read() == b"ping"
        assert await stream.read() == b""
        await http.close()


async def test_a_watch_over_tls_ends_cleanly_when_the_server_closes(authority: Authority) -> None:
    async def endless() -> AsyncGenerator[bytes, None]:
        yield b"x"
        await asyncio.Event().wait()

    async def handler(request: Request) -> Response:
        return Response(body=endless())

    server = await serve(handler, ssl=tls.server_context(*authority.issue("server")))
    http = HttpClient(f"https://127.0.0.1:{server.port}", ssl=tls.client_context(authority.pem))
    async with asyncio.timeout(10), http.stream("GET", "/") as (_, body):
        assert await anext(body) == b"x"
        closing = asyncio.ensure_future(server.close(0.2))
        assert [piece async for piece in body] == []
    await http.close()
    await closing


async def test_a_connection_that_is_over_is_let_go_at_once(authority: Authority) -> None:
    """TLS state is large, so a connection must be freed without a collection of cycles."""

    def living() -> int:
        kinds = (server_side.ServerConnection, client_side.ClientConnection)
        return sum(isinstance(thing, kinds) for thing in gc.get_objects())

    async with serving(authority) as port:
        await ask(port, ca=authority.pem)  # what is made only once is there
        gc.collect()
        gc.disable()
        try:
            before = living()
            for _ in range(5):
                await ask(port, ca=authority.pem)
            async with asyncio.timeout(60):
                while living() > before:  # noqa: ASYNC110 (there is no event for it)
                    await asyncio.sleep(0.05)
        finally:
            gc.enable()
