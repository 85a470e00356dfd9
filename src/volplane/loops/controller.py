"""The frame of every reconciler: caches in, keys through the queue, one worker per key, backoff on errors.

A controller declares in `setup` what it watches and which keys a change wakes, and says in `reconcile` what
to do for one key. The subtle thing is reading one's own writes: what a `reconcile` wrote is noted, and the
same key is worked again only when the caches it was written to have got there. Most keys are woken by that
very write and have nothing left to do; a controller that can tell so from its caches does it in `glance`, and
no task is started for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, ClassVar, Generic, TypeVar

from volplane.api.errors import APIError, Conflict
from volplane.api.meta import Resource
from volplane.base import clock, metrics
from volplane.client.cache import Cache
from volplane.client.client import Client, written
from volplane.loops.events import Recorder
from volplane.loops.queue import Backoff, Queue, Waiting

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Resource)
Keys = Callable[[T | None, T | None], Iterable[K]]

WORK = metrics.histogram(
    "workqueue_work_duration_seconds",
    "How long in seconds processing an item from workqueue takes.",
    ("name",),
    buckets=(1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 10),
)
CATCH_UP = 5.0  # seconds; a selective cache may never see a write that its selection excludes
FORGETFUL = 4096  # keys with noted writes before those long since seen are thrown away
GLANCES = 32  # in a row before others have their turn


running: set[Controller[Any]] = set()  # those at work in this process, for whoever asks what waits


class Refused(Exception):
    """An expected failure of a key: retried with backoff, told in one line without a traceback."""

    def __init__(self, why: str, *, backoff: Backoff | None = None) -> None:
        super().__init__(why)
        self.backoff = backoff  # where the controller's own does not fit


class Unable(Exception):
    """The role can do nothing here, and says why: a driver, or a cluster, lacks what it is for."""


class Controller(Generic[K]):
    name: ClassVar[str] = ""
    component: ClassVar[str] = ""  # who events come from, where that is not the name
    workers: int = 16
    backoff: Backoff = Backoff()
    resync: float = 0.0  # seconds between two rounds over everything; a backstop, 0 is never

    def __init__(self, client: Client, *, events: Recorder | None = None) -> None:
        self.client = client
        self.queue: Queue[K] = Queue(self.backoff, name=self.name)
        self._own_events = events is None
        self.events = events or Recorder(client, self.component or self.name)
        self._watched: list[tuple[Cache[Any], Keys[Any, K] | None]] = []
        self._ends: list[Callable[[], None]] = []
        self._written: dict[K, dict[type[Resource], int]] = {}
        self._duration = WORK.labels(self.name)

    # --- what a controller is made of

    def setup(self) -> None:
        """Declare the watches; called when the controller starts."""
        raise NotImplementedError

    async def reconcile(self, key: K) -> None:
        """Bring one key's world in order. Raising means: again, later and later."""
        raise NotImplementedError

    def glance(self, key: K) -> bool:
        """Work the key here and now if that takes no waiting for anybody; False: it takes a `reconcile`."""
        return False

    def watch(
        self,
        type: type[T],
        keys: Keys[T, K] | None = None,
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
    ) -> Cache[T]:
        """The shared cache of a kind; `keys(old, new)` says whom a change wakes, without it nobody."""
        cache = self.client.cache(type, namespace=namespace, labels=labels, fields=fields)
        self._watched.append((cache, keys))
        return cache

    def join(self, type: type[T], keys: Keys[T, K]) -> None:
        """Watch one more kind, at work or before."""
        cache = self.watch(type, keys)
        if self in running:
            self._ends.append(cache.subscribe(self._waker(keys)))

    @property
    def waits(self) -> list[Waiting[K]]:
        return self.queue.waits

    def wrote(self, key: K, obj: Resource) -> None:
        """Note a write for another key than the one in work (that one's are noted by themselves)."""
        notes = self._written.setdefault(key, {})
        notes[type(obj)] = max(notes.get(type(obj), 0), obj.revision)

    # --- how it runs

    async def look(self) -> None:
        """See the world without working on it, for whoever wants this controller's view and plan alone."""
        self.setup()
        for cache, _ in self._watched:
            await cache.synced()
        for cache, keys in self._watched:
            if keys is not None:
                for obj in cache.all():
                    deque(keys(None, obj), maxlen=0)  # for what it notes by the way, not for whom it wakes

    async def run(self) -> None:
        """Until cancelled. May be called again afterwards, as when a lease is lost and won again."""
        self.setup()
        running.add(self)
        try:
            for cache, keys in self._watched:
                if keys is not None:
                    self._ends.append(cache.subscribe(self._waker(keys)))
            for cache, _ in self._watched:
                await cache.synced()
            if not self._own_events:
                return await self._serve()
            async with self.events:
                await self._serve()
        finally:
            running.discard(self)
            for end in self._ends:
                end()
            self._ends.clear()
            self._watched.clear()
            self.queue.close()

    def _waker(self, keys: Keys[Any, K]) -> Callable[[Any, Any], None]:
        def wake(old: Any, new: Any) -> None:
            for key in keys(old, new):
                self.queue.add(key)

        return wake

    async def _serve(self) -> None:
        slots = asyncio.Semaphore(self.workers)
        async with asyncio.TaskGroup() as group:
            if self.resync:
                group.create_task(self._resync())
            glances = 0
            while True:
                await slots.acquire()
                key = await self.queue.get()
                if self._glanced(key):
                    slots.release()
                    glances += 1
                    if glances % GLANCES == 0:
                        await asyncio.sleep(0)
                else:
                    group.create_task(self._work(key, slots), name=f"{self.name} {key}")

    def _glanced(self, key: K) -> bool:
        begun = clock.now()
        try:
            if not self._has_caught_up(key) or not self.glance(key):
                return False
        except Exception:  # tells why in `reconcile`, where it is retried
            return False
        self.queue.forget(key)
        self.queue.done(key)
        self._duration.observe(clock.now() - begun)
        return True

    def _has_caught_up(self, key: K) -> bool:
        notes = self._written.get(key)
        if notes is not None:
            if any(cache.revision < notes.get(cache.type, 0) for cache, _ in self._watched):
                return False
            del self._written[key]
        return True

    async def _work(self, key: K, slots: asyncio.Semaphore) -> None:
        notes: dict[type[Resource], int] = {}
        begun = clock.now()
        try:
            await self._catch_up(key)
            written.set(notes)  # of this task alone, and of those it starts
            await self.reconcile(key)
            self.queue.forget(key)
        except Exception as error:
            self._failed(key, error)
        finally:
            if notes:
                self._written[key] = notes
            self.queue.done(key)
            slots.release()
            self._duration.observe(clock.now() - begun)

    def _failed(self, key: K, error: Exception) -> None:
        errors = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        why = "; ".join(str(e) or type(e).__name__ for e in errors)
        pause = self.queue.retry(key, why, getattr(errors[0], "backoff", None))
        if all(isinstance(e, Conflict) for e in errors):
            log.debug("%s %s: %s; again in %.3gs", self.name, key, why, pause)
        elif all(isinstance(e, (APIError, Refused, TimeoutError)) for e in errors):
            log.warning("%s %s: %s; again in %.3gs", self.name, key, why, pause)
        else:
            log.error("%s %s: %s; again in %.3gs", self.name, key, why, pause, exc_info=error)

    async def _catch_up(self, key: K) -> None:
        notes = self._written.pop(key, None)
        if not notes:
            return
        for cache, _ in self._watched:
            revision = notes.get(cache.type, 0)
            if cache.revision < revision:
                try:
                    async with asyncio.timeout(CATCH_UP):
                        await cache.wait_for(revision)
                except TimeoutError:
                    log.debug("%s %s: %s did not reach %d", self.name, key, cache, revision)
        if len(self._written) > FORGETFUL:
            self._prune()

    def _prune(self) -> None:
        reached = {cache.type: cache.revision for cache, _ in self._watched}
        for key, notes in list(self._written.items()):
            if all(revision <= reached.get(type, revision) for type, revision in notes.items()):
                del self._written[key]

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self.resync)
            for cache, keys in self._watched:
                if keys is not None:
                    for obj in cache.all():
                        for key in keys(obj, obj):
                            self.queue.add(key)
