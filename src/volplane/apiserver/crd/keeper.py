"""Keeps the registry in step with the stored definitions, and lets go of definitions that are deleted.

It follows the store: what it sees established is served, what it sees gone is not, in the order in which it
was written. Names that became free and objects of a deleted kind are work for tasks, one at a time per
definition; every server does it, and whoever comes second finds nothing to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from msgspec import structs

from volplane.api.apiextensions import CustomResourceDefinition as Definition
from volplane.api.errors import APIError, NotFound
from volplane.apiserver.auth.users import SYSTEM
from volplane.apiserver.backend import Backend
from volplane.apiserver.crd.custom.serving import strategies
from volplane.apiserver.crd.custom.strategy import CustomStrategy
from volplane.apiserver.crd.definition.conditions import CLEANUP, NAMES_ACCEPTED, holds, is_terminating
from volplane.apiserver.crd.definition.strategy import settled
from volplane.apiserver.crd.finalizing import remove_instances
from volplane.apiserver.registry import Entry
from volplane.apiserver.strategy import Call
from volplane.apiserver.verbs.update import AS_IT_IS, modify
from volplane.base import clock
from volplane.store import Closed, Record, StoreError

log = logging.getLogger(__name__)

AGAIN = 5.0  # seconds until work that failed is tried again

Change = Callable[[Definition, Record], Awaitable[Definition]]


class Served:
    """What one definition has registered."""

    def __init__(self, definition: Definition, made: list[CustomStrategy]) -> None:
        self.spec = definition.spec
        self.names = definition.status.accepted_names
        self.strategies = made

    def is_as(self, definition: Definition) -> bool:
        return self.spec == definition.spec and self.names == definition.status.accepted_names


class Keeper:
    """An index of definitions (see `auth.following`) that acts on what it sees."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._entry: Entry = backend.registry.of(Definition)
        self._known: dict[str, Definition] = {}
        self._served: dict[str, Served] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # What is seen

    def put(self, key: str, obj: Definition) -> None:
        before = self._known.get(key)
        self._known[key] = obj
        self._serve(obj)
        if obj.is_deleting and CLEANUP in obj.metadata.finalizers:
            self._begin(key, remove_instances(self._backend, obj, self._modify))
        if before is not None and before.status.accepted_names != obj.status.accepted_names:
            self._names_are_free(obj)

    def drop(self, type: type[Any], key: str) -> None:
        gone = self._known.pop(key, None)
        served = self._served.pop(key, None)
        if served is not None:
            self._withdraw(served.strategies)
        if gone is not None:
            self._names_are_free(gone)

    # Serving

    def _serve(self, definition: Definition) -> None:
        served = self._served.get(definition.name)
        if served is not None and served.strategies and served.is_as(definition):
            for strategy in served.strategies:
                strategy.terminating = is_terminating(definition)
            return
        made = _strategies(definition)
        kept = {strategy.kind.version for strategy in made}
        if served is not None:
            self._withdraw(s for s in served.strategies if s.kind.version not in kept)
        for strategy in made:
            self._backend.registry.add(strategy.kind, strategy)
        self._served[definition.name] = Served(definition, made)

    def _withdraw(self, gone: Iterable[CustomStrategy]) -> None:
        for strategy in gone:
            self._backend.registry.remove(strategy.kind)

    # Work that takes time

    def _names_are_free(self, giver: Definition) -> None:
        for other in list(self._known.values()):
            if other.spec.group == giver.spec.group and not holds(other, NAMES_ACCEPTED):
                self._begin(other.name, self._settle(other.name))

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """One task at a time per definition; the running one reads the newest state anyway."""
        if name in self._tasks:
            work.close()
            return
        task = asyncio.create_task(self._do(name, work), name=f"definition {name}")
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._tasks.pop(name) if self._tasks.get(name) is done else None)

    async def _do(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (NotFound, Closed):
            return
        except (APIError, StoreError):
            log.exception("definition %s is not done with; it is tried again in a moment", name)
            await asyncio.sleep(AGAIN)
            del self._tasks[name]
            if (definition := self._known.get(name)) is not None:
                self.put(name, definition)

    async def _settle(self, name: str) -> None:
        """Names that another gave up are taken by who waits for them."""

        async def again(old: Definition, record: Record) -> Definition:
            return settled(old, await self._backend.reader.list(Definition), clock.stamp())

        await self._modify(name, again)

    async def _modify(self, name: str, change: Change) -> None:
        call = Call(
            "update",
            self._entry.kind,
            SYSTEM,
            self._backend.reader,
            clock.wall(),
            name=name,
            subresource="status",
        )

        async def changed(old: Definition, record: Record) -> Definition:
            new = await change(old, record)
            meta = structs.replace(new.metadata, resource_version=str(record.revision))
            return structs.replace(new, metadata=meta)

        await modify(self._backend, self._entry, call, changed, AS_IT_IS)


def _strategies(definition: Definition) -> list[CustomStrategy]:
    try:
        return list(strategies(definition))
    except Exception:  # a definition that other code let through must not stop the others
        log.exception("%s cannot be served", definition.name)
        return []
