"""The end of a kind: its objects are deleted like any others, and then the definition goes.

Objects with finalizers stay until those are gone, and the definition with them. The subtle thing: a server
that has not seen the deletion yet may still let an object in, so the place is swept once more at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from msgspec import structs

from volplane.api.apiextensions import CustomResourceDefinition as Definition
from volplane.api.apiextensions import CustomResourceDefinitionCondition as Condition
from volplane.api.errors import APIError
from volplane.api.meta import DeleteOptions
from volplane.apiserver.auth.users import SYSTEM
from volplane.apiserver.backend import Backend
from volplane.apiserver.crd.custom.serving import overlaps
from volplane.apiserver.crd.definition.conditions import (
    CLEANUP,
    TERMINATING,
    condition,
    is_established,
    storage_version,
    with_condition,
)
from volplane.apiserver.registry import Entry
from volplane.apiserver.strategy import Call
from volplane.apiserver.verbs.collection import delete_collection
from volplane.apiserver.verbs.list import Asked
from volplane.base import clock
from volplane.store import Compacted, Missing, Overrun, Record, Stale

IN_PROGRESS = condition(
    TERMINATING, "True", "InstanceDeletionInProgress", "CustomResource deletion is in progress"
)
NEVER = condition(TERMINATING, "False", "NeverEstablished", "resource was never established")
OVERLAPS = condition(
    TERMINATING, "False", "OverlappingBuiltInResource", "instances overlap with built-in resources in storage"
)
DONE = condition(TERMINATING, "False", "InstanceDeletionCompleted", "removed all instances")
REMAINING = condition(
    TERMINATING,
    "True",
    "InstanceDeletionCheck",
    "could not confirm zero CustomResources remaining: context deadline exceeded",
)
LOOK = 60.0  # seconds until it is said that objects remain

Modify = Callable[[str, Callable[[Definition, Record], Awaitable[Definition]]], Awaitable[None]]


async def remove_instances(backend: Backend, definition: Definition, modify: Modify) -> None:
    """Delete all objects, wait until they are gone, and let the definition go."""
    last = NEVER
    if overlaps(definition):
        await modify(definition.name, _says(definition.uid, OVERLAPS, finished=True))
        return
    if is_established(definition):
        await _tell(definition, modify, IN_PROGRESS)
        entry = _entry(backend, definition)
        if entry is not None:
            try:
                await delete_all(backend, entry)
            except APIError as error:
                told = f"could not issue all deletes: {error}"
                await _tell(
                    definition, modify, condition(TERMINATING, "True", "InstanceDeletionFailed", told)
                )
                raise
            await until_empty(backend, entry, waiting=partial(_tell, definition, modify, REMAINING))
        last = DONE
    await modify(definition.name, _says(definition.uid, last, finished=True))
    await _sweep(backend, definition)


async def _tell(definition: Definition, modify: Modify, told: Condition) -> None:
    await modify(definition.name, _says(definition.uid, told))


def _entry(backend: Backend, definition: Definition) -> Entry | None:
    """Any version will do: they all store at one place."""
    spec, plural = definition.spec, definition.status.accepted_names.plural
    storage = storage_version(spec.versions)
    names = [v.name for v in spec.versions]
    for name in ([storage.name] if storage else []) + names:
        found = backend.registry.find(spec.group, name, plural)
        if found is not None:
            return found
    return None


def _says(
    uid: str, told: Condition, *, finished: bool = False
) -> Callable[[Definition, Record], Awaitable[Definition]]:
    async def changed(old: Definition, record: Record) -> Definition:
        if old.uid != uid:  # another of the same name
            return old
        new = with_condition(old, told, clock.stamp())
        if not finished:
            return new
        left = tuple(f for f in new.metadata.finalizers if f != CLEANUP)
        return structs.replace(new, metadata=structs.replace(new.metadata, finalizers=left))

    return changed


async def delete_all(backend: Backend, entry: Entry, namespace: str = "") -> None:
    call = Call("deletecollection", entry.kind, SYSTEM, backend.reader, clock.wall(), namespace=namespace)
    await delete_collection(backend, entry, call, Asked(), DeleteOptions())


async def until_empty(
    backend: Backend, entry: Entry, namespace: str = "", waiting: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Until a place in the store is empty; `waiting` is called now and then while it is not."""
    place = entry.scope(namespace)
    while True:
        listing = await backend.store.list(place)
        if not listing.records:
            return
        try:
            async with asyncio.timeout(LOOK), backend.store.watch(place, revision=listing.revision) as events:
                await _gone(events, {r.key for r in listing.records})
        except (Compacted, Overrun):
            continue
        except TimeoutError:
            if waiting is not None:
                await waiting()
        await delete_all(backend, entry, namespace)  # whatever came meanwhile


async def _gone(events: Any, left: set[str]) -> None:
    async for batch in events:
        for event in batch:
            if event.record is None:
                left.discard(event.key)
            else:
                left.add(event.key)
        if not left:
            return


async def _sweep(backend: Backend, definition: Definition) -> None:
    """Nothing may wait here for a later kind of the same name."""
    prefix = f"/registry/{definition.status.accepted_names.plural}.{definition.spec.group}/"
    there = await backend.store.get(
        f"/registry/customresourcedefinitions.apiextensions.k8s.io/{definition.name}"
    )
    if there is not None or not is_established(definition):
        return
    for record in (await backend.store.list(prefix)).records:
        try:
            await backend.store.delete(record.key, revision=record.revision)
        except (Missing, Stale):
            continue
