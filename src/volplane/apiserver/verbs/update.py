"""Update: the one loop through which every change of a stored object goes, by PUT, PATCH or subresource.

The object is read, changed, judged and written back on condition that it is still the one that was read;
when it is not, the whole is done again on the newer one. A change that changes nothing writes nothing. The
subtle thing: the write that takes the last finalizer from an object marked for deletion is the one that
removes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from msgspec import structs

from volplane.api.errors import APIError, BadRequest, Cause, Conflict, Invalid, NotFound, invalid
from volplane.api.meta import ObjectMeta
from volplane.apiserver import effort, metadata
from volplane.apiserver.apply import tracking
from volplane.apiserver.apply.managed import Entries
from volplane.apiserver.backend import Backend, Written, check_size
from volplane.apiserver.registry import Entry
from volplane.apiserver.strategy import Call
from volplane.apiserver.verbs.create import create, placed, stored
from volplane.store import Missing, Record, Stale

Owners = Callable[[Entry, Call, Any, Any, Entries], Entries]
Change = Callable[[Any, Record], Awaitable[Any]]  # the object as the writer wants it, from the stored one


class Part(NamedTuple):
    """Which part of an object an endpoint writes, and who judges the result."""

    prepare: Callable[[Call, Any, Any], Any]
    validate: Callable[[Call, Any, Any], list[Cause]]
    counts: bool = True  # may begin a new generation
    owners: Owners = tracking.moved


def _new(call: Call, old: Any, new: Any) -> Any:
    return new


def _fine(call: Call, old: Any, new: Any) -> list[Cause]:
    return []


# A write of the server's own, judged by whoever makes it.
AS_IT_IS = Part(_new, _fine, counts=False, owners=tracking.kept)


async def update(backend: Backend, entry: Entry, call: Call, obj: Any) -> Written:
    """PUT: the object replaces the stored one."""
    meta = entry.shape.metadata(obj)
    check_name(call, meta)
    placed(entry, call, meta.namespace)

    async def replaced(old: Any, record: Record) -> Any:
        return obj

    try:
        return await modify(backend, entry, call, replaced)
    except NotFound:
        if not entry.facts.create_on_update or call.subresource:
            raise
        if meta.uid:
            why = f"Precondition failed: UID in precondition: {meta.uid}, UID in object meta: "
            raise Conflict.of(entry.kind, call.name, why) from None
        call.may("create")
        bare = entry.shape.with_metadata(obj, structs.replace(meta, resource_version=""))
        return await create(backend, entry, call, bare)


def check_name(call: Call, meta: ObjectMeta) -> None:
    if not meta.name:
        told = f"the name of the object ({call.name} based on URL) was undeterminable: name must be provided"
        raise BadRequest(told)
    if meta.name != call.name:
        told = f"the name of the object ({meta.name}) does not match the name on the URL ({call.name})"
        raise BadRequest(told)


async def modify(
    backend: Backend, entry: Entry, call: Call, change: Change, part: Part | None = None
) -> Written:
    """Change one stored object; without a `part` the subresource of the call decides."""
    part = part or part_of(entry, call)
    while True:
        record = await backend.record(entry, call.namespace, call.name)
        if record is None:
            raise NotFound.of(entry.kind, call.name)
        old = entry.feed.object(record)
        new = await change(old, record)
        try:
            return await _settle(backend, entry, call, record, old, new, part)
        except (Stale, Missing):
            continue


async def _settle(
    backend: Backend, entry: Entry, call: Call, record: Record, old: Any, new: Any, part: Part
) -> Written:
    strategy, shape = entry.strategy, entry.shape
    check_version(entry, call.name, shape.metadata(old), shape.metadata(new), record.revision)
    size = call.size + len(record.value)
    new = await effort.run(size, call.warnings, _filled, entry, call, old, new, part)
    new = await strategy.admit_update(call, old, new)
    await backend.admission.update(call, old, new)
    new = await effort.run(size, call.warnings, _checked, entry, call, old, new, part)
    await backend.admission.validate_update(call, old, new)
    return await commit(backend, entry, call, record, old, new)


def _filled(entry: Entry, call: Call, old: Any, new: Any, part: Part) -> Any:
    """With what the server keeps, with its defaults, and with its owners."""
    shape = entry.shape
    was, wants = shape.metadata(old), shape.metadata(new)
    new = shape.with_metadata(new, metadata.carried(was, wants))
    new = entry.strategy.defaults(new)
    owners = part.owners(entry, call, old, new, wants.managed_fields)
    if owners is not was.managed_fields:
        meta = structs.replace(shape.metadata(new), managed_fields=owners)
        new = shape.with_metadata(new, meta)
    return new


def _checked(entry: Entry, call: Call, old: Any, new: Any, part: Part) -> Any:
    new = part.prepare(call, old, new)
    if part.counts:
        new = _counted(entry, old, new)
    _validate(entry, call, old, new, part)
    return new


def check_version(entry: Entry, name: str, was: ObjectMeta, wants: ObjectMeta, revision: int) -> None:
    """Optimistic locking, and the identity of the object."""
    if wants.resource_version in ("", "0"):
        if not entry.facts.unconditional_update:
            told = invalid("metadata.resourceVersion", 0, "must be specified for an update")
            # By its plural: of all refusals of this sort, only this one is made by the store.
            raise Invalid.of(entry.kind.plural, name, [told], group=entry.kind.group)
    elif wants.resource_version != str(revision):
        raise Conflict.of(entry.kind, name)
    if wants.uid and wants.uid != was.uid:
        why = f"Precondition failed: UID in precondition: {wants.uid}, UID in object meta: {was.uid}"
        raise Conflict.of(entry.kind, name, why)


def part_of(entry: Entry, call: Call) -> Part:
    strategy = entry.strategy
    if call.subresource == "status":
        return Part(strategy.prepare_status, strategy.validate_status, counts=False)
    return Part(strategy.prepare_update, strategy.validate_update)


def _counted(entry: Entry, old: Any, new: Any) -> Any:
    if not entry.facts.generation or not entry.strategy.spec_changed(old, new):
        return new
    meta = entry.shape.metadata(new)
    return entry.shape.with_metadata(new, structs.replace(meta, generation=meta.generation + 1))


def _validate(entry: Entry, call: Call, old: Any, new: Any, part: Part) -> None:
    was, becomes = entry.shape.metadata(old), entry.shape.metadata(new)
    causes = metadata.validate_change(entry.strategy, was, becomes) + part.validate(call, old, new)
    if causes:
        raise Invalid.of(entry.kind, call.name, causes)


async def commit(backend: Backend, entry: Entry, call: Call, record: Record, old: Any, new: Any) -> Written:
    """Write what came out, unless nothing changed; remove it if this was what kept it."""
    if vanishes(entry, new):
        return await remove(backend, entry, call, record, new)
    new, value = await effort.run(call.size + len(record.value), [], _to_store, entry, old, new)
    if value == record.value or (len(value) == len(record.value) and new == old):
        return Written(entry, old, record.value, record.revision)
    check_size(value, record.value)
    if call.dry_run:
        return Written(entry, new, value, record.revision)
    return await stored(entry, new, value, backend.update(call, entry, record, value))


def _to_store(entry: Entry, old: Any, new: Any) -> tuple[Any, bytes]:
    new = tracking.settled(entry, old, new)
    return new, entry.shape.stored(new)


def vanishes(entry: Entry, obj: Any) -> bool:
    meta = entry.shape.metadata(obj)
    return (
        meta.deletion_timestamp is not None
        and not meta.finalizers
        and not meta.deletion_grace_period_seconds
        and entry.strategy.may_vanish(obj)
    )


async def remove(backend: Backend, entry: Entry, call: Call, record: Record, obj: Any) -> Written:
    value = entry.shape.stored(obj)
    if call.dry_run:
        return Written(entry, obj, value, record.revision, gone=True)
    event = await backend.delete(call, entry, record)
    meta = structs.replace(entry.shape.metadata(obj), resource_version=str(event.revision))
    return Written(entry, entry.shape.with_metadata(obj, meta), value, event.revision, gone=True)


def conflict(entry: Entry, name: str, why: str, below: str = "") -> APIError:
    resource = f"{entry.kind.plural}/{below}" if below else ""
    return Conflict.of(entry.kind, name, why, resource=resource)
