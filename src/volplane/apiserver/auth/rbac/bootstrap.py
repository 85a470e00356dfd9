"""Create the bootstrap roles and bindings, and add rules and subjects that are missing.

A role whose `autoupdate` annotation is false is left alone; a deleted role comes back at the next start.
Nothing is ever removed. The roles are written directly to the store, concurrently, so that they share one
commit.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from msgspec import structs

from volplane.api.meta import Resource
from volplane.api.rbac import ClusterRole, ClusterRoleBinding, Role, RoleBinding
from volplane.apiserver.auth.rbac import policy
from volplane.apiserver.auth.rbac.rules import missing_rules
from volplane.apiserver.backend import Backend
from volplane.apiserver.verbs.create import commit_write
from volplane.base import clock
from volplane.store import KeyExists, KeyMissing, StaleRevision


async def bootstrap(backend: Backend) -> None:
    desired: Iterable[Resource] = (
        *policy.cluster_roles(),
        *policy.cluster_role_bindings(),
        *policy.roles(),
        *policy.role_bindings(),
    )
    now = clock.stamp()
    await asyncio.gather(*(_ensure(backend, obj, now) for obj in desired))


async def create_missing(backend: Backend, objects: Iterable[Resource]) -> None:
    """Create those of these cluster-scoped objects that do not exist, in the same way."""
    now = clock.stamp()

    async def ensure(obj: Resource) -> None:
        entry = backend.registry.of(type(obj))
        key = entry.key("", obj.name)
        if await backend.store.get(key) is None:
            with suppress(KeyExists):  # another server on the same store was faster
                await _create(backend, key, entry.strategy.defaults(obj), now)

    await asyncio.gather(*map(ensure, objects))


async def _ensure(backend: Backend, desired: Resource, now: str) -> None:
    entry = backend.registry.of(type(desired))
    key = entry.key(desired.namespace, desired.name)
    record = await backend.store.get(key)
    try:
        if record is None:
            await _create(backend, key, desired, now)
        elif (updated := add_missing(entry.watch_cache.object(record), desired)) is not None:
            await backend.store.update(key, entry.access.encode_stored(updated), revision=record.revision)
    except (KeyExists, StaleRevision, KeyMissing):  # another server on the same store was faster
        return


async def _create(backend: Backend, key: str, desired: Resource, now: str) -> None:
    entry = backend.registry.of(type(desired))
    meta = structs.replace(
        desired.metadata,
        uid=str(uuid.uuid4()),
        creation_timestamp=now,
        generation=1 if entry.kind.generation == "counted" else 0,
    )
    result = structs.replace(desired, metadata=meta)
    value = entry.access.encode_stored(result)
    await commit_write(entry, result, value, backend.store.create(key, value))


def add_missing(stored: Any, desired: Any) -> Any | None:
    """Return the stored role or binding with everything that is missing, or None if nothing is."""
    if stored.metadata.annotations.get(policy.AUTOUPDATE) == "false":
        return None
    match desired:
        case ClusterRole() if desired.aggregation_rule is not None:
            return _with_aggregation(stored, desired)
        case ClusterRole() | Role():
            others = [rule for rule in desired.rules if rule not in stored.rules]
            more = tuple(rule for rule in others if missing_rules(stored.rules, [rule]))
            return structs.replace(stored, rules=(*stored.rules, *more)) if more else None
        case ClusterRoleBinding() | RoleBinding():
            absent = tuple(subject for subject in desired.subjects if subject not in stored.subjects)
            same = stored.role_ref == desired.role_ref
            return structs.replace(stored, subjects=(*stored.subjects, *absent)) if absent and same else None
    return None


def _with_aggregation(stored: ClusterRole, desired: ClusterRole) -> ClusterRole | None:
    if stored.aggregation_rule == desired.aggregation_rule:
        return None
    return structs.replace(stored, aggregation_rule=desired.aggregation_rule)
