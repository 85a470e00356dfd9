"""Keep in-memory indexes up to date with the store: list first, then apply every change in order.

Each kind has one task that watches the store. A watch that overran or was compacted lists again and drops the
objects that are gone. Objects come from the kind's shared watch cache, so an object that this process has
just written is not decoded again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Protocol

from volplane.api.meta import Resource
from volplane.apiserver.backend import Backend
from volplane.apiserver.registry import ServedResource
from volplane.base.tasks import TaskSet
from volplane.store import StoreClosed, StoreError, StoreEvent

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0  # before retrying a store that failed
WAIT_TIMEOUT = 5.0  # seconds a writer waits until the indexes have seen its write


class StoreIndex(Protocol):
    """An index of objects. Keys are `namespace/name`, or the name of a cluster-scoped object."""

    def put(self, key: str, obj: Any) -> None: ...

    def drop(self, type: type[Any], key: str) -> None: ...


class StoreIndexer:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._indexes: dict[type[Resource], list[StoreIndex]] = {}
        self._kinds: dict[type[Resource], _KindIndexer] = {}
        self._tasks = TaskSet()

    def add_index(self, index: StoreIndex, *types: type[Resource]) -> None:
        for type in types:
            self._indexes.setdefault(type, []).append(index)

    async def start(self) -> None:
        """Start watching. All indexes are complete when this returns."""
        for type, indexes in self._indexes.items():
            kind = self._kinds[type] = _KindIndexer(self._backend, type, indexes)
            revision = await kind.list()
            self._tasks.start(kind.follow(revision), f"index of {type.__name__}")

    async def wait_for_revision(self, type: type[Resource], revision: int) -> None:
        """Wait until the indexes have seen this revision of a kind, or the timeout has passed."""
        kind = self._kinds.get(type)
        if kind is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_TIMEOUT):
                    await kind.wait_for_revision(revision)

    async def close(self) -> None:
        await self._tasks.close()
        self._kinds.clear()


class _KindIndexer:
    def __init__(self, backend: Backend, type: type[Resource], indexes: list[StoreIndex]) -> None:
        self._store = backend.store
        self._type = type
        self._entry: ServedResource = backend.registry.of(type)
        self._indexes = indexes
        self._keys: set[str] = set()
        self._revision = 0
        self._moved = asyncio.Event()

    async def list(self) -> int:
        listing = await self._store.list(self._entry.prefix)
        keys = {self._key(record.key) for record in listing.records}
        for gone in self._keys - keys:
            self._drop(gone)
        for record in listing.records:
            self._put(self._key(record.key), self._entry.watch_cache.object(record))
        self._reach(listing.revision)
        return listing.revision

    async def follow(self, revision: int) -> None:
        """Run until cancelled, or until the store is closed."""
        while True:
            try:
                await self._watch(revision)
            except StoreClosed:
                return
            except StoreError as error:
                log.warning("index of %s: watch failed, listing again: %s", self._entry.resource, error)
            try:
                revision = await self.list()
            except StoreClosed:
                return
            except StoreError:  # etcd may be unreachable for a while
                await asyncio.sleep(RETRY_SECONDS)

    async def _watch(self, revision: int) -> None:
        async with self._store.watch(self._entry.prefix, revision=revision) as watch:
            async for batch in watch:
                for event in batch:
                    self._apply_event(event)
                self._reach(batch[-1].revision)

    def _reach(self, revision: int) -> None:
        self._revision = max(self._revision, revision)
        self._moved.set()
        self._moved = asyncio.Event()

    async def wait_for_revision(self, revision: int) -> None:
        while self._revision < revision:
            await self._moved.wait()

    def _apply_event(self, event: StoreEvent) -> None:
        key = self._key(event.key)
        if event.record is None:
            self._drop(key)
        else:
            self._put(key, self._entry.watch_cache.object(event.record))

    def _put(self, key: str, obj: Any) -> None:
        self._keys.add(key)
        for index in self._indexes:
            index.put(key, obj)

    def _drop(self, key: str) -> None:
        self._keys.discard(key)
        for index in self._indexes:
            index.drop(self._type, key)

    def _key(self, key: str) -> str:
        return key.removeprefix(self._entry.prefix)
