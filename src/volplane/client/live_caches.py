"""Caches that follow the cluster, for readers that may not read everything.

A kind that may not be read stays empty, and is noted in `unread`, so that the reader can say so. If a kind
may not be read in all namespaces, it is followed in one namespace.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from volplane.api import kinds
from volplane.api.errors import APIError, Forbidden, NotFound, Unauthorized
from volplane.api.meta import Resource
from volplane.client.cache import Cache, Caches
from volplane.client.snapshot_cache import SnapshotCaches
from volplane.client.transport import Transport

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Resource)


class LiveCaches(Caches):
    def __init__(self, transport: Transport, *, namespace: str = "") -> None:
        """`namespace`: follow only this one where not all may be read."""
        super().__init__(transport)
        self.unread: dict[str, str] = {}  # kind → why it is missing or incomplete
        self._near = namespace

    def get(self, type: type[T], *, namespace: str = "", labels: str = "", fields: str = "") -> Cache[T]:
        key = (type, namespace, labels, fields)
        made: Cache[T] | None = self._caches.get(key)
        if made is None:
            made = self._caches[key] = self._make(type, namespace, labels, fields)
        return made

    def _make(self, type: type[T], namespace: str, labels: str, fields: str) -> Cache[T]:
        cache = Cache(self._transport, type, namespace=namespace, labels=labels, fields=fields)
        self._tasks.start(self._follow(cache, bool(namespace)), repr(cache))
        return cache

    async def _follow(self, cache: Cache[Any], is_narrow: bool) -> None:
        what = kinds.of(cache.type)
        refused = await _find_refusal(cache.list_now)
        if refused is None:
            await cache.run()
        elif isinstance(refused, NotFound):  # the cluster does not serve this kind
            cache.fill(())
        elif not what.namespaced or not self._near or is_narrow:
            self.unread[what.plural] = str(refused)
            cache.fill(())
        else:
            await self._follow_one_namespace(cache, refused)

    async def _follow_one_namespace(self, cache: Cache[Any], refused: APIError) -> None:
        what = kinds.of(cache.type)
        cache.restrict(self._near)
        if await _find_refusal(cache.list_now) is not None:
            self.unread[what.plural] = str(refused)
            cache.fill(())
            return
        self.unread[what.plural] = f"only those of namespace {self._near} may be read"
        await cache.run()


class FrozenCaches(SnapshotCaches):
    """What live caches have now, for readers that run views and plans on objects that do not change."""

    def __init__(self, live: LiveCaches) -> None:
        super().__init__(live._transport)
        self.unread = live.unread
        self._live = live

    def get(self, type: type[T], *, namespace: str = "", labels: str = "", fields: str = "") -> Cache[T]:
        key = (type, namespace, labels, fields)
        made: Cache[T] | None = self._caches.get(key)
        if made is None:
            made = Cache(self._transport, type, namespace=namespace, labels=labels, fields=fields)
            self._caches[key] = made
            # Objects of one namespace are taken from the cache of all, which is followed anyway.
            followed = self._live.get(type, labels=labels, fields=fields)
            if followed.is_synced:
                _copy(followed, made, namespace)
            else:
                self._tasks.start(_copy_when_synced(followed, made, namespace), repr(made))
        return made


async def _copy_when_synced(followed: Cache[T], made: Cache[T], namespace: str) -> None:
    await followed.wait_synced()
    _copy(followed, made, namespace)


def _copy(followed: Cache[T], made: Cache[T], namespace: str) -> None:
    made.fill(followed.namespace(namespace) if namespace else followed.all(), followed.revision)


async def _find_refusal(read: Callable[[], Awaitable[None]]) -> APIError | None:
    """Why a kind may not be read; None if it may, or if that is not known yet."""
    try:
        await read()
    except (Forbidden, NotFound, Unauthorized) as error:
        return error
    except (APIError, TimeoutError) as error:
        log.debug("%s", error)  # `run` tries again
    return None
