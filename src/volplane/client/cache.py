"""A kind as the API server shows it, kept up to date in memory and shared by all who read it.

List, then watch from there; a stream that ends goes on where it was, a revision that is no longer kept
means a new list whose differences are told like any change. Subscribers hear of each change in order and
synchronously, after the indexes have it. The subtle thing: `revision` only moves with events of this kind
(and bookmarks), so `wait_for` is for revisions that a write of this very kind returned.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from volplane.api import kinds
from volplane.api.errors import APIError, Expired
from volplane.api.meta import Resource
from volplane.base import clock
from volplane.base.backoff import Backoff, Failures
from volplane.base.tasks import TaskSet
from volplane.client.transport import ChangeType, ObjectChange, Transport

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Resource)
Subscriber = Callable[[T | None, T | None], None]

RETRY = Backoff(0.05, 5.0)  # between attempts to reach a server that does not answer
QUIET = 4  # failures in a row that are logged at level debug only
LONGEST_ASKED = 60  # seconds that a server may ask us to stay away
WATCH_SECONDS = (300, 600)  # how long one stream is asked to live, as client-go asks
STALLED = 60.0  # a stream that is this much overdue is dead, whatever TCP says
CAUGHT_UP = 0.5  # seconds in which a server that sends no bookmark at once has told what was missed


class CacheIndex(Generic[T]):
    """The objects under each of the strings that `by` finds in them."""

    def __init__(self, by: Callable[[T], Iterable[str]]) -> None:
        self._by = by
        self._entries: dict[str, dict[str, T]] = {}

    def __getitem__(self, value: str) -> list[T]:
        return list(self._entries.get(value, {}).values())

    def __contains__(self, value: str) -> bool:
        return value in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def change(self, old: T | None, new: T | None) -> None:
        if old is not None:
            for value in self._by(old):
                self._drop(value, old.key)
        if new is not None:
            for value in self._by(new):
                self._entries.setdefault(value, {})[new.key] = new

    def _drop(self, value: str, key: str) -> None:
        entry = self._entries.get(value)
        if entry is not None:
            entry.pop(key, None)
            if not entry:
                del self._entries[value]


class Cache(Generic[T]):
    def __init__(
        self,
        transport: Transport,
        type: type[T],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
    ) -> None:
        self.type = type
        self.revision = 0
        self._transport = transport
        self._namespace, self._labels, self._fields = namespace, labels, fields
        self._objects: dict[str, dict[str, T]] = {}  # namespace → name → object
        self._indexes: dict[tuple[str, Callable[[T], Iterable[str]]], CacheIndex[T]] = {}
        self._subscribers: list[Subscriber[T]] = []
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        self._synced = asyncio.Event()
        self._current = False  # whether a watch may go on from `revision`
        self._live = asyncio.Event()

    # --- reading

    def get(self, name: str, namespace: str = "") -> T | None:
        return self._objects.get(namespace, {}).get(name)

    def at(self, key: str) -> T | None:
        """By the key that queues carry: `namespace/name`, or `name`."""
        namespace, _, name = key.rpartition("/")
        return self.get(name, namespace)

    def all(self) -> list[T]:
        return [obj for names in self._objects.values() for obj in names.values()]

    def namespace(self, namespace: str) -> list[T]:
        return list(self._objects.get(namespace, {}).values())

    def names(self, namespace: str = "") -> Mapping[str, T]:
        """The objects of a namespace (or those that have none) by name: a view for now, not a copy."""
        return MappingProxyType(self._objects.get(namespace, {}))

    def list_by_name(self, name: str) -> list[T]:
        """Those of that name, in whichever namespace."""
        return [names[name] for names in self._objects.values() if name in names]

    def __len__(self) -> int:
        return sum(map(len, self._objects.values()))

    def index(self, name: str, by: Callable[[T], Iterable[str]]) -> CacheIndex[T]:
        """Caches are shared: two rooms that index by the same function share the index, too."""
        made = self._indexes.get((name, by))
        if made is None:
            made = self._indexes[name, by] = CacheIndex(by)
            for obj in self.all():
                made.change(None, obj)
        return made

    def subscribe(self, fn: Subscriber[T]) -> Callable[[], None]:
        """Tell `fn` of what is there (None, object) and of every change from now on; the result ends it."""
        for obj in self.all():
            self._notify(fn, None, obj)
        self._subscribers.append(fn)

        def end() -> None:
            with suppress(ValueError):
                self._subscribers.remove(fn)

        return end

    @property
    def is_synced(self) -> bool:
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        await self._synced.wait()

    @property
    def is_live(self) -> bool:
        return self._live.is_set()

    async def wait_live(self) -> None:
        """Until the server is heard again, for decisions that must not rest on what was so before it went."""
        await self._live.wait()

    async def wait_for(self, revision: int) -> None:
        if self.revision >= revision:
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (revision, next(self._order), waiter))
        await waiter

    # --- keeping up

    async def run(self) -> None:
        failures = Failures(RETRY)
        while True:
            started, asked = clock.now(), 0.0
            try:
                if not self._current:
                    await self._list()
                lively = await self._watch()
            except Expired:
                self._current = lively = False
            except (APIError, TimeoutError) as error:
                log.log(logging.WARNING if failures.count > QUIET else logging.DEBUG, "%s: %s", self, error)
                lively = False
                asked = _retry_after(error)
            except Exception:  # an object we cannot read, say: the others' news must not end with it
                log.exception("%s: starting over", self)
                self._current = lively = False
            if asked:  # the server has said when; not all of us at the same moment
                await asyncio.sleep(asked * random.uniform(1.0, 1.5))
            elif lively or clock.now() - started > 1:
                failures.reset()
            else:
                await asyncio.sleep(failures.next_delay() * random.uniform(0.5, 1.0))

    async def _list(self) -> None:
        async with asyncio.timeout(STALLED):
            page = await self._transport.list(
                self.type, self._namespace, labels=self._labels, fields=self._fields
            )
        self.fill(page.items, page.revision)
        self._current = True

    def fill(self, items: Iterable[T], revision: int = 0) -> None:
        """What a list shows; all there will ever be for who does not follow."""
        self._replace(items, revision)
        self._synced.set()
        self._live.set()

    async def _watch(self) -> bool:
        """Follow one stream to its end; whether it brought anything."""
        lively = False
        seconds = random.randint(*WATCH_SECONDS)
        watching = self._transport.watch(
            self.type,
            self._namespace,
            labels=self._labels,
            fields=self._fields,
            revision=self.revision,
            seconds=seconds,
        )
        try:
            async with asyncio.timeout(seconds + STALLED), watching as batches:
                soon = asyncio.get_running_loop().call_later(CAUGHT_UP, self._live.set)
                try:
                    async for batch in batches:
                        lively = True
                        self._apply(batch)
                        self._live.set()
                finally:
                    soon.cancel()
        finally:
            self._live.clear()
        return lively

    def _apply(self, batch: Iterable[ObjectChange[T]]) -> None:
        for change in batch:
            self.revision = max(self.revision, change.revision)
            if change.type is ChangeType.DELETED:
                assert change.object is not None
                self._remove(change.object)
            elif change.object is not None:
                self._put(change.object)
        self._wake()

    def _replace(self, items: Iterable[T], revision: int) -> None:
        """A fresh list: tell what differs from what we had, deletions that we slept through included."""
        fresh = {(obj.namespace, obj.name): obj for obj in items}
        self.revision = revision
        for old in self.all():
            if (old.namespace, old.name) not in fresh:
                self._remove(old)
        for obj in fresh.values():
            self._put(obj)
        self._wake()

    def _put(self, new: T) -> None:
        meta = new.metadata
        names = self._objects.setdefault(meta.namespace, {})
        old = names.get(meta.name)
        if old is not None:
            known = old.metadata
            if known.uid != meta.uid:  # deleted and made again while we did not look
                self._remove(old)
                return self._put(new)
            if known.resource_version == meta.resource_version:
                return
        names[meta.name] = new
        self._update_indexes(old, new)

    def _remove(self, last: T) -> None:
        names = self._objects.get(last.namespace, {})
        known = names.pop(last.name, None)
        if known is None:
            return
        if not names:
            del self._objects[last.namespace]
        # The last state may differ from what we knew: it leaves the indexes where it stood, as it stood
        # there.
        for index in self._indexes.values():
            index.change(known, None)
        self._notify_all(last, None)

    def _update_indexes(self, old: T | None, new: T) -> None:
        for index in self._indexes.values():
            index.change(old, new)
        self._notify_all(old, new)

    def _notify_all(self, old: T | None, new: T | None) -> None:
        for fn in tuple(self._subscribers):
            self._notify(fn, old, new)

    def _notify(self, fn: Subscriber[T], old: T | None, new: T | None) -> None:
        try:
            fn(old, new)
        except Exception:  # one reader's mistake must not stop the others' news
            log.exception("%s: a subscriber failed", self)

    def _wake(self) -> None:
        while self._waiters and self._waiters[0][0] <= self.revision:
            waiter = heapq.heappop(self._waiters)[2]
            if not waiter.done():
                waiter.set_result(None)

    def __repr__(self) -> str:
        scope = " ".join(filter(None, (self._namespace, self._labels, self._fields)))
        return f"cache of {kinds.of(self.type).resource} {scope}".rstrip()


def _retry_after(error: Exception) -> float:
    """Seconds after which the server wants to be asked again; 0 if it has not said."""
    if not isinstance(error, APIError):
        return 0.0
    try:
        return float(min(error.retry_after, LONGEST_ASKED))
    except (TypeError, ValueError):  # written by a server that is not ours
        return 0.0


class Caches:
    """One cache per kind and selection for the whole process; owns the tasks that keep them."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._caches: dict[tuple[type[Resource], str, str, str], Cache[Any]] = {}
        self._tasks = TaskSet()

    def get(self, type: type[T], *, namespace: str = "", labels: str = "", fields: str = "") -> Cache[T]:
        key = (type, namespace, labels, fields)
        made: Cache[T] | None = self._caches.get(key)
        if made is None:
            made = Cache(self._transport, type, namespace=namespace, labels=labels, fields=fields)
            self._caches[key] = made
            self._tasks.start(made.run(), repr(made))
        return made

    async def close(self) -> None:
        await self._tasks.close()
        self._caches.clear()

    async def __aenter__(self) -> Caches:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
