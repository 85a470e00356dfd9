"""The real server on the memory store over HTTPS, and a plain HTTP client for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from volplane import apiserver, web
from volplane.apiserver.auth.certificates import CertificateFiles
from volplane.store.memory import MemoryStore
from volplane.web import tls

PATIENCE = 60.0  # seconds; a machine may be busy


class Answer:
    def __init__(self, status: int, headers: web.Headers, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def warnings(self) -> list[str]:
        return self.headers.all("warning")


class Api:
    """Requests, and watches as lists of events."""

    def __init__(self, server: Any, store: MemoryStore, http: web.HttpClient) -> None:
        self.server, self.store, self.http = server, store, http

    async def call(
        self, method: str, path: str, body: Any = None, *, type: str = "application/json", **headers: str
    ) -> Answer:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if data:
            sent["content-type"] = type
        got = await self.http.request(method, path, headers=sent, body=data, timeout=PATIENCE)
        return Answer(got.status, got.headers, got.body)

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.call("GET", path, **headers)

    async def post(self, path: str, body: Any, **more: str) -> Answer:
        return await self.call("POST", path, body, **more)

    async def put(self, path: str, body: Any) -> Answer:
        return await self.call("PUT", path, body)

    async def merge(self, path: str, patch: Any) -> Answer:
        return await self.call("PATCH", path, patch, type="application/merge-patch+json")

    async def delete(self, path: str, options: Any = None) -> Answer:
        return await self.call("DELETE", path, options)

    @asynccontextmanager
    async def watch(self, path: str, **headers: str) -> AsyncIterator[WatchStream]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        joint = "&" if "?" in path else "?"
        async with self.http.stream("GET", f"{path}{joint}watch=true", headers=sent) as (answer, chunks):
            assert answer.status == 200
            yield WatchStream(chunks)


class WatchStream:
    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while b"\n" not in self._rest:
                self._rest += await anext(self._chunks)
        line, self._rest = self._rest.split(b"\n", 1)
        event: dict[str, Any] = json.loads(line)
        return event

    async def take(self, count: int) -> list[dict[str, Any]]:
        return [await self.next() for _ in range(count)]

    async def has_ended(self) -> bool:
        async with asyncio.timeout(PATIENCE):
            return self._rest == b"" and await anext(self._chunks, None) is None


StartServer = Callable[[], Any]


@pytest.fixture
def served(tmp_path: Path) -> StartServer:
    """`async with served() as api:` - a server for the test, and an admin client."""

    @asynccontextmanager
    async def start(login: str = "certificate", store: MemoryStore | None = None) -> AsyncIterator[Api]:
        store = store or MemoryStore()
        server = await apiserver.run(apiserver.ApiServerOptions(data_dir=str(tmp_path)), store)
        http = client_of(server, login)
        try:
            yield Api(server, store, http)
        finally:
            await http.close()
            await server.close(0)
            await store.close()

    return start


def client_of(
    server: Any, login: str = "certificate", pair: CertificateFiles | None = None
) -> web.HttpClient:
    """Return a client that authenticates by certificate, by token, or not at all."""
    ca = str(server.authority.pair.cert_path)
    if login == "certificate":
        admin = ("client-kubernetes-admin", "kubernetes-admin", ("system:masters",))
        pair = pair or server.authority.client(*admin)
        return web.HttpClient(server.url, ssl=tls.client_context(ca, str(pair.cert_path), str(pair.key_path)))
    headers = {"authorization": f"Bearer {login}"} if login else {}
    return web.HttpClient(server.url, ssl=tls.client_context(ca), headers=headers)
