"""A live page over an API server in this process, and somebody who has opened it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from volplane import web
from volplane.apiserver.auth.well_known_users import ADMIN
from volplane.apiserver.in_process_server import InProcessServer
from volplane.apiserver.strategy import RequestUser
from volplane.client.client import Client
from volplane.dashboard.entrance import LivePage
from volplane.dashboard.source import ClusterSource
from volplane.store.memory import MemoryStore


class OpenPage:
    """A session; `get` asks for paths below its prefix."""

    def __init__(self, page: LivePage, http: web.HttpClient) -> None:
        self.page, self.http = page, http
        self.prefix = self.cookie = ""

    async def log_in(self) -> None:
        path = self.page.issue_link().partition(f":{self.page.port}")[2]
        answer = await self.http.request("GET", path)
        assert answer.status == 303, answer.body
        self.cookie = answer.headers.get("Set-Cookie").partition(";")[0]
        self.prefix = answer.headers.get("Location").removesuffix("/cluster")

    async def ask(self, path: str, **headers: str) -> web.ClientResponse:
        sent = {"Cookie": self.cookie, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return await self.http.request("GET", self.prefix + path, headers=sent)

    async def get(self, path: str) -> str:
        answer = await self.ask(path)
        assert answer.status == 200, (answer.status, answer.body)
        return answer.body.decode()

    @asynccontextmanager
    async def events(self, path: str, since: str = "") -> AsyncIterator[AsyncIterator[dict[str, str]]]:
        """What is sent to the page: the fragments of each event."""
        headers = {"Cookie": self.cookie, "Accept": "text/event-stream"}
        separator = "&" if "?" in path else "?"
        address = f"{self.prefix}{path}{separator}since={since}"
        async with self.http.stream("GET", address, headers=headers) as (answer, pieces):
            assert answer.headers.get("Content-Type") == "text/event-stream", answer
            yield _read_events(pieces)


async def _read_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[dict[str, str]]:
    rest = b""
    async for piece in pieces:
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            fields: dict[str, Any] = dict(line.partition(": ")[::2] for line in event.decode().splitlines())
            if fields.get("event") == "fragments":
                yield json.loads(fields["data"])


def version_of(html: str) -> str:
    return html.partition('data-version="')[2].partition('"')[0]


@asynccontextmanager
async def serve_page(
    user: RequestUser = ADMIN, **source: Any
) -> AsyncIterator[tuple[OpenPage, Client, InProcessServer]]:
    """The page for one user, without a session yet, and the administrator's client."""
    store = MemoryStore()
    core = await InProcessServer(store).start()
    client = Client(core.in_process_transport(), component="test")
    page = await LivePage.start(ClusterSource(core.in_process_transport(user), "test", **source))
    http = web.HttpClient(f"http://127.0.0.1:{page.port}")
    try:
        yield OpenPage(page, http), client, core
    finally:
        await http.close()
        await page.close()
        await client.close()
        await core.close()
        await store.close()
