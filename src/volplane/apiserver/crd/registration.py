"""Register the kinds of stored definitions, and clean up after deleted ones.

The registrar watches the store: established definitions are served, removed ones are not, in the order of the
writes. Accepting freed names and deleting the objects of a deleted kind run in tasks, one at a time per
definition. Every server does this; a server that comes second finds nothing to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from msgspec import structs

from volplane.api.apiextensions import CustomResourceDefinition as Definition
from volplane.api.errors import APIError, NotFound
from volplane.apiserver.backend import Backend
from volplane.apiserver.crd.custom.serving import served_strategies
from volplane.apiserver.crd.custom.strategy import CustomStrategy
from volplane.apiserver.crd.definition.conditions import CLEANUP, NAMES_ACCEPTED, holds, is_terminating
from volplane.apiserver.crd.definition.strategy import update_status
from volplane.apiserver.crd.instance_cleanup import remove_instances
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.verbs.update import SERVER_WRITE, modify
from volplane.base import clock
from volplane.base.tasks import KeyedTasks
from volplane.store import StoreClosed, StoreError, StoreRecord

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0  # before retrying

Change = Callable[[Definition, StoreRecord], Awaitable[Definition]]


class ServedDefinition(NamedTuple):
    """A definition as it is served."""

    definition: Definition
    strategies: list[CustomStrategy]

    def matches(self, new: Definition) -> bool:
        old = self.definition
        return old.spec == new.spec and old.status.accepted_names == new.status.accepted_names


class CRDRegistrar:
    """A store index of definitions (see `auth.store_index`) that updates the registry."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._entry: ServedResource = backend.registry.of(Definition)
        self._known: dict[str, Definition] = {}
        self._served: dict[str, ServedDefinition] = {}
        self._tasks: KeyedTasks[str, None] = KeyedTasks()

    async def close(self) -> None:
        await self._tasks.close()

    # Changes in the store

    def put(self, key: str, obj: Definition) -> None:
        before = self._known.get(key)
        self._known[key] = obj
        self._serve(obj)
        if obj.is_deleting and CLEANUP in obj.metadata.finalizers:
            self._start_task(key, remove_instances(self._backend, obj, self._modify))
        if before is not None and before.status.accepted_names != obj.status.accepted_names:
            self._retry_waiting_names(obj)

    def drop(self, type: type[Any], key: str) -> None:
        gone = self._known.pop(key, None)
        served = self._served.pop(key, None)
        if served is not None:
            self._withdraw(served.strategies)
        if gone is not None:
            self._retry_waiting_names(gone)

    # Serving

    def _serve(self, definition: Definition) -> None:
        served = self._served.get(definition.name)
        if served is not None and served.strategies and served.matches(definition):
            for strategy in served.strategies:
                strategy.terminating = is_terminating(definition)
            return
        strategies = _strategies(definition)
        kept = {strategy.kind.version for strategy in strategies}
        if served is not None:
            self._withdraw(s for s in served.strategies if s.kind.version not in kept)
        for strategy in strategies:
            self._backend.registry.add(strategy.kind, strategy)
        self._served[definition.name] = ServedDefinition(definition, strategies)

    def _withdraw(self, gone: Iterable[CustomStrategy]) -> None:
        for strategy in gone:
            self._backend.registry.remove(strategy.kind)

    # Tasks

    def _retry_waiting_names(self, giver: Definition) -> None:
        for other in list(self._known.values()):
            if other.spec.group == giver.spec.group and not holds(other, NAMES_ACCEPTED):
                self._start_task(other.name, self._accept_names(other.name))

    def _start_task(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Start one task at a time per definition; a running task reads the newest state anyway."""
        if name in self._tasks:
            work.close()
            return
        self._tasks.start(name, self._run_task(name, work), f"definition {name}")

    async def _run_task(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (NotFound, StoreClosed):
            return
        except (APIError, StoreError):
            log.exception("cannot update CustomResourceDefinition %s; retrying", name)
            await asyncio.sleep(RETRY_SECONDS)
            self._tasks.discard(name)
            if (definition := self._known.get(name)) is not None:
                self.put(name, definition)

    async def _accept_names(self, name: str) -> None:
        """Accept names that another definition gave up."""

        async def accept(old: Definition, record: StoreRecord) -> Definition:
            return update_status(old, await self._backend.reader.list(Definition), clock.stamp())

        await self._modify(name, accept)

    async def _modify(self, name: str, change: Change) -> None:
        call = self._backend.system_call("update", self._entry, name, subresource="status")

        async def with_revision(old: Definition, record: StoreRecord) -> Definition:
            new = await change(old, record)
            meta = structs.replace(new.metadata, resource_version=str(record.revision))
            return structs.replace(new, metadata=meta)

        await modify(self._backend, self._entry, call, with_revision, SERVER_WRITE)


def _strategies(definition: Definition) -> list[CustomStrategy]:
    try:
        return list(served_strategies(definition))
    except Exception:  # one bad definition must not stop the others
        log.exception("cannot serve CustomResourceDefinition %s", definition.name)
        return []
