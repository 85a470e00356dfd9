"""The recorded steps of volumes: those of one claim on request, and new ones as they are recorded.

Where roles record on disk, their files are searched, and followed with inotify. Where they do not, and run in
this process, their steps are recorded in memory, from the first view that is opened to the last one that is
closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from volplane.base import clock
from volplane.base.span_search import search_directory, shift
from volplane.base.span_store import SpanReader, StoredSpan, WallClock
from volplane.base.tasks import TaskSet
from volplane.base.trace import Trace, decode_span
from volplane.explain.journey.join import to_datetime

if TYPE_CHECKING:
    from volplane.host.inotify import Inotify

log = logging.getLogger(__name__)

COALESCE = 0.03  # seconds: spans that are recorded together are handed on together
MEMORY = 16 << 20  # bytes of spans that are kept in memory
ROLE = "up"  # of spans that this process records


OnSpans = Callable[[Sequence[StoredSpan]], None]  # called with spans that have begun or ended


class SpanFeed(Protocol):
    @property
    def since(self) -> datetime | None:
        """When the recording began; None: before everything that is kept."""
        ...

    async def open(self) -> None: ...

    async def search(self, texts: Sequence[str]) -> list[StoredSpan]:
        """The spans that mention one of the texts, in the order of their start."""
        ...

    def subscribe(self, on_spans: OnSpans) -> Callable[[], None]:
        """Call `on_spans` for new spans. Returns a function that ends it."""
        ...

    async def close(self) -> None: ...


class _Subscribers:
    def __init__(self) -> None:
        self._functions: list[OnSpans] = []

    def add(self, on_spans: OnSpans) -> Callable[[], None]:
        self._functions.append(on_spans)
        return lambda: self._functions.remove(on_spans) if on_spans in self._functions else None

    def call(self, spans: Sequence[StoredSpan]) -> None:
        for function in tuple(self._functions):
            function(spans)


class NoSpans:
    """Nothing is recorded."""

    since: datetime | None = None

    async def open(self) -> None: ...

    async def search(self, texts: Sequence[str]) -> list[StoredSpan]:
        return []

    def subscribe(self, on_spans: OnSpans) -> Callable[[], None]:
        return lambda: None

    async def close(self) -> None: ...


class RecordedSpans:
    """The spans in a directory."""

    since: datetime | None = None

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reader = SpanReader(directory)
        self._subscribers = _Subscribers()
        self._tasks = TaskSet()

    async def open(self) -> None:
        from volplane.host import inotify as changes  # needs Linux, as a cluster that records does

        inotify = changes.Inotify()
        try:
            inotify.add(str(self._directory), changes.MODIFY | changes.CREATE)
            await asyncio.to_thread(self._reader.skip)
        except BaseException:
            inotify.close()
            raise
        self._tasks.start(self._follow(inotify), "follow spans")

    async def _follow(self, inotify: Inotify) -> None:
        known: set[str] = set()
        async with inotify:
            while True:
                await inotify.read()
                await asyncio.sleep(COALESCE)
                ended = self._reader.read()
                begun = [stored for stored in self._reader.in_progress() if stored.span.id not in known]
                known = {stored.span.id for stored in self._reader.in_progress()}
                if ended or begun:
                    self._subscribers.call([*begun, *ended])

    async def search(self, texts: Sequence[str]) -> list[StoredSpan]:
        return await asyncio.to_thread(search_directory, self._directory, texts)

    def subscribe(self, on_spans: OnSpans) -> Callable[[], None]:
        return self._subscribers.add(on_spans)

    async def close(self) -> None:
        await self._tasks.close()


class PackedSpan(Struct, frozen=True):
    line: bytes
    offset: int  # to add to its times


class SpansInMemory:
    """The spans of a trace of this process, recorded while this feed is open."""

    def __init__(self, trace: Trace) -> None:
        self._opened: datetime | None = None
        self._is_cut = False  # whether the oldest spans were dropped
        self._trace = trace
        self._clock = WallClock()
        self._kept: deque[PackedSpan] = deque()
        self._size = 0
        self._new: list[PackedSpan] = []
        self._subscribers = _Subscribers()
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened = clock.wall()
        self._trace.sinks.append(self._record)

    @property
    def since(self) -> datetime | None:
        if self._is_cut and self._kept:
            return to_datetime(_unpack(self._kept[0]).span.start)
        return self._opened

    def _record(self, line: bytes) -> None:
        """A sink of the trace; threads call it, too."""
        self._loop.call_soon_threadsafe(self._keep, PackedSpan(line, self._offset()))

    def _offset(self) -> int:
        self._clock.has_stepped()
        return self._clock.offset

    def _keep(self, packed: PackedSpan) -> None:
        self._kept.append(packed)
        self._new.append(packed)
        self._size += len(packed.line)
        while self._size > MEMORY:
            self._size -= len(self._kept.popleft().line)
            self._is_cut = True
        if self._timer is None:
            self._timer = self._loop.call_later(COALESCE, self._hand_on)

    def _hand_on(self) -> None:
        self._timer = None
        new, self._new = self._new, []
        self._subscribers.call([_unpack(packed) for packed in new])

    async def search(self, texts: Sequence[str]) -> list[StoredSpan]:
        wanted = [text.encode() for text in texts]
        found = [_unpack(p) for p in tuple(self._kept) if any(text in p.line for text in wanted)]
        ended = {stored.span.id for stored in found if stored.span.end}
        kept = (stored for stored in found if stored.span.end or stored.span.id not in ended)
        return sorted(kept, key=lambda stored: stored.span.start)

    def subscribe(self, on_spans: OnSpans) -> Callable[[], None]:
        return self._subscribers.add(on_spans)

    async def close(self) -> None:
        if self._record in self._trace.sinks:
            self._trace.sinks.remove(self._record)
        if self._timer is not None:
            self._timer.cancel()
        self._kept.clear()


def _unpack(packed: PackedSpan) -> StoredSpan:
    return StoredSpan(ROLE, shift(decode_span(packed.line), packed.offset))


def open_feed(spans: Path | None, trace: Trace | None) -> SpanFeed:
    """The feed of a cluster: on disk if it is recorded there, else in memory if its roles run here."""
    if trace is not None:
        return SpansInMemory(trace)
    if spans is not None and spans.is_dir():
        return RecordedSpans(spans)
    return NoSpans()
