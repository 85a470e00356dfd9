"""Caches that are listed once and not updated, for tools that look at the present state.

A kind that may not be read stays empty, and is noted in `unread`, so that a tool can report it. If a kind may
not be read in all namespaces, it is read in one namespace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar, cast

from volplane.api import kinds
from volplane.api.errors import APIError, Forbidden, NotFound
from volplane.api.meta import Resource
from volplane.client.cache import Cache, Caches
from volplane.client.transport import Transport

T = TypeVar("T", bound=Resource)

LIST = 15.0  # timeout of one list, in seconds


class SnapshotCaches(Caches):
    def __init__(self, transport: Transport | None, *, namespace: str = "") -> None:
        """`namespace`: read only this one where not all may be read. Without a transport, the caches have
        only what is `put`.
        """
        super().__init__(cast("Transport", transport))
        self.unread: dict[str, str] = {}  # kind → why it is missing or incomplete
        self._near, self._nowhere = namespace, transport is None

    def get(self, type: type[T], *, namespace: str = "", labels: str = "", fields: str = "") -> Cache[T]:
        key = (type, namespace, labels, fields)
        made: Cache[T] | None = self._caches.get(key)
        if made is None:
            made = Cache(self._transport, type, namespace=namespace, labels=labels, fields=fields)
            self._caches[key] = made
            if self._nowhere:
                made.fill(())
            else:
                reading = self._read(made, namespace, labels, fields)
                self._tasks.start(reading, repr(made))
        return made

    def put(self, type: type[T], items: Iterable[T], *, namespace: str = "") -> None:
        """Set all objects of a kind."""
        made: Cache[T] = Cache(self._transport, type, namespace=namespace)
        made.fill(items)
        self._caches[type, namespace, "", ""] = made

    async def _read(self, cache: Cache[Any], namespace: str, labels: str, fields: str) -> None:
        what, items = kinds.of(cache.type), list[Any]()
        try:
            items = await self._list_allowed(cache.type, namespace, labels, fields)
        except NotFound:
            pass  # the cluster does not serve this kind
        except TimeoutError:
            self.unread[what.plural] = "no answer in time"
        except Exception as error:  # such as objects that cannot be decoded: continue with the other kinds
            self.unread[what.plural] = str(error)
        cache.fill(items)

    async def _list_allowed(self, type: type[T], namespace: str, labels: str, fields: str) -> list[T]:
        """All objects, or those of the one namespace if not all may be read."""
        what = kinds.of(type)
        try:
            return await self._list(type, namespace, labels, fields)
        except Forbidden as error:
            if not what.namespaced or not self._near or namespace:
                raise
            try:
                items = await self._list(type, self._near, labels, fields)
            except APIError:
                raise error from None
        self.unread[what.plural] = f"only those of namespace {self._near} may be read"
        return items

    async def _list(self, type: type[T], namespace: str, labels: str, fields: str) -> list[T]:
        async with asyncio.timeout(LIST):
            page = await self._transport.list(type, namespace, labels=labels, fields=fields)
        return list(page.items)
