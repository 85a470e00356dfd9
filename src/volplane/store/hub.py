"""Publish every committed batch to the watchers whose prefix it matches.

A watcher that does not keep up is dropped with `WatchOverrun`, so that it holds back neither memory nor
writers. A watcher registers before it reads its history, so that no event is missed; the history goes before
the events that were queued meanwhile. A reader can take a batch when it is published, without waking a task;
only batches that it refuses, because it is behind, are queued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TypeAlias

from volplane.store.contract import StoreClosed, StoreError, StoreEvent, StoreEvents, WatchOverrun

BACKLOG = 16_384  # events a watcher may lag behind
BACKLOG_BYTES = 64 << 20  # and the size of their objects, which stay in memory meanwhile

# (prefix, after this revision, up to this one). Raises RevisionCompacted.
ReadHistory: TypeAlias = Callable[[str, int, int], Awaitable[StoreEvents]]


class Watcher:
    """Implements `StoreWatch`."""

    def __init__(self, hub: Hub, prefix: str, revision: int, past: ReadHistory) -> None:
        self.prefix = prefix
        self._hub = hub
        self._after = revision
        self._past = past
        self._queue: StoreEvents = []
        self._size = 0  # bytes of the queued objects
        self._error: StoreError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._take: Callable[[StoreEvents], bool] | None = None
        self._nudged = False

    @property
    def progress(self) -> int:
        return self._queue[0].revision - 1 if self._queue else max(self._hub.revision, self._after)

    async def __aenter__(self) -> Watcher:
        self._hub.join(self)
        try:
            past = await self._past(self.prefix, self._after, self._hub.revision)
        except BaseException:
            self._hub.leave(self)
            raise
        if self._error is None:  # not overrun while the history was read
            self._queue[:0] = past
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._hub.leave(self)

    def __aiter__(self) -> Watcher:
        return self

    async def __anext__(self) -> StoreEvents:
        while not self._queue and not self._nudged:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._nudged = False
        batch, self._queue, self._size = self._queue, [], 0
        return batch

    def listen(self, take: Callable[[StoreEvents], bool]) -> None:
        self._take = take

    def nudge(self) -> None:
        self._nudged = True
        self._wake()

    def offer(self, batch: StoreEvents) -> None:
        if batch[0].revision <= self._after:  # the watch started at a future revision
            batch = [event for event in batch if event.revision > self._after]
        if self._take is not None and not self._queue and batch and self._take(batch):
            return
        self._size += sum(len(event.record.value) for event in batch if event.record is not None)
        if len(self._queue) + len(batch) > self._hub.backlog or self._size > BACKLOG_BYTES:
            behind = f"{len(self._queue) + len(batch)} events or {self._size} bytes"
            self._queue, self._size = [], 0
            self.fail(WatchOverrun(f"the watcher is {behind} behind, more than allowed"))
            return
        self._queue += batch
        self._wake()

    def fail(self, error: StoreError) -> None:
        self._error = error
        self._hub.leave(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Hub:
    def __init__(self, *, revision: int = 0, backlog: int = BACKLOG) -> None:
        self.revision = revision  # the newest revision given to the watchers
        self.backlog = backlog
        # Watchers by prefix: a batch is filtered once for all watchers of a kind. And the prefixes by their
        # first two parts (`/registry/pods/`): a batch is compared only with those it can match.
        self._groups: dict[str, set[Watcher]] = {}
        self._heads: dict[str, dict[str, None]] = {}
        self._closed = False

    def watch(self, prefix: str, revision: int, past: ReadHistory) -> Watcher:
        return Watcher(self, prefix, revision, past)

    def join(self, watcher: Watcher) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")
        self._groups.setdefault(watcher.prefix, set()).add(watcher)
        self._heads.setdefault(_head(watcher.prefix), {})[watcher.prefix] = None

    def leave(self, watcher: Watcher) -> None:
        group = self._groups.get(watcher.prefix)
        if group is not None:
            group.discard(watcher)
            if not group:
                del self._groups[watcher.prefix]
                del self._heads[_head(watcher.prefix)][watcher.prefix]

    def publish(self, events: Sequence[StoreEvent]) -> None:
        pairs = [(event.key, event) for event in events]
        by_head: dict[str, list[tuple[str, StoreEvent]]] = {"": pairs} if self._heads.get("") else {}
        for pair in pairs:
            head = _head(pair[0])
            if head and head in self._heads:
                by_head.setdefault(head, []).append(pair)
        for head, pairs in by_head.items():
            for prefix in tuple(self._heads[head]):
                batch = [event for key, event in pairs if key.startswith(prefix)]
                for watcher in tuple(self._groups.get(prefix, ())) if batch else ():
                    watcher.offer(batch)
        self.revision = events[-1].revision

    def advance(self, revision: int) -> None:
        """Note that there are no events up to this revision."""
        self.revision = max(self.revision, revision)

    def fail(self, error: StoreError) -> None:
        """Every watcher gets the events that are queued for it, then this error."""
        for group in list(self._groups.values()):
            for watcher in tuple(group):
                watcher.fail(error)

    def close(self) -> None:
        self._closed = True
        self.fail(StoreClosed("the store is closed"))


def _head(key: str) -> str:
    """The key up to its third slash; empty if it has none."""
    second = key.find("/", 1)
    return key[: key.find("/", second + 1) + 1] if second > 0 else ""
