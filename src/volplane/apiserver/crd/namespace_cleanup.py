"""Custom objects in a namespace that is deleted: they go too, and it stays until they are gone.

Whoever empties namespaces knows the built-in kinds; of the others the server itself takes care, because only
it knows which there are. Nothing new can come: creating in such a namespace is refused.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from volplane.api.core import Namespace
from volplane.api.errors import APIError, NotFound
from volplane.apiserver.auth.well_known_users import SYSTEM
from volplane.apiserver.backend import Backend
from volplane.apiserver.crd.instance_cleanup import delete_all, wait_until_empty
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.verbs.update import SERVER_WRITE, modify
from volplane.base import clock
from volplane.base.backoff import constant
from volplane.base.retry import retry
from volplane.base.tasks import KeyedTasks
from volplane.store import StoreClosed, StoreError, StoreRecord

log = logging.getLogger(__name__)

RETRY = constant(5.0)


class NamespaceCleanup:
    """An index of namespaces (see `auth.following`) that acts on what it sees."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._tasks: KeyedTasks[str, None] = KeyedTasks()

    def put(self, key: str, obj: Namespace) -> None:
        if obj.is_deleting and key not in self._tasks and self.has_custom_objects(key):
            self._tasks.start(key, self._empty(key), f"custom objects of namespace {key}")

    def drop(self, type: type[Any], key: str) -> None:
        """The task that emptied it ends by itself."""

    def has_custom_objects(self, namespace: str) -> bool:
        """Are there custom objects in it?"""
        return any(self._backend.store.scan(e.namespace_prefix(namespace)) for e in self._entries())

    def _entries(self) -> list[ServedResource]:
        """One per place in the store: all versions of a kind share it."""
        served = (e for e in self._backend.registry if e.kind.type is None and e.kind.namespaced)
        return list({entry.prefix: entry for entry in served}.values())

    async def _empty(self, namespace: str) -> None:
        def report(error: Exception) -> None:
            log.error("namespace %s is not emptied; it is tried again in a moment", namespace, exc_info=error)

        await retry(
            lambda: self._try_to_empty(namespace), on=(APIError, StoreError), backoff=RETRY, report=report
        )

    async def _try_to_empty(self, namespace: str) -> None:
        with suppress(NotFound, StoreClosed):
            for entry in self._entries():
                await delete_all(self._backend, entry, namespace)
                await wait_until_empty(self._backend, entry, namespace)
            await self._trigger_removal(namespace)

    async def _trigger_removal(self, namespace: str) -> None:
        """A write that changes nothing, but finds that nothing holds the namespace any more."""
        entry, backend = self._backend.namespaces, self._backend
        call = ApiCall("update", entry.kind, SYSTEM, backend.reader, clock.wall(), name=namespace)

        async def same(old: Namespace, record: StoreRecord) -> Namespace:
            return old

        await modify(backend, entry, call, same, SERVER_WRITE)

    async def close(self) -> None:
        await self._tasks.close()
