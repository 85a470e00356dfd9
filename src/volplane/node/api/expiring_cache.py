"""Answers of the API server that are used again for a while."""

from __future__ import annotations

from typing import Generic, TypeVar

from volplane.base import clock

MAX_ENTRIES = 1024

K = TypeVar("K")
V = TypeVar("V")


class ExpiringCache(Generic[K, V]):
    """Holds a limited number of values, each until its time is over."""

    def __init__(self) -> None:
        self._entries: dict[K, tuple[V, float]] = {}

    def get(self, key: K) -> V | None:
        found = self._entries.get(key)
        if found is None:
            return None
        if found[1] <= clock.now():
            del self._entries[key]
            return None
        return found[0]

    def put(self, key: K, value: V, seconds: float) -> None:
        if len(self._entries) >= MAX_ENTRIES:
            self._entries.pop(next(iter(self._entries)))  # the oldest
        self._entries[key] = value, clock.now() + seconds
