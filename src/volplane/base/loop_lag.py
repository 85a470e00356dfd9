"""Event loop lag: one request that blocks the loop delays all others, and shows up in this metric."""

from __future__ import annotations

import asyncio

from volplane.base import metrics

EVERY = 0.25  # seconds between two measurements

_lag = metrics.histogram(
    "event_loop_lag_seconds",
    "How late the event loop runs a timer, measured four times a second.",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)


class LoopLag:
    """Measures the running loop until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(EVERY, self._measure, self._loop.time() + EVERY)

    def _measure(self, due: float) -> None:
        now = self._loop.time()
        _lag.observe(max(now - due, 0.0))
        self._timer = self._loop.call_at(now + EVERY, self._measure, now + EVERY)

    def close(self) -> None:
        self._timer.cancel()
