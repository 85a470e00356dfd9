"""Delete: at once, after a grace period, or when the last finalizer is removed.

A DELETE of an object that has to wait is an update: it sets the deletion timestamp, the grace period, and the
finalizers of the propagation policy. Another DELETE can only shorten the grace period.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec import structs

from volplane.api.errors import Conflict, Invalid, invalid, not_supported
from volplane.api.meta import DeleteOptions, ObjectMeta
from volplane.apiserver.backend import Backend, WriteResult
from volplane.apiserver.metadata import FOREGROUND, ORPHAN
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.verbs.update import commit, remove
from volplane.base import clock
from volplane.store import KeyMissing, StaleRevision, StoreRecord

_POLICIES = ("Foreground", "Background", "Orphan")
_NEVER_COLLECTED = frozenset({"events", "events.events.k8s.io"})


async def delete(
    backend: Backend, entry: ServedResource, call: ApiCall, options: DeleteOptions
) -> WriteResult:
    check_options(options)
    while True:
        record = await backend.require(entry, call)
        old = entry.watch_cache.object(record)
        check_preconditions(entry, call.name, entry.access.metadata(old), record, options)
        await entry.strategy.admit_delete(call, old)
        await backend.admission.delete(call, old)
        try:
            return await _delete(backend, entry, call, record, old, options)
        except (StaleRevision, KeyMissing):
            continue


def check_options(options: DeleteOptions) -> None:
    """Raise Invalid for contradicting options."""
    causes = []
    if options.orphan_dependents is not None and options.propagation_policy is not None:
        detail = "orphanDependents and deletionPropagation cannot be both set"
        causes.append(invalid("propagationPolicy", options.propagation_policy, detail))
    if options.propagation_policy is not None and options.propagation_policy not in _POLICIES:
        allowed = (*_POLICIES, "nil")
        causes.append(not_supported("propagationPolicy", options.propagation_policy, allowed))
    if any(word != "All" for word in options.dry_run):
        causes.append(not_supported("dryRun", list(options.dry_run), ("All",)))
    if causes:
        raise Invalid.of("DeleteOptions", "", causes, group="meta.k8s.io")


def check_preconditions(
    entry: ServedResource, name: str, meta: ObjectMeta, record: StoreRecord, options: DeleteOptions
) -> None:
    wanted = options.preconditions
    if wanted is None:
        return
    if wanted.uid is not None and wanted.uid != meta.uid:
        why = (
            f"the UID in the precondition ({wanted.uid}) does not match the UID in record ({meta.uid}). "
            "The object might have been deleted and then recreated"
        )
        raise _precondition_conflict(entry, name, why)
    if wanted.resource_version is not None and wanted.resource_version != str(record.revision):
        why = (
            f"the ResourceVersion in the precondition ({wanted.resource_version}) does not match the "
            f"ResourceVersion in record ({record.revision}). The object might have been modified"
        )
        raise _precondition_conflict(entry, name, why)


def _precondition_conflict(entry: ServedResource, name: str, why: str) -> Conflict:
    """As upstream, this conflict names the object by kind; all others name it by resource."""
    kind = entry.kind
    word = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    return Conflict.of(kind, name, why, resource=word, called=kind.kind)


async def _delete(
    backend: Backend,
    entry: ServedResource,
    call: ApiCall,
    record: StoreRecord,
    old: Any,
    options: DeleteOptions,
) -> WriteResult:
    access = entry.access
    meta = access.metadata(old)
    marked = _set_deletion_time(entry, call, old, meta, options)
    marked = structs.replace(marked, finalizers=_finalizers(entry, meta, options))
    waits = marked.finalizers or marked.deletion_grace_period_seconds
    if not waits and entry.strategy.is_removable(old):
        # Kinds with a grace period return their last state with the deletion timestamp and 0 seconds.
        last = access.with_metadata(old, marked) if entry.kind.graceful_deletion else old
        return await remove(backend, entry, call, record, last)
    new = access.with_metadata(old, marked)
    return await commit(backend, entry, call, record, old, entry.strategy.mark_deleted(call, new))


def _set_deletion_time(
    entry: ServedResource, call: ApiCall, old: Any, meta: ObjectMeta, options: DeleteOptions
) -> ObjectMeta:
    """Set the deletion time with the first DELETE; later ones may shorten it."""
    requested = options.grace_period_seconds
    if meta.deletion_timestamp is None:
        seconds = entry.strategy.grace(call, old, requested)
        return structs.replace(
            meta,
            deletion_timestamp=clock.stamp(call.now + timedelta(seconds=seconds)),
            deletion_grace_period_seconds=seconds,
            generation=meta.generation + 1 if meta.generation > 0 else meta.generation,
        )
    left = meta.deletion_grace_period_seconds or 0
    if requested is None or requested >= left:
        return meta
    seconds = max(requested, 0) if requested >= 0 else min(1, left)
    began = clock.parse(meta.deletion_timestamp) - timedelta(seconds=left)
    return structs.replace(
        meta,
        deletion_timestamp=clock.stamp(began + timedelta(seconds=seconds)),
        deletion_grace_period_seconds=seconds,
    )


def _finalizers(entry: ServedResource, meta: ObjectMeta, options: DeleteOptions) -> tuple[str, ...]:
    policy = _policy(entry, meta, options)
    kept = tuple(f for f in meta.finalizers if f not in (ORPHAN, FOREGROUND))
    match policy:
        case "Orphan":
            wanted = ORPHAN
        case "Foreground":
            wanted = FOREGROUND
        case _:
            return kept
    return meta.finalizers if wanted in meta.finalizers else (*kept, wanted)


def _policy(entry: ServedResource, meta: ObjectMeta, options: DeleteOptions) -> str:
    """Return the requested policy, else that of an earlier DELETE, else the kind's default."""
    if entry.resource in _NEVER_COLLECTED:
        return "Background"
    if options.propagation_policy is not None:
        return options.propagation_policy
    if options.orphan_dependents is not None:
        return "Orphan" if options.orphan_dependents else "Background"
    if ORPHAN in meta.finalizers:
        return "Orphan"
    if FOREGROUND in meta.finalizers:
        return "Foreground"
    return entry.kind.propagation
