"""Answers the requests of sessions: pages, their updates, and the files they need."""

from __future__ import annotations

import re

from volplane.dashboard.assets import load_assets
from volplane.dashboard.gate import SECURITY_HEADERS
from volplane.dashboard.layout import render_message, render_page
from volplane.dashboard.live_view import Download
from volplane.dashboard.open_views import OpenViews
from volplane.dashboard.page_request import PageNotFound, PageRequest
from volplane.dashboard.source import ClusterSource
from volplane.web import Request, Response
from volplane.web.message import header_pairs

NO_ANSWER = "The API server does not answer. Load the page again when it does."
UNREAD = 30.0  # seconds a browser may leave updates unread
EVENT_STREAM = "text/event-stream"
NO_STORE = ("Cache-Control", "no-store")
HTML = ("Content-Type", "text/html; charset=utf-8")
SAVE = "save"  # the parameter of a download
SINCE = "since"  # the parameter with the version that the browser has


class PageServer:
    def __init__(self, source: ClusterSource, prefix: str) -> None:
        self._source, self._prefix = source, prefix
        self._assets = load_assets()
        self._views = OpenViews(source)

    async def answer(self, request: Request, path: str) -> Response:
        response = self._assets.answer(path) or await self._answer_page(request, path)
        response.headers = [*header_pairs(response.headers), *SECURITY_HEADERS]
        return response

    async def _answer_page(self, request: Request, path: str) -> Response:
        names = (name for name in sorted(request.query.names()) if name not in (SINCE, SAVE))
        page = PageRequest(path, tuple((name, request.query.get(name)) for name in names), self._prefix)
        try:
            live = await self._views.open(page)
            if kind := request.query.get(SAVE):
                return _save(await live.view.download(kind))
        except PageNotFound as missing:
            return self._render(404, page, "Not found", render_message("Not found", str(missing)))
        except TimeoutError:
            return self._render(503, page, "No answer", render_message("No answer", NO_ANSWER))
        if EVENT_STREAM in request.headers.get("Accept"):
            version = request.headers.get("Last-Event-ID") or request.query.get(SINCE)
            events = self._views.stream(page, live, version)
            return Response(200, [("Content-Type", EVENT_STREAM), NO_STORE], events, patience=UNREAD)
        return self._render(200, page, live.view.title, live.html, live.version)

    def _render(
        self, status: int, page: PageRequest, title: str, content: str, version: str = ""
    ) -> Response:
        html = render_page(
            title=title,
            cluster=self._source.name,
            path=page.path,
            prefix=self._prefix,
            assets=self._assets,
            content=content,
            version=version,
        )
        return Response(status, [HTML, NO_STORE], html)

    async def close(self) -> None:
        await self._views.close()


def _save(file: Download) -> Response:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", file.name)
    headers = [
        ("Content-Type", file.type),
        ("Content-Disposition", f'attachment; filename="{name}"'),
        NO_STORE,
    ]
    return Response(200, headers, file.content)
