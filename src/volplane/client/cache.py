"""A shared cache of the objects of one kind, kept up to date by list and watch.

A watch that ends is resumed at its last revision. If that revision has been compacted, the cache lists again
and reports the differences like any other change. Subscribers are called synchronously and in order, after
the indexes are updated. `revision` advances only with events of this kind and with bookmarks, so `wait_for`
is only for revisions that a write of the same kind returned.
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
from typing import Any, Generic, Self, TypeVar

from volplane.api import kinds
from volplane.api.errors import APIError, Expired
from volplane.api.meta import Resource
from volplane.base import clock
from volplane.base.backoff import Backoff, Failures
from volplane.base.tasks import TaskSet
from volplane.base.trace import recording
from volplane.client.transport import ChangeType, ObjectChange, Transport
from volplane.rules.trace_subjects import TRACED_TYPES, has_new_facts, list_trace_facts

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Resource)
Subscriber = Callable[[T | None, T | None], None]

RETRY = Backoff(0.05, 5.0)  # between attempts to reach a server that does not answer
QUIET_FAILURES = 4  # failures in a row that are logged at level debug only
MAX_RETRY_AFTER = 60  # seconds: a longer Retry-After is shortened to this
WATCH_SECONDS = (300, 600)  # timeoutSeconds of a watch, as in client-go
STALLED = 60.0  # seconds after its timeout when a stream is considered dead
CAUGHT_UP = 0.5  # seconds after which a new stream counts as caught up, if the server sends no bookmark


class CacheIndex(Generic[T]):
    """Objects by the strings that `by` returns for them."""

    def __init__(self, by: Callable[[T], Iterable[str]]) -> None:
        self._by = by
        self.entries: dict[str, dict[str, T]] = {}  # value → key of the object → object

    def __getitem__(self, value: str) -> list[T]:
        entry = self.entries.get(value)
        return list(entry.values()) if entry is not None else []

    def __contains__(self, value: str) -> bool:
        return value in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def change(self, old: T | None, new: T | None) -> None:
        """`old` and `new` are states of one object."""
        obj = new or old
        assert obj is not None
        before = list(self._by(old)) if old is not None and self.entries else []
        after = list(self._by(new)) if new is not None else []
        if not before and not after:
            return  # most objects are in few indexes
        key = obj.key
        for value in before:
            if value not in after:
                self._drop(value, key)
        if new is not None:
            for value in after:
                self.entries.setdefault(value, {})[key] = new

    def _drop(self, value: str, key: str) -> None:
        entry = self.entries.get(value)
        if entry is not None:
            entry.pop(key, None)
            if not entry:
                del self.entries[value]


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
        self._current = False  # whether a watch can resume at `revision`
        self._live = asyncio.Event()
        self._is_traced = type in TRACED_TYPES

    # --- read

    def get(self, name: str, namespace: str = "") -> T | None:
        return self._objects.get(namespace, {}).get(name)

    def at(self, key: str) -> T | None:
        """By key: `namespace/name`, or `name`."""
        namespace, _, name = key.rpartition("/")
        return self.get(name, namespace)

    def all(self) -> list[T]:
        return [obj for names in self._objects.values() for obj in names.values()]

    def namespace(self, namespace: str) -> list[T]:
        return list(self._objects.get(namespace, {}).values())

    def names(self, namespace: str = "") -> Mapping[str, T]:
        """The objects of a namespace (or cluster-scoped ones) by name: a live view, not a copy."""
        return MappingProxyType(self._objects.get(namespace, {}))

    def list_by_name(self, name: str) -> list[T]:
        """The objects of that name in all namespaces."""
        return [names[name] for names in self._objects.values() if name in names]

    def __len__(self) -> int:
        return sum(map(len, self._objects.values()))

    def index(self, name: str, by: Callable[[T], Iterable[str]]) -> CacheIndex[T]:
        """An index over the cache. Users that index by the same function share it."""
        made = self._indexes.get((name, by))
        if made is None:
            made = self._indexes[name, by] = CacheIndex(by)
            for obj in self.all():
                made.change(None, obj)
        return made

    def subscribe(self, fn: Subscriber[T]) -> Callable[[], None]:
        """Call `fn` with all objects (None, object), and with every change from now on. Returns a function
        that unsubscribes.
        """
        for obj in self.all():
            self._notify((fn,), None, obj)
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
        """Wait until the watch is connected, for decisions that must not use stale data."""
        await self._live.wait()

    async def wait_for(self, revision: int) -> None:
        if self.revision >= revision:
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (revision, next(self._order), waiter))
        await waiter

    # --- list and watch

    async def run(self) -> None:
        failures = Failures(RETRY)
        while True:
            started, asked = clock.now(), 0.0
            try:
                if not self._current:
                    await self.list_now()
                lively = await self._watch()
            except Expired:
                self._current = lively = False
            except (APIError, TimeoutError) as error:
                level = logging.WARNING if failures.count > QUIET_FAILURES else logging.DEBUG
                log.log(level, "%s: %s", self, error)
                lively = False
                asked = _retry_after(error)
            except Exception:  # such as an object that cannot be decoded: the watch must go on
                log.exception("%s: starting over", self)
                self._current = lively = False
            if asked:  # Retry-After, with jitter
                await asyncio.sleep(asked * random.uniform(1.0, 1.5))
            elif lively or clock.now() - started > 1:
                failures.reset()
            else:
                await asyncio.sleep(failures.next_delay() * random.uniform(0.5, 1.0))

    def restrict(self, namespace: str) -> None:
        """Read one namespace only; called before anything is read."""
        self._namespace = namespace

    async def list_now(self) -> None:
        """List once, so that `run` continues with a watch. Raises APIError, TimeoutError."""
        async with asyncio.timeout(STALLED):
            page = await self._transport.list(
                self.type, self._namespace, labels=self._labels, fields=self._fields
            )
        self.fill(page.items, page.revision)
        self._current = True

    def fill(self, items: Iterable[T], revision: int = 0) -> None:
        """Replace the content by that of a list."""
        self._replace(items, revision)
        self._synced.set()
        self._live.set()

    async def _watch(self) -> bool:
        """Follow one stream to its end. Returns whether it had any events."""
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
        """Report the differences between a new list and the cache, missed deletions included."""
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
            if known.uid != meta.uid:  # deleted and created again in between
                self._remove(old)
                return self._put(new)
            if known.resource_version == meta.resource_version:
                return
        names[meta.name] = new
        if self._is_traced and has_new_facts(old, new) and (trace := recording()) is not None:
            trace.index.learn_all(list_trace_facts(new))
        self._update_indexes(old, new)

    def _remove(self, last: T) -> None:
        names = self._objects.get(last.namespace, {})
        known = names.pop(last.name, None)
        if known is None:
            return
        if not names:
            del self._objects[last.namespace]
        # The last state may differ from the cached one, which is the one in the indexes.
        for index in self._indexes.values():
            index.change(known, None)
        self._notify(tuple(self._subscribers), last, None)

    def _update_indexes(self, old: T | None, new: T) -> None:
        for index in self._indexes.values():
            index.change(old, new)
        self._notify(tuple(self._subscribers), old, new)

    def _notify(self, subscribers: Iterable[Subscriber[T]], old: T | None, new: T | None) -> None:
        for fn in subscribers:
            try:
                fn(old, new)
            except Exception:  # an error of one subscriber must not affect the others
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
    """Retry-After in seconds; 0 if there is none."""
    if not isinstance(error, APIError):
        return 0.0
    try:
        return float(min(error.retry_after, MAX_RETRY_AFTER))
    except (TypeError, ValueError):  # malformed
        return 0.0


class Caches:
    """One cache per kind and selection, shared by the whole process. Owns the tasks that keep them up to
    date.
    """

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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
