"""What this scheduler has decided about an object before the cache shows it.

An assumption holds for the revision of the object that it was made from. As soon as the cache shows a newer
revision, that one counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from volplane.api.meta import Resource
from volplane.client.cache import Cache

T = TypeVar("T", bound=Resource)


class AssumeCache(Generic[T]):
    def __init__(self, cache: Cache[T]) -> None:
        self.cache = cache
        self._assumptions: dict[str, T] = {}

    def at(self, key: str) -> T | None:
        cached = self.cache.at(key)
        assumed = self._assumptions.get(key)
        if assumed is None:
            return cached
        if cached is None or cached.uid != assumed.uid or cached.revision > assumed.revision:
            return cached
        return assumed

    def put(self, obj: T) -> None:
        """`obj` has the revision of the object that it was made from."""
        self._assumptions[obj.key] = obj

    def drop(self, key: str) -> None:
        self._assumptions.pop(key, None)

    def __contains__(self, key: str) -> bool:
        return key in self._assumptions and self.at(key) is self._assumptions.get(key)

    def __iter__(self) -> Iterator[T]:
        return iter([obj for key in list(self._assumptions) if key in self and (obj := self.at(key))])
