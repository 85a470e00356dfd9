"""The views that are open, each shared by all who look at it; the first one opens the observer.

A view without viewers is kept for a moment, because a page is loaded before its updates are asked for, and
closed then. After the last view the observer is closed, and nothing is read any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from volplane.base.tasks import TaskSet
from volplane.dashboard.live_view import LiveView
from volplane.dashboard.observer import ClusterObserver
from volplane.dashboard.page_request import PageRequest
from volplane.dashboard.routes import make_view
from volplane.dashboard.source import ClusterSource

LINGER = 20.0  # seconds without viewers until a view is closed
PATIENCE = 15.0  # seconds until a view must be filled
MOST_UNUSED = 16  # views without viewers; the one that was left first is closed


class OpenViews:
    def __init__(self, source: ClusterSource) -> None:
        self._source = source
        self._observer: ClusterObserver | None = None
        self._views: dict[PageRequest, LiveView] = {}
        self._closing: dict[PageRequest, asyncio.TimerHandle] = {}  # the one that was left first stands first
        self._turn = asyncio.Lock()  # views are opened and closed one after the other
        self._tasks = TaskSet()

    async def open(self, page: PageRequest) -> LiveView:
        """The view of a page. Raises PageNotFound, and TimeoutError if the cluster does not answer."""
        async with self._turn, asyncio.timeout(PATIENCE):
            observer = self._observer or await self._open_observer()
            live = self._views.get(page)
            if live is None:
                live = await self._start(page, observer)
        self._keep_for_a_moment(page)
        return live

    async def _open_observer(self) -> ClusterObserver:
        observer = ClusterObserver(self._source)
        try:
            await observer.open()
        except BaseException:
            await observer.close()
            raise
        self._observer = observer
        return observer

    async def _start(self, page: PageRequest, observer: ClusterObserver) -> LiveView:
        live: LiveView | None = None
        try:
            live = LiveView(make_view(observer, page))
            await live.open()
        except BaseException:
            if live is not None:
                await live.close()
            await self._close_idle_observer()
            raise
        self._views[page] = live
        return live

    async def stream(self, page: PageRequest, live: LiveView, version: str) -> AsyncIterator[bytes]:
        """The updates of an open view, for one viewer."""
        try:
            async for event in live.stream(version):
                yield event
        finally:
            self._keep_for_a_moment(page)

    def _keep_for_a_moment(self, page: PageRequest) -> None:
        if (timer := self._closing.pop(page, None)) is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._closing[page] = loop.call_later(LINGER, self._close_later, page)
        unused = [each for each in self._closing if each in self._views and not self._views[each].viewers]
        for surplus in unused[:-MOST_UNUSED]:
            self._closing[surplus].cancel()
            self._close_later(surplus)

    def _close_later(self, page: PageRequest) -> None:
        self._closing.pop(page, None)
        self._tasks.start(self._close_if_unused(page), "close a view")

    async def _close_if_unused(self, page: PageRequest) -> None:
        async with self._turn:
            live = self._views.get(page)
            if live is None or live.viewers or page in self._closing:
                return
            del self._views[page]
            await live.close()
            await self._close_idle_observer()

    async def _close_idle_observer(self) -> None:
        if not self._views and self._observer is not None:
            observer, self._observer = self._observer, None
            await observer.close()

    async def close(self) -> None:
        for timer in self._closing.values():
            timer.cancel()
        self._closing.clear()
        await self._tasks.close()
        for live in self._views.values():
            await live.close()
        self._views.clear()
        await self._close_idle_observer()
