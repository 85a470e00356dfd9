"""The store in memory: for tests and simulations, and as a baseline for benchmarks."""

from __future__ import annotations

import asyncio

from volplane.store.contract import (
    FutureRevision,
    KeyExists,
    KeyMissing,
    Listing,
    RevisionCompacted,
    StaleRevision,
    StoreClosed,
    StoreEvent,
    StoreEvents,
    StoreRecord,
    StoreRecords,
)
from volplane.store.hub import BACKLOG, Hub, Watcher
from volplane.store.revision_waiters import RevisionWaiters
from volplane.store.state import StoreState


class MemoryStore:
    def __init__(self, *, backlog: int = BACKLOG) -> None:
        self._state = StoreState()
        self._hub = Hub(backlog=backlog)
        self._waiters = RevisionWaiters()
        self._closed = False

    @property
    def revision(self) -> int:
        return self._state.revision

    @property
    def floor(self) -> int:
        return self._state.floor

    def peek(self, key: str) -> StoreRecord | None:
        return self._state.peek(key)

    def scan(self, prefix: str) -> StoreRecords:
        return self._state.scan(prefix)

    async def get(self, key: str, *, revision: int = 0) -> StoreRecord | None:
        self._check(revision)
        return self._state.at(key, revision) if revision else self._state.peek(key)

    async def list(self, prefix: str, *, after: str = "", limit: int = 0, revision: int = 0) -> Listing:
        self._check(revision)
        return self._state.page(prefix, after=after, limit=limit, revision=revision or self.revision)

    async def create(self, key: str, value: bytes) -> int:
        self._check()
        if self._state.peek(key) is not None:
            raise KeyExists(key)
        return self._publish(self._state.put(key, value)).revision

    async def update(self, key: str, value: bytes, *, revision: int) -> int:
        self._check()
        self._check_precondition(key, revision or -1)  # an update always names a revision
        return self._publish(self._state.put(key, value)).revision

    async def delete(self, key: str, *, revision: int = 0) -> StoreEvent:
        self._check()
        self._check_precondition(key, revision)
        return self._publish(self._state.drop(key))

    def watch(self, prefix: str, *, revision: int) -> Watcher:
        return self._hub.watch(prefix, revision, self._past)

    async def wait_for(self, revision: int) -> None:
        await self._waiters.wait(revision, self.revision)

    async def check(self) -> None:
        self._check()

    async def compact(self, revision: int) -> None:
        self._check()
        if revision > self.revision:
            raise FutureRevision(self.revision)
        if revision > self.floor:
            self._state.compact(revision)

    async def close(self) -> None:
        self._closed = True
        self._hub.close()
        self._waiters.close()
        await asyncio.sleep(0)  # let the watchers see the end before the store is gone

    def _check(self, revision: int = 0) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")
        if revision > self.revision:
            raise FutureRevision(self.revision)
        if 0 < revision < self.floor:
            raise RevisionCompacted(self.floor)

    def _check_precondition(self, key: str, revision: int) -> None:
        current = self._state.peek(key)
        if current is None:
            raise KeyMissing(key)
        if revision and current.revision != revision:
            raise StaleRevision(current)

    def _publish(self, event: StoreEvent) -> StoreEvent:
        self._hub.publish([event])
        self._waiters.wake(event.revision)
        return event

    async def _past(self, prefix: str, after: int, upto: int) -> StoreEvents:
        if after < self.floor:
            raise RevisionCompacted(self.floor)
        return self._state.since(prefix, after)
