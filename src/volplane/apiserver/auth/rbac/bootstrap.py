"""The bootstrap roles in the store: made where they are missing, completed where they hold too little.

A role whose `autoupdate` annotation says false stays as its owner left it; one that was deleted comes back at
the next start. Nothing is ever taken away. The subtle thing: they are written past the verbs, all at once, so
that a store on a disk commits them together.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
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
    wanted: Iterable[Resource] = (
        *policy.cluster_roles(),
        *policy.cluster_role_bindings(),
        *policy.roles(),
        *policy.role_bindings(),
    )
    now = clock.stamp()
    await asyncio.gather(*(_ensure(backend, obj, now) for obj in wanted))


async def _ensure(backend: Backend, wanted: Resource, now: str) -> None:
    entry = backend.registry.of(type(wanted))
    key = entry.key(wanted.namespace, wanted.name)
    record = await backend.store.get(key)
    try:
        if record is None:
            await _create(backend, key, wanted, now)
        elif (better := add_missing(entry.watch_cache.object(record), wanted)) is not None:
            await backend.store.update(key, entry.access.encode_stored(better), revision=record.revision)
    except (KeyExists, StaleRevision, KeyMissing):  # another server over the same store was faster
        return


async def _create(backend: Backend, key: str, wanted: Resource, now: str) -> None:
    entry = backend.registry.of(type(wanted))
    meta = structs.replace(wanted.metadata, uid=str(uuid.uuid4()), creation_timestamp=now)
    made = structs.replace(wanted, metadata=meta)
    value = entry.access.encode_stored(made)
    await commit_write(entry, made, value, backend.store.create(key, value))


def add_missing(held: Any, wanted: Any) -> Any | None:
    """What is there with all that should be there, or None when nothing is missing."""
    if held.metadata.annotations.get(policy.AUTOUPDATE) == "false":
        return None
    match wanted:
        case ClusterRole() if wanted.aggregation_rule is not None:
            return _with_aggregation(held, wanted)
        case ClusterRole() | Role():
            others = [rule for rule in wanted.rules if rule not in held.rules]
            more = tuple(rule for rule in others if missing_rules(held.rules, [rule]))
            return structs.replace(held, rules=(*held.rules, *more)) if more else None
        case ClusterRoleBinding() | RoleBinding():
            absent = tuple(subject for subject in wanted.subjects if subject not in held.subjects)
            same = held.role_ref == wanted.role_ref
            return structs.replace(held, subjects=(*held.subjects, *absent)) if absent and same else None
    return None


def _with_aggregation(held: ClusterRole, wanted: ClusterRole) -> ClusterRole | None:
    if held.aggregation_rule == wanted.aggregation_rule:
        return None
    return structs.replace(held, aggregation_rule=wanted.aggregation_rule)
