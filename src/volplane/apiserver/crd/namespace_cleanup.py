"""Delete the custom objects of a namespace that is being deleted; the namespace stays until they are gone.

The namespace controller deletes them, too; this also works without one. Creating objects in such a namespace
is refused.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from volplane.api.core import Namespace
from volplane.api.errors import APIError, NotFound
from volplane.apiserver.backend import Backend
from volplane.apiserver.crd.instance_cleanup import delete_all, wait_until_empty
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.verbs.update import SERVER_WRITE, modify
from volplane.base.backoff import constant
from volplane.base.retry import retry
from volplane.base.tasks import KeyedTasks
from volplane.store import StoreClosed, StoreError, StoreRecord

log = logging.getLogger(__name__)

RETRY = constant(5.0)  # before retrying


class NamespaceCleanup:
    """A store index of namespaces (see `auth.store_index`) with a cleanup task per deleted namespace."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._tasks: KeyedTasks[str, None] = KeyedTasks()

    def put(self, key: str, obj: Namespace) -> None:
        if obj.is_deleting and key not in self._tasks and self.has_custom_objects(key):
            self._tasks.start(key, self._empty(key), f"custom objects of namespace {key}")

    def drop(self, type: type[Any], key: str) -> None:
        """The cleanup task ends by itself."""

    def has_custom_objects(self, namespace: str) -> bool:
        """Return whether the namespace contains custom objects."""
        return any(self._backend.store.scan(e.namespace_prefix(namespace)) for e in self._entries())

    def _entries(self) -> list[ServedResource]:
        """Return one served resource per store prefix, which all versions of a kind share."""
        served = (e for e in self._backend.registry if e.kind.is_custom and e.kind.namespaced)
        return list({entry.prefix: entry for entry in served}.values())

    async def _empty(self, namespace: str) -> None:
        def report(error: Exception) -> None:
            log.error("cannot delete the custom objects of namespace %s; retrying", namespace, exc_info=error)

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
        """Write the namespace unchanged: the write notices that it can be removed now."""
        entry, backend = self._backend.namespaces, self._backend
        call = backend.system_call("update", entry, namespace)

        async def same(old: Namespace, record: StoreRecord) -> Namespace:
            return old

        await modify(backend, entry, call, same, SERVER_WRITE)

    async def close(self) -> None:
        await self._tasks.close()
