"""Create: fill, admit, check, store.

The subtle thing: with generateName a name that is taken is no failure but another try with another name.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from msgspec import structs

from volplane.api import errors, names
from volplane.api.errors import AlreadyExists, APIError, BadRequest, Cause, Forbidden, Invalid, NotFound
from volplane.apiserver import effort, metadata
from volplane.apiserver.apply import tracking
from volplane.apiserver.apply.managed import Entries
from volplane.apiserver.backend import Backend, Written, check_size
from volplane.apiserver.registry import Entry
from volplane.apiserver.strategy import Call
from volplane.store import Exists

ATTEMPTS = 8  # at a free name for generateName


class RevisionGiven(APIError):
    """Upstream answers this with a 500 that has no reason, and clients have learnt to expect that."""

    reason = ""


async def create(
    backend: Backend, entry: Entry, call: Call, obj: Any, *, owners: Entries | None = None
) -> Written:
    """`owners` are those that an apply has worked out."""
    strategy, shape = entry.strategy, entry.shape
    meta = shape.metadata(obj)
    if meta.resource_version:
        raise RevisionGiven("resourceVersion should not be set on objects to be created")
    fresh = structs.replace(
        meta,
        namespace=placed(entry, call, meta.namespace),
        deletion_timestamp=None,
        deletion_grace_period_seconds=None,
    )
    obj = shape.with_metadata(obj, fresh)
    if entry.kind.namespaced:
        await require_namespace(backend, entry, call, meta.name)
    obj = await effort.run(call.size, call.warnings, _filled, entry, call, obj, owners)
    obj = await strategy.admit_create(call, obj)
    await backend.admission.create(call, obj)
    return await _store(backend, entry, call, obj)


def _filled(entry: Entry, call: Call, obj: Any, owners: Entries | None) -> Any:
    """With its defaults, and with its owners."""
    obj = entry.strategy.defaults(obj)
    return _owned(entry, obj, tracking.begun(entry, call, obj) if owners is None else owners)


def _owned(entry: Entry, obj: Any, owners: Entries) -> Any:
    meta = entry.shape.metadata(obj)
    if not owners and not meta.managed_fields:
        return obj
    return entry.shape.with_metadata(obj, structs.replace(meta, managed_fields=owners))


def placed(entry: Entry, call: Call, namespace: str) -> str:
    """The namespace an object belongs to: the URL's, which the object may repeat but not contradict."""
    if not entry.kind.namespaced:
        return ""
    if namespace and call.namespace and namespace != call.namespace:
        raise BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    return call.namespace or namespace


async def require_namespace(backend: Backend, entry: Entry, call: Call, name: str) -> None:
    """Nothing is created in a namespace that does not exist or is on its way out."""
    spaces = backend.namespaces
    record = await backend.record(spaces, "", call.namespace)
    if record is None:
        raise NotFound.of(spaces.kind, call.namespace)
    if spaces.feed.object(record).is_deleting:
        cause = Cause(
            "NamespaceTerminating", f"namespace {call.namespace} is being terminated", "metadata.namespace"
        )
        why = f"unable to create new content in namespace {call.namespace} because it is being terminated"
        raise Forbidden.to(entry.kind, name, why, [cause])


async def _store(backend: Backend, entry: Entry, call: Call, obj: Any) -> Written:
    shape = entry.shape
    meta = metadata.born(
        call, shape.metadata(obj), generation=1 if entry.facts.generation == "counted" else 0
    )
    tries = ATTEMPTS if meta.generate_name and not meta.name else 1
    name = meta.name
    for _ in range(tries):
        name = meta.name or (names.generate(meta.generate_name) if meta.generate_name else "")
        named = shape.with_metadata(obj, structs.replace(meta, name=name))
        named = await effort.run(call.size, call.warnings, _checked, entry, call, named)
        await backend.admission.validate_create(call, named)
        if entry.kind.namespaced and call.size > effort.LARGE:  # it took its time beside the loop
            await require_namespace(backend, entry, call, name)
        try:
            return await _commit(backend, entry, call, named, name)
        except Exists:
            continue
    raise await _taken(backend, entry, call, name, generated=tries > 1)


def _checked(entry: Entry, call: Call, obj: Any) -> Any:
    strategy = entry.strategy
    obj = strategy.prepare_create(call, obj)
    meta = entry.shape.metadata(obj)
    causes = metadata.validate(strategy, meta) + strategy.validate_create(call, obj)
    if causes:
        raise Invalid.of(entry.kind, meta.name or meta.generate_name, causes)
    return obj


async def _commit(backend: Backend, entry: Entry, call: Call, obj: Any, name: str) -> Written:
    key = entry.key(call.namespace, name)
    value = entry.shape.stored(obj)
    check_size(value)
    if call.dry_run:
        if await backend.store.get(key) is not None:
            raise Exists(key)
        return Written(entry, obj, value, 0, created=True)
    return await stored(entry, obj, value, backend.create(call, entry, key, value), created=True)


async def stored(
    entry: Entry, obj: Any, value: bytes, write: Awaitable[int], *, created: bool = False
) -> Written:
    """The object as readers will see it; they are told beforehand, so that none of them has to decode it."""
    entry.feed.expect(value, obj)
    try:
        revision = await write
    except BaseException:
        entry.feed.given_up(value)
        raise
    return Written(entry, entry.feed.written(value, obj, revision), value, revision, created=created)


async def _taken(backend: Backend, entry: Entry, call: Call, name: str, *, generated: bool) -> APIError:
    record = await backend.record(entry, call.namespace, name)
    deleting = (
        record is not None and entry.shape.metadata(entry.feed.object(record)).deletion_timestamp is not None
    )
    error = errors.AlreadyExists.of(entry.kind, name, deleting=deleting)
    if not generated:
        return error
    told = f"{error.message}, the server was not able to generate a unique name for the object"
    return AlreadyExists(told, details={**error.details, "retryAfterSeconds": 1})
