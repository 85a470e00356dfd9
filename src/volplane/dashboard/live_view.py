"""A view that is open in a browser: rendered again when something that it shows has changed.

All who have the same view open share it. A browser gets the fragments that have changed since the version
that it has; one that reads slowly gets fewer, never more. Rendering takes at most a small part of the time,
however often something changes.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from datetime import datetime

import msgspec
from msgspec import Struct

from volplane.base import clock
from volplane.base.markup import Markup
from volplane.base.tasks import cancel_and_wait
from volplane.dashboard.fragments import ROOT, Fragments, assemble
from volplane.dashboard.page_request import PageNotFound

log = logging.getLogger(__name__)

COALESCE = 0.02  # seconds: changes that come together are rendered together
SHORTEST_PAUSE = 0.1  # seconds between two renderings
LONGEST_PAUSE = 0.8
AFTER = 0.3  # seconds after a time that a view waits for
SHARE = 10  # within these bounds, rendering takes at most this part of the time


class Download(Struct, frozen=True):
    """A file that a view can be saved as."""

    name: str
    type: str
    content: bytes


class View:
    """One page's content."""

    title = ""

    def __init__(self) -> None:
        self.following = ExitStack()  # what ends when the view is closed
        self.next_change: datetime | None = None  # when it must be rendered although nothing has changed

    async def open(self, wake: Callable[[], None]) -> None:
        """Begin to follow what the view shows; call `wake` when it has changed. Raises PageNotFound."""
        raise NotImplementedError

    async def render(self) -> Fragments:
        raise NotImplementedError

    async def download(self, kind: str) -> Download:
        """Raises PageNotFound."""
        raise PageNotFound(f"this page cannot be saved as {kind}")

    def close(self) -> None:
        self.following.close()


class LiveView:
    """A view with its newest fragments, and the version in which each of them has changed last."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.viewers = 0
        self._epoch = secrets.token_hex(4)  # versions of another life of the view mean nothing here
        self._number = 0
        self._fragments: dict[str, Markup] = {}
        self._changed_in: dict[str, int] = {}
        self._dirty = asyncio.Event()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    # --- rendering

    async def open(self) -> None:
        await self.view.open(self._dirty.set)
        await self._render()
        self._task = asyncio.create_task(self._keep_rendered(), name=f"live view {self.view.title}")

    async def _keep_rendered(self) -> None:
        while True:
            await self._dirty.wait()
            await asyncio.sleep(COALESCE)
            self._dirty.clear()
            began = time.thread_time()
            try:
                await self._render()
            except Exception:  # a view that cannot be rendered now is rendered after the next change
                log.exception("cannot render %s", self.view.title)
            spent = time.thread_time() - began
            await asyncio.sleep(min(max(SHORTEST_PAUSE, SHARE * spent), LONGEST_PAUSE))

    async def _render(self) -> None:
        fragments = await self.view.render()
        self._wake_later(self.view.next_change)
        changed = [id for id, html in fragments.items() if self._fragments.get(id) != html]
        if not changed and fragments.keys() == self._fragments.keys():
            return
        self._number += 1
        self._fragments = dict(fragments)
        self._changed_in = {id: self._changed_in.get(id, 0) for id in fragments}
        self._changed_in |= dict.fromkeys(changed, self._number)
        self._changed.set()
        self._changed = asyncio.Event()

    def _wake_later(self, at: datetime | None) -> None:
        """A wait may end at a time, without any change of an object."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            seconds = max((at - clock.wall()).total_seconds(), 0.0) + AFTER
            self._timer = asyncio.get_running_loop().call_later(seconds, self._dirty.set)

    # --- what a browser gets

    @property
    def version(self) -> str:
        return f"{self._epoch}-{self._number}"

    @property
    def html(self) -> Markup:
        """The whole view."""
        return assemble(self._fragments, ROOT)

    async def stream(self, version: str) -> AsyncIterator[bytes]:
        """Server-sent events for a browser that has this version of the view."""
        self.viewers += 1
        try:
            yield b"retry: 1000\n\n"
            number = self._parse(version)
            while True:
                if number != self._number:
                    event = self._event(number)
                    number = self._number
                    yield event
                else:
                    await self._changed.wait()
        finally:
            self.viewers -= 1

    def _parse(self, version: str) -> int:
        """The number of a version; 0 if it is not one of this life: then everything is sent."""
        epoch, _, number = version.partition("-")
        return int(number) if epoch == self._epoch and number.isdecimal() else 0

    def _event(self, since: int) -> bytes:
        changed = {id: self._fragments[id] for id, number in self._changed_in.items() if number > since}
        data = msgspec.json.encode(changed, enc_hook=str)  # without line breaks
        return b"id: %b\nevent: fragments\ndata: %b\n\n" % (self.version.encode(), data)

    async def close(self) -> None:
        self._wake_later(None)
        await cancel_and_wait(self._task)
        self.view.close()
