"""Update: the loop that every change of a stored object goes through, by PUT, PATCH or subresource.

The object is read, changed, validated and written back if it is still the one that was read; otherwise
everything is repeated on the newer one. A change without effect writes nothing. The write that removes the
last finalizer of an object marked for deletion also removes the object.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from msgspec import structs

from volplane.api.errors import BadRequest, Causes, Conflict, Invalid, NotFound, invalid
from volplane.api.meta import ObjectMeta
from volplane.apiserver import cpu_offload, metadata
from volplane.apiserver.apply import tracking
from volplane.apiserver.apply.managed import Entries
from volplane.apiserver.backend import Backend, WriteResult, check_size
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.verbs.create import commit_write, create, resolve_namespace
from volplane.store import KeyMissing, StaleRevision, StoreRecord

Owners = Callable[[ServedResource, ApiCall, Any, Any, Entries], Entries]
Change = Callable[
    [Any, StoreRecord], Awaitable[Any]
]  # returns the object that the writer wants, from the stored one


class UpdatePart(NamedTuple):
    """Which part of an object an endpoint writes, and how it is validated."""

    prepare: Callable[[ApiCall, Any, Any], Any]
    validate: Callable[[ApiCall, Any, Any], Causes]
    counts: bool = True  # whether a changed spec increments the generation
    owners: Owners = tracking.updated_owners


def _keep_new(call: ApiCall, old: Any, new: Any) -> Any:
    return new


def _no_causes(call: ApiCall, old: Any, new: Any) -> Causes:
    return []


# For writes by the server itself: no preparation, validation, or owners.
SERVER_WRITE = UpdatePart(_keep_new, _no_causes, counts=False, owners=tracking.unchanged_owners)


async def update(backend: Backend, entry: ServedResource, call: ApiCall, obj: Any) -> WriteResult:
    """PUT: replace the stored object."""
    meta = entry.access.metadata(obj)
    check_name(call, meta)
    resolve_namespace(entry, call, meta.namespace)

    async def replace(old: Any, record: StoreRecord) -> Any:
        return obj

    try:
        return await modify(backend, entry, call, replace)
    except NotFound:
        if not entry.kind.create_on_update or call.subresource:
            raise
        if meta.uid:
            why = f"Precondition failed: UID in precondition: {meta.uid}, UID in object meta: "
            raise Conflict.of(entry.kind, call.name, why) from None
        call.check_access("create")
        bare = entry.access.with_metadata(obj, structs.replace(meta, resource_version=""))
        return await create(backend, entry, call, bare)


def check_name(call: ApiCall, meta: ObjectMeta) -> None:
    if not meta.name:
        raise BadRequest(
            f"the name of the object ({call.name} based on URL) was undeterminable: name must be provided"
        )
    if meta.name != call.name:
        raise BadRequest(
            f"the name of the object ({meta.name}) does not match the name on the URL ({call.name})"
        )


async def modify(
    backend: Backend, entry: ServedResource, call: ApiCall, change: Change, part: UpdatePart | None = None
) -> WriteResult:
    """Change one stored object; by default `part` follows from the subresource of the call."""
    part = part or part_of(entry, call)
    while True:
        record = await backend.require(entry, call)
        old = entry.watch_cache.object(record)
        new = await change(old, record)
        try:
            return await _write_change(backend, entry, call, record, old, new, part)
        except (StaleRevision, KeyMissing):
            continue


async def _write_change(
    backend: Backend,
    entry: ServedResource,
    call: ApiCall,
    record: StoreRecord,
    old: Any,
    new: Any,
    part: UpdatePart,
) -> WriteResult:
    strategy, access = entry.strategy, entry.access
    check_version(entry, call.name, access.metadata(old), access.metadata(new), record.revision)
    size = call.size + len(record.value)
    new = await cpu_offload.run(size, call.warnings, _fill_defaults, entry, call, old, new, part)
    new = await strategy.admit_update(call, old, new)
    await backend.admission.update(call, old, new)
    new = await cpu_offload.run(size, call.warnings, _prepare_and_validate, entry, call, old, new, part)
    try:
        await backend.admission.validate_update(call, old, new)
        return await commit(backend, entry, call, record, old, new)
    finally:
        call.release()


def _fill_defaults(entry: ServedResource, call: ApiCall, old: Any, new: Any, part: UpdatePart) -> Any:
    """Keep the server's metadata fields, set defaults and owners."""
    access = entry.access
    was, wants = access.metadata(old), access.metadata(new)
    new = access.with_metadata(new, metadata.keep_server_fields(was, wants))
    new = entry.strategy.defaults(new, old)
    owners = part.owners(entry, call, old, new, wants.managed_fields)
    if owners is not was.managed_fields:
        meta = structs.replace(access.metadata(new), managed_fields=owners)
        new = access.with_metadata(new, meta)
    return new


