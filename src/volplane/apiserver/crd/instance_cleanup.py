"""Delete the objects of a deleted CustomResourceDefinition, then the definition.

The definition waits for objects with finalizers. Another server that has not seen the deletion yet may still
accept an object, so leftovers are deleted once more at the end.
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
from volplane.apiserver.backend import Backend
from volplane.apiserver.crd.custom.serving import overlaps_built_in
from volplane.apiserver.crd.definition.conditions import (
    CLEANUP,
    TERMINATING,
    condition,
    is_established,
    storage_version,
    with_condition,
)
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.verbs.collection import delete_collection
from volplane.apiserver.verbs.list import ListOptions
from volplane.base import clock
from volplane.store import KeyMissing, RevisionCompacted, StaleRevision, StoreRecord, WatchOverrun

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
REPORT_SECONDS = 60.0  # before the condition reports that objects remain

Modify = Callable[[str, Callable[[Definition, StoreRecord], Awaitable[Definition]]], Awaitable[None]]


async def remove_instances(backend: Backend, definition: Definition, modify: Modify) -> None:
    """Delete all objects, wait until they are gone, and remove the definition's finalizer."""
    report = partial(_report, definition, modify)
    if overlaps_built_in(definition):
        await report(OVERLAPS, finished=True)
        return
    if is_established(definition):
        await report(IN_PROGRESS)
        entry = _entry(backend, definition)
        if entry is not None:
            try:
                await delete_all(backend, entry)
            except APIError as error:
                message = f"could not issue all deletes: {error}"
                await report(condition(TERMINATING, "True", "InstanceDeletionFailed", message))
                raise
            await wait_until_empty(backend, entry, waiting=partial(report, REMAINING))
    await report(DONE if is_established(definition) else NEVER, finished=True)
    await _delete_leftovers(backend, definition)


async def _report(
    definition: Definition, modify: Modify, reported: Condition, *, finished: bool = False
) -> None:
    """Set a condition; `finished`: also remove the finalizer."""

    async def set_condition(old: Definition, record: StoreRecord) -> Definition:
        if old.uid != definition.uid:  # recreated with the same name
            return old
        new = with_condition(old, reported, clock.stamp())
        if not finished:
            return new
        left = tuple(f for f in new.metadata.finalizers if f != CLEANUP)
        return structs.replace(new, metadata=structs.replace(new.metadata, finalizers=left))

    await modify(definition.name, set_condition)


def _entry(backend: Backend, definition: Definition) -> ServedResource | None:
    """Return the served resource of any version; all versions share one store prefix."""
    spec, plural = definition.spec, definition.status.accepted_names.plural
    storage = storage_version(spec.versions)
    names = [v.name for v in spec.versions]
    for name in ([storage.name] if storage else []) + names:
        found = backend.registry.find(spec.group, name, plural)
        if found is not None:
            return found
    return None


async def delete_all(backend: Backend, entry: ServedResource, namespace: str = "") -> None:
    call = backend.system_call("deletecollection", entry, namespace=namespace)
    await delete_collection(backend, entry, call, ListOptions(), DeleteOptions())


async def wait_until_empty(
    backend: Backend,
    entry: ServedResource,
    namespace: str = "",
    waiting: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Delete objects until none are left; `waiting` is called periodically meanwhile."""
    place = entry.namespace_prefix(namespace)
    while True:
        listing = await backend.store.list(place)
        if not listing.records:
            return
        try:
            async with (
                asyncio.timeout(REPORT_SECONDS),
                backend.store.watch(place, revision=listing.revision) as events,
            ):
                await _wait_until_gone(events, {r.key for r in listing.records})
        except (RevisionCompacted, WatchOverrun):
            continue
        except TimeoutError:
            if waiting is not None:
                await waiting()
        await delete_all(backend, entry, namespace)  # objects created meanwhile


async def _wait_until_gone(events: Any, left: set[str]) -> None:
    async for batch in events:
        for event in batch:
            if event.record is None:
                left.discard(event.key)
            else:
                left.add(event.key)
        if not left:
            return


async def _delete_leftovers(backend: Backend, definition: Definition) -> None:
    """Delete objects that a later kind of the same name would find."""
    prefix = f"/registry/{definition.status.accepted_names.plural}.{definition.spec.group}/"
    there = await backend.store.get(
        f"/registry/customresourcedefinitions.apiextensions.k8s.io/{definition.name}"
    )
    if there is not None or not is_established(definition):
        return
    for record in (await backend.store.list(prefix)).records:
        try:
            await backend.store.delete(record.key, revision=record.revision)
        except (KeyMissing, StaleRevision):
            continue
