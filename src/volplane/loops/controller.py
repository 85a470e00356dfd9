"""The frame of every reconciler: a change wakes keys; each key is viewed, planned and acted on.

Every controller has the same five parts, in this order:

1. `setup` declares what is watched and which keys a change wakes. `keys(old, new)` is pure. What must be
   remembered of a change goes to `observe(old, new)`, which changes memory only.
2. `view(key)` reads caches and memory and changes nothing. None: there is nothing to do.
3. `plan(view)` is pure and yields steps.
4. `act(key, view, step)` carries out one step.
5. `memory` is one object with what only this process knows: timers, counters, what was reported. It is
   created in `setup`, so that a controller that runs again starts with an empty one.

`reconcile` is written only here, and the steps of `rules.steps` are carried out here. Views and plans are
synchronous and write nothing, so they run where keys are taken from the queue; a task is started only for a
plan with something to act on.

A key is planned again only when the caches show what was written for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from volplane.api.errors import APIError, Conflict
from volplane.api.meta import Resource
from volplane.base import metrics
from volplane.base.backoff import Backoff
from volplane.client.cache import Cache
from volplane.client.client import Client, written_revisions
from volplane.loops.events import EventRecorder
from volplane.loops.queue import Queue, WaitingKey
from volplane.loops.volume_states import StateComparison
from volplane.rules.steps import CommonStep, RecordEvent, Requeue
from volplane.rules.waits import Wait, WaitReason

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
S = TypeVar("S")
T = TypeVar("T", bound=Resource)
Keys = Callable[[T | None, T | None], Iterable[K]]
Observe = Callable[[T | None, T | None], None]
Subscribe = Callable[[Callable[[str], None]], Callable[[], None]]  # returns the function that ends it

WORK = metrics.histogram(
    "workqueue_work_duration_seconds",
    "How long in seconds processing an item from workqueue takes.",
    ("name",),
    buckets=(1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 10),
)
CATCH_UP_TIMEOUT = 5.0  # seconds; a cache with a selector may never see the write
MAX_NOTED_WRITES = 4096  # keys with noted writes before those that the caches show are dropped
COMMON_STEPS = (Wait, RecordEvent, Requeue)  # the steps that are carried out here
PLANNED_IN_A_ROW = 32  # keys planned before other tasks get to run


class RetryableError(Exception):
    """An expected failure of a key: retried with backoff, logged in one line without a traceback."""

    def __init__(self, why: str, *, backoff: Backoff | None = None, wait: Wait | None = None) -> None:
        super().__init__(why)
        self.wait = wait  # the step of the plan that asked for the retry
        self.backoff = backoff  # instead of the controller's own


class Unsupported(Exception):
    """The role cannot run: the driver or the cluster lacks what it is for."""


class Stop(Struct, frozen=True):
    """Outcome of a step: drop the rest of the plan; a change will wake the key."""


class Continue(Struct, Generic[V], frozen=True):
    """Outcome of a step: continue the plan with this view."""

    view: V


class Replan(Struct, Generic[V], frozen=True):
    """Outcome of a step: drop the rest of the plan and plan again with this view."""

    view: V


class Fail(Struct, frozen=True):
    """Outcome of a step: the other steps of its batch end, then the key is retried with backoff."""

    error: Exception


Outcome = Stop | Continue[V] | Replan[V] | Fail | None  # None: continue


class Watched(Struct, Generic[T, K], frozen=True):
    """One cache of a controller, and the functions that are called for its changes."""

    cache: Cache[T]
    keys: Keys[T, K] | None = None
    observe: Observe[T] | None = None


Planned = tuple[V, Sequence[S | CommonStep]]


class Controller(Generic[K, V, S]):
    """`K` is a key, `V` a view, `S` a step that `act` carries out."""

    name: ClassVar[str] = ""
    component: ClassVar[str] = ""  # source of events, if it is not the name
    workers: int = 16  # keys that are acted on concurrently
    backoff: Backoff = Backoff()
    resync: float = 0.0  # seconds after which every key is planned again; 0: never

    def __init__(
        self,
        client: Client,
        *,
        events: EventRecorder | None = None,
        workers: int | None = None,
        backoff: Backoff | None = None,
        resync: float | None = None,
    ) -> None:
        self.client = client
        self.workers = self.workers if workers is None else workers
        self.backoff = backoff or self.backoff
        self.resync = self.resync if resync is None else resync
        self.queue: Queue[K] = Queue(self.backoff, name=self.name)
        self.events = events or EventRecorder(client, self.component or self.name)
        self._owns_events = events is None
        self._watched: list[Watched[Any, K]] = []
        self._live_caches: list[Cache[Any]] = []
        self._sources: list[tuple[Subscribe, Callable[[str], Iterable[K]]]] = []
        self._subscriptions: list[tuple[Cache[Any] | None, Callable[[], None]]] = []
        self._is_running = False
        self._acting = 0  # keys that are acted on
        self._worker_freed: asyncio.Future[None] | None = None  # while all workers are busy
        self._written: dict[K, dict[type[Resource], int]] = {}
        self._duration = WORK.labels(self.name)

    # --- 1. which keys a change wakes

    def setup(self) -> None:
        """Create the memory and declare the watches; called when the controller starts."""
        raise NotImplementedError

    def watch(
        self,
        type: type[T],
        keys: Keys[T, K] | None = None,
        *,
        observe: Observe[T] | None = None,
        live: bool = False,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
    ) -> Cache[T]:
        """The shared cache of a kind. `keys(old, new)`: keys that a change wakes; none without it.

        `observe(old, new)` is called before `keys` and changes memory only. `live`: nothing is planned while
        the API server does not answer this cache.
        """
        cache = self.client.cache(type, namespace=namespace, labels=labels, fields=fields)
        self.follow(cache, keys, observe=observe)
        if live:
            self._live_caches.append(cache)
        return cache

    def follow(
        self,
        cache: Cache[T],
        keys: Keys[T, K] | None = None,
        *,
        observe: Observe[T] | None = None,
    ) -> None:
        """Watch a cache, before the controller runs or while it does."""
        watched = Watched(cache, keys, observe)
        self._watched.append(watched)
        if self._is_running:
            self._subscribe(watched)

    def watch_source(self, subscribe: Subscribe, keys: Callable[[str], Iterable[K]]) -> None:
        """Watch what is not an object. `keys(name)`: keys that a change of what has this name wakes."""
        self._sources.append((subscribe, keys))

    def unfollow(self, cache: Cache[Any]) -> None:
        """Stop watching a cache whose kind is no longer served."""
        self._watched[:] = [watched for watched in self._watched if watched.cache is not cache]
        for subscribed, unsubscribe in self._subscriptions:
            if subscribed is cache:
                unsubscribe()
        self._subscriptions[:] = [each for each in self._subscriptions if each[0] is not cache]

    # --- 2. what the caches show

    def view(self, key: K) -> V | None:
        """What caches and memory show about a key; None if there is nothing to do."""
        raise NotImplementedError

    # --- 3. what to do about it

    def plan(self, view: V) -> Iterable[S | CommonStep]:
        """The steps for a view, in order."""
        raise NotImplementedError

    def batches(self, steps: Sequence[S | CommonStep]) -> Iterable[Sequence[S | CommonStep]]:
        """The steps in groups that may be carried out concurrently."""
        return ((step,) for step in steps)

    # --- 4. acting

    async def act(self, key: K, view: V, step: S) -> Outcome[V]:
        """Carry out one step. An exception retries the key with backoff."""
        raise NotImplementedError

    def subject(self, view: V) -> Resource:
        """The object of events, unless a `RecordEvent` names another."""
        raise NotImplementedError

    def emit(self, view: V, event: RecordEvent) -> None:
        """Record the event of a step."""
        self.events.event(event.about or self.subject(view), event.type, event.reason, event.message)

    # --- 5. what only this process knows

    def update_memory(self, key: K, view: V | None, steps: Sequence[S | CommonStep]) -> None:
        """Note what was seen and planned, before any other key is planned.

        Besides `observe` and `act` this is the only place where memory changes.
        """

    def counting(self) -> AbstractContextManager[None]:
        """Lets computed gauges count what this controller knows, while it runs."""
        return nullcontext()

    async def compare_states(self) -> StateComparison | None:
        """Desired and actual state of the volumes; None for a controller that has none.

        Changes nothing, and lets other tasks run in between: there may be many volumes.
        """
        return None

    # --- how it runs

    @property
    def is_running(self) -> bool:
        return self._is_running

    @property
    def waits(self) -> list[WaitingKey[K]]:
        return self.queue.waits

    async def sync_only(self) -> None:
        """Fill the caches and observe their objects without planning, for readers of views and plans."""
        self.setup()
        for watched in self._watched:
            await watched.cache.wait_synced()
        for watched in self._watched:
            if watched.observe is not None:
                for obj in watched.cache.all():
                    watched.observe(None, obj)

    async def run(self) -> None:
        """Run until cancelled. May be called again, as when a Lease is lost and acquired again."""
        self.setup()
        self._is_running = True
        with self.counting():
            await self._run()

    async def _run(self) -> None:
        try:
            for watched in list(self._watched):
                self._subscribe(watched)
            for subscribe, keys in self._sources:
                self._subscribe_source(subscribe, keys)
            for watched in list(self._watched):
                await watched.cache.wait_synced()
            if not self._owns_events:
                return await self.serve()
            async with self.events:
                await self.serve()
        finally:
            self._is_running = False
            for _, unsubscribe in self._subscriptions:
                unsubscribe()
            self._subscriptions.clear()
            self._watched.clear()
            self._sources.clear()
            self._live_caches.clear()
            self.queue.close()

    def _subscribe(self, watched: Watched[Any, K]) -> None:
        keys, observe, add = watched.keys, watched.observe, self.queue.add

        def wake(old: Any, new: Any) -> None:
            if observe is not None:
                observe(old, new)
            if keys is not None:
                for key in keys(old, new):
                    add(key)

        subscriber = observe if keys is None else wake
        if subscriber is not None:
            self._subscriptions.append((watched.cache, watched.cache.subscribe(subscriber)))

    def _subscribe_source(self, subscribe: Subscribe, keys: Callable[[str], Iterable[K]]) -> None:
        def wake(name: str) -> None:
            for key in keys(name):
                self.queue.add(key)

        self._subscriptions.append((None, subscribe(wake)))

    async def serve(self) -> None:
        """Work the queue until cancelled."""
        self._acting, self._worker_freed = 0, None
        async with asyncio.TaskGroup() as group:
            if self.resync:
                group.create_task(self._resync())
            taken = 0
            while True:
                if self._acting >= self.workers:
                    self._worker_freed = asyncio.get_running_loop().create_future()
                    await self._worker_freed
                key = await self.queue.get()
                begun = time.perf_counter()  # the loop's clock has milliseconds
                planned: Planned[V, S] | None = None
                if not self._is_current(key) or (planned := self._plan_now(key, begun)) is not None:
                    self._acting += 1
                    group.create_task(self._work(key, planned, begun), name=f"{self.name} {key}")
                taken += 1
                if taken % PLANNED_IN_A_ROW == 0:
                    await asyncio.sleep(0)

    def _is_current(self, key: K) -> bool:
        """Whether the caches show what was written for the key, and live caches are connected."""
        if self._live_caches and not all(cache.is_live for cache in self._live_caches):
            return False
        notes = self._written.get(key)
        if notes is not None:
            if any(watched.cache.revision < notes.get(watched.cache.type, 0) for watched in self._watched):
                return False
            del self._written[key]
        return True

    def _plan_now(self, key: K, begun: float) -> Planned[V, S] | None:
        """The view and plan of a key; None if there was nothing to act on and the key is finished."""
        try:
            planned = self._plan(key)
            if planned is not None:
                view, steps = planned
                for step in steps:
                    if not isinstance(step, COMMON_STEPS):
                        return planned
                for step in steps:
                    self._carry_out_here(key, view, step)
            self.queue.forget(key)
        except Exception as error:
            self._retry_later(key, error)
        self.queue.finish(key)
        self._duration.observe(time.perf_counter() - begun)
        return None

    async def _work(self, key: K, planned: Planned[V, S] | None, begun: float) -> None:
        """Carry out a plan; without one, wait for the caches and plan first."""
        notes: dict[type[Resource], int] = {}
        try:
            if planned is None:
                await self._catch_up(key)
            written_revisions.set(notes)  # for this task and those it starts
            if planned is None:
                await self.reconcile(key)
            else:
                await self._carry_out(key, *planned)
            self.queue.forget(key)
        except Exception as error:
            self._retry_later(key, error)
        finally:
            if notes:
                self._written[key] = notes
            self.queue.finish(key)
            self._free_worker()
            self._duration.observe(time.perf_counter() - begun)

    def _free_worker(self) -> None:
        self._acting -= 1
        freed, self._worker_freed = self._worker_freed, None
        if freed is not None and not freed.done():
            freed.set_result(None)

    async def reconcile(self, key: K) -> None:
        """View, plan and act for one key."""
        planned = self._plan(key)
        if planned is not None:
            await self._carry_out(key, *planned)

    def _plan(self, key: K) -> Planned[V, S] | None:
        view = self.view(key)
        if view is None:
            self.update_memory(key, None, ())
            return None
        return view, self._plan_on(key, view)

    def _plan_on(self, key: K, view: V) -> Sequence[S | CommonStep]:
        steps = list(self.plan(view))
        self.update_memory(key, view, steps)
        return steps

    async def _carry_out(self, key: K, view: V, steps: Sequence[S | CommonStep]) -> None:
        while steps:
            view, steps = await self._act_all(key, view, steps)

    async def _act_all(self, key: K, view: V, steps: Sequence[S | CommonStep]) -> Planned[V, S]:
        """Carry out a plan; returns the view and plan that replace it, mostly none."""
        for batch in self.batches(steps):
            for outcome in await self._act_batch(key, view, batch):
                if outcome is None:
                    continue
                if isinstance(outcome, Stop):
                    return view, ()
                if isinstance(outcome, Fail):
                    raise outcome.error
                if isinstance(outcome, Replan):
                    return outcome.view, self._plan_on(key, outcome.view)
                view = outcome.view
        return view, ()

    async def _act_batch(self, key: K, view: V, batch: Sequence[S | CommonStep]) -> Sequence[Outcome[V]]:
        acting: list[S] = []
        for step in batch:
            if isinstance(step, COMMON_STEPS):
                self._carry_out_here(key, view, step)
            else:
                acting.append(step)
        if not acting:
            return ()
        if len(acting) == 1:
            return (await self.act(key, view, acting[0]),)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.act(key, view, step)) for step in acting]
        return [task.result() for task in tasks]

    def _carry_out_here(self, key: K, view: V, step: S | CommonStep) -> None:
        if isinstance(step, Wait):
            if step.backoff:
                raise RetryableError(step.text, wait=step)
            self.queue.later(key, step)
        elif isinstance(step, RecordEvent):
            self.emit(view, step)
        elif isinstance(step, Requeue):
            self.queue.add(step.key)  # type: ignore[arg-type]  # plans do not know the type of keys

    def _retry_later(self, key: K, error: Exception) -> None:
        errors = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        why = "; ".join(str(e) or type(e).__name__ for e in errors)
        wait = getattr(errors[0], "wait", None) or Wait(WaitReason.RETRY, message=why)
        pause = self.queue.retry(key, wait, getattr(errors[0], "backoff", None))
        if all(isinstance(e, Conflict) for e in errors):
            log.debug("%s %s: %s; retrying in %.3gs", self.name, key, why, pause)
        elif all(isinstance(e, (APIError, RetryableError, TimeoutError)) for e in errors):
            log.warning("%s %s: %s; retrying in %.3gs", self.name, key, why, pause)
        else:
            log.error("%s %s: %s; retrying in %.3gs", self.name, key, why, pause, exc_info=error)

    async def _catch_up(self, key: K) -> None:
        """Wait until the caches show what was written for the key, and live caches are connected."""
        notes = self._written.pop(key, None) or {}
        for watched in list(self._watched):
            cache = watched.cache
            revision = notes.get(cache.type, 0)
            if cache.revision < revision:
                try:
                    async with asyncio.timeout(CATCH_UP_TIMEOUT):
                        await cache.wait_for(revision)
                except TimeoutError:
                    log.debug("%s %s: %s did not reach %d", self.name, key, cache, revision)
        for cache in self._live_caches:
            await cache.wait_live()
        if len(self._written) > MAX_NOTED_WRITES:
            self._prune()

    def _prune(self) -> None:
        reached = {watched.cache.type: watched.cache.revision for watched in self._watched}
        for key, notes in list(self._written.items()):
            if all(revision <= reached.get(type, revision) for type, revision in notes.items()):
                del self._written[key]

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self.resync)
            for watched in self._watched:
                if watched.keys is not None:
                    for obj in watched.cache.all():
                        for key in watched.keys(obj, obj):
                            self.queue.add(key)