def _prepare_and_validate(entry: ServedResource, call: ApiCall, old: Any, new: Any, part: UpdatePart) -> Any:
    new = part.prepare(call, old, new)
    if part.counts:
        new = _count_generation(entry, old, new)
    _validate(entry, call, old, new, part)
    return new


def check_version(
    entry: ServedResource, name: str, was: ObjectMeta, wants: ObjectMeta, revision: int
) -> None:
    """Check resourceVersion (optimistic locking) and uid."""
    if wants.resource_version in ("", "0"):
        if not entry.kind.unconditional_update:
            cause = invalid("metadata.resourceVersion", 0, "must be specified for an update")
            # Named by its plural, because upstream's storage layer raises this error.
            raise Invalid.of(entry.kind.plural, name, [cause], group=entry.kind.group)
    elif wants.resource_version != str(revision):
        raise Conflict.of(entry.kind, name)
    if wants.uid and wants.uid != was.uid:
        why = f"Precondition failed: UID in precondition: {wants.uid}, UID in object meta: {was.uid}"
        raise Conflict.of(entry.kind, name, why)


def part_of(entry: ServedResource, call: ApiCall) -> UpdatePart:
    strategy = entry.strategy
    if call.subresource == "status":
        return UpdatePart(strategy.prepare_status, strategy.validate_status, counts=False)
    return UpdatePart(strategy.prepare_update, strategy.validate_update)


def _count_generation(entry: ServedResource, old: Any, new: Any) -> Any:
    if not entry.kind.generation or not entry.strategy.spec_changed(old, new):
        return new
    meta = entry.access.metadata(new)
    return entry.access.with_metadata(new, structs.replace(meta, generation=meta.generation + 1))


def _validate(entry: ServedResource, call: ApiCall, old: Any, new: Any, part: UpdatePart) -> None:
    was, becomes = entry.access.metadata(old), entry.access.metadata(new)
    causes = [*metadata.validate_change(entry.strategy, was, becomes), *part.validate(call, old, new)]
    if causes:
        raise Invalid.of(entry.kind, call.name, causes)


async def commit(
    backend: Backend, entry: ServedResource, call: ApiCall, record: StoreRecord, old: Any, new: Any
) -> WriteResult:
    """Write the object unless nothing changed; remove it if nothing keeps it any more."""
    if is_removable(entry, new):
        return await remove(backend, entry, call, record, new)
    new, value = await cpu_offload.run(call.size + len(record.value), [], _to_store, entry, old, new)
    if value == record.value or (len(value) == len(record.value) and new == old):
        return WriteResult(entry, old, record.value, record.revision)
    check_size(value, record.value)
    if call.dry_run:
        return WriteResult(entry, new, value, record.revision)
    return await commit_write(entry, new, value, backend.update(call, entry, record, value, old, new))


def _to_store(entry: ServedResource, old: Any, new: Any) -> tuple[Any, bytes]:
    new = tracking.drop_time_only_change(entry, old, new)
    return new, entry.access.encode_stored(new)


def is_removable(entry: ServedResource, obj: Any) -> bool:
    meta = entry.access.metadata(obj)
    return (
        meta.deletion_timestamp is not None
        and not meta.finalizers
        and not meta.deletion_grace_period_seconds
        and entry.strategy.is_removable(obj)
    )


async def remove(
    backend: Backend, entry: ServedResource, call: ApiCall, record: StoreRecord, obj: Any
) -> WriteResult:
    value = entry.access.encode_stored(obj)
    if call.dry_run:
        return WriteResult(entry, obj, value, record.revision, gone=True)
    event = await backend.delete(call, entry, record, obj)
    meta = structs.replace(entry.access.metadata(obj), resource_version=str(event.revision))
    return WriteResult(entry, entry.access.with_metadata(obj, meta), value, event.revision, gone=True)
