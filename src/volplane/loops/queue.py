"""A queue of keys: a key that is added many times is worked once, and by one worker at a time.

A key that is added while it is worked is worked again afterwards. A failed key comes back after a backoff
that doubles. A wait lasts until its key is worked the next time, whatever wakes it, because the plan then
yields its waits again.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Hashable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from msgspec import Struct, structs

from volplane.base import clock, metrics
from volplane.base.backoff import Backoff
from volplane.rules.waits import Wait, WaitIdentity

K = TypeVar("K", bound=Hashable)

DEPTH = metrics.gauge("workqueue_depth", "Current depth of workqueue", ("name",))
ADDS = metrics.counter("workqueue_adds_total", "Total number of adds handled by workqueue", ("name",))
RETRIES = metrics.counter(
    "workqueue_retries_total", "Total number of retries handled by workqueue", ("name",)
)


class WaitingKey(Struct, Generic[K], frozen=True):
    """One wait of a key, as only the running role knows it."""

    key: K
    wait: Wait
    since: datetime
    next_try: datetime | None  # None: only an event wakes it


class Queue(Generic[K]):
    def __init__(self, backoff: Backoff | None = None, *, name: str = "") -> None:
        self.backoff = backoff or Backoff()
        self._adds, self._retries = ADDS.labels(name), RETRIES.labels(name)
        DEPTH.labels(name).set_function(lambda: len(self._ready))
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()  # added: in `_ready`, or to be worked again after the current work
        self._working: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._waits: dict[K, dict[WaitIdentity, WaitingKey[K]]] = {}
        # What keys in work waited for until now: a plan that waits for the same again keeps its `since`.
        self._before: dict[K, dict[WaitIdentity, WaitingKey[K]]] = {}
        self._takers: deque[asyncio.Future[None]] = deque()

    def add(self, key: K) -> None:
        if key in self._dirty:
            return
        self._dirty.add(key)
        self._adds.inc()
        if key not in self._working:
            self._offer(key)

    def later(self, key: K, wait: Wait) -> None:
        """Work the key when the wait is over, or when an event adds it."""
        self._note(key, wait)
        if math.isinf(wait.seconds):
            return
        due = clock.now() + max(wait.seconds, 0.0)
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_at(due, self._on_timer, key)

    def retry(self, key: K, wait: Wait, backoff: Backoff | None = None) -> float:
        """Work the key again after its next backoff; returns the seconds until then."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self._retries.inc()
        pause = (backoff or self.backoff).delay(failures)
        self.later(key, structs.replace(wait, seconds=pause))
        return pause

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """Reset the backoff of the key after a success."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key; the caller must call `finish`."""
        while not self._ready:
            taker = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                if taker.done() and not taker.cancelled():
                    self._wake()  # woken and cancelled: wake another worker
                raise
        key = self._ready.popleft()
        self._dirty.discard(key)
        self._working.add(key)
        if key in self._timers:
            self._timers.pop(key).cancel()
        if key in self._waits:
            self._before[key] = self._waits.pop(key)
        return key

    def finish(self, key: K) -> None:
        self._working.discard(key)
        self._before.pop(key, None)
        if key in self._dirty:
            self._offer(key)

    @property
    def waits(self) -> list[WaitingKey[K]]:
        return [waiting for waits in self._waits.values() for waiting in waits.values()]

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done now; timers may still be running."""
        return not self._dirty and not self._working

    def __len__(self) -> int:
        return len(self._ready)

    def close(self) -> None:
        """Forget everything: a leader's next term starts with what it then sees."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        # A task that was cancelled before it started has not finished its key.
        for keys in (self._ready, self._dirty, self._working, self._before, self._waits, self._failures):
            keys.clear()

    def _offer(self, key: K) -> None:
        self._ready.append(key)
        self._wake()

    def _wake(self) -> None:
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                return taker.set_result(None)

    def _on_timer(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _note(self, key: K, wait: Wait) -> None:
        now, identity = clock.wall(), wait.identity
        earlier = self._before.get(key, {}).get(identity) or self._waits.get(key, {}).get(identity)
        since = earlier.since if earlier else now
        next_try = None if math.isinf(wait.seconds) else now + timedelta(seconds=max(wait.seconds, 0.0))
        self._waits.setdefault(key, {})[identity] = WaitingKey(key, wait, since, next_try)
