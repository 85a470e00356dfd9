"""The listener of a live page: the only part that exists while no page is open.

What renders pages is imported for the first request of a session.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Self

from volplane import web
from volplane.dashboard.gate import SECURITY_HEADERS, STATUS, TOKEN, Admitted, Gate, Refusal
from volplane.web import HttpServer, Request, Response, ServerLimits

if TYPE_CHECKING:
    from volplane.dashboard.server import PageServer
    from volplane.dashboard.source import ClusterSource

LOOPBACK = "127.0.0.1"
LIMITS = ServerLimits(connections=256, body=1)
GRACE = 1.0  # seconds for requests in progress, at the end


class LivePage:
    """Created by `await LivePage.start(source)`."""

    _server: HttpServer

    def __init__(self, source: ClusterSource) -> None:
        self._source = source
        self._gate = Gate()
        self._loading = asyncio.Lock()
        self._pages: PageServer | None = None

    @classmethod
    async def start(cls, source: ClusterSource, *, port: int = 0) -> Self:
        """Listen; port 0 picks a free one. Raises PortInUse, BadAddress."""
        page = cls(source)
        page._server = await web.serve(page._handle, host=LOOPBACK, port=port, limits=LIMITS)
        page._gate.port = page._server.port
        return page

    async def close(self) -> None:
        await self._server.close(GRACE)
        if self._pages is not None:
            await self._pages.close()

    @property
    def port(self) -> int:
        return self._gate.port

    def issue_link(self) -> str:
        """An address that opens the page once."""
        return self._gate.issue_link()

    async def _handle(self, request: Request) -> Response:
        if (refusal := self._gate.check(request)) is not None:
            return _refuse(refusal)
        if request.path == "/" and TOKEN in request.query and request.method == "GET":
            answer = self._gate.exchange(request.query.get(TOKEN))
            return _refuse(answer) if isinstance(answer, Refusal) else answer
        admitted = self._gate.admit(request)
        if not isinstance(admitted, Admitted):
            return _refuse(admitted)
        request.user = "viewer"  # such connections are not the first to be dropped
        pages = await self._load()
        return await pages.answer(request, admitted.path)

    async def _load(self) -> PageServer:
        async with self._loading:
            if self._pages is None:
                # In a thread: it takes a few hundred milliseconds the first time.
                module = await asyncio.to_thread(importlib.import_module, "volplane.dashboard.server")
                self._pages = module.PageServer(self._source, self._gate.prefix)
            return self._pages


def _refuse(refusal: Refusal) -> Response:
    headers = [
        ("Content-Type", "text/plain; charset=utf-8"),
        ("Cache-Control", "no-store"),
        *SECURITY_HEADERS,
    ]
    if refusal is Refusal.METHOD:
        headers.append(("Allow", "GET, HEAD"))
    return Response(STATUS[refusal], headers, f"{refusal}\n".encode())
