"""Limits requests per second, with a token bucket for each action, as AWS does."""

from __future__ import annotations

from volplane.base import clock
from volplane.cloud.errors import Ec2ErrorResponse


class RequestThrottle:
    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, max(1.0, float(burst))
        self._buckets: dict[str, tuple[float, float]] = {}  # action → tokens, and when they were counted

    def take(self, action: str) -> None:
        """Raises RequestLimitExceeded if the bucket is empty. A rate of 0 means no limit."""
        if not self._rate:
            return
        now = clock.now()
        tokens, counted = self._buckets.get(action, (self._burst, now))
        tokens = min(self._burst, tokens + (now - counted) * self._rate)
        if tokens < 1:
            self._buckets[action] = tokens, now
            raise Ec2ErrorResponse("RequestLimitExceeded", "Request limit exceeded.", 503)
        self._buckets[action] = tokens - 1, now
