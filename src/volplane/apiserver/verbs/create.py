"""Create: default, admit, validate, store.

With generateName, a name that already exists causes another attempt with another name.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from msgspec import structs

from volplane.api import errors, names
from volplane.api.errors import AlreadyExists, APIError, BadRequest, Cause, Forbidden, Invalid, NotFound
from volplane.apiserver import cpu_offload, metadata
from volplane.apiserver.apply import tracking
from volplane.apiserver.apply.managed import Entries
from volplane.apiserver.backend import Backend, WriteResult, check_size
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.strategy import ApiCall
from volplane.store import KeyExists

ATTEMPTS = 8  # to generate a free name


class ResourceVersionSet(APIError):
    """As upstream: a 500 without a reason, which clients expect."""

    reason = ""


async def create(
    backend: Backend, entry: ServedResource, call: ApiCall, obj: Any, *, owners: Entries | None = None
) -> WriteResult:
    """`owners`: the managedFields that an apply has computed."""
    strategy, access = entry.strategy, entry.access
    meta = access.metadata(obj)
    if meta.resource_version:
        raise ResourceVersionSet("resourceVersion should not be set on objects to be created")
    fresh = structs.replace(
        meta,
        namespace=resolve_namespace(entry, call, meta.namespace),
        deletion_timestamp=None,
        deletion_grace_period_seconds=None,
    )
    obj = access.with_metadata(obj, fresh)
    if entry.kind.namespaced:
        await require_namespace(backend, entry, call, meta.name)
    obj = await cpu_offload.run(call.size, call.warnings, _fill_defaults, entry, call, obj, owners)
    obj = await strategy.admit_create(call, backend.admission.complete(call, obj))
    await backend.admission.create(call, obj)
    return await _store(backend, entry, call, obj)


def _fill_defaults(entry: ServedResource, call: ApiCall, obj: Any, owners: Entries | None) -> Any:
    """Set defaults and owners."""
    obj = entry.strategy.defaults(obj)
    return _with_owners(entry, obj, tracking.initial_owners(entry, call, obj) if owners is None else owners)


def _with_owners(entry: ServedResource, obj: Any, owners: Entries) -> Any:
    meta = entry.access.metadata(obj)
    if not owners and not meta.managed_fields:
        return obj
    return entry.access.with_metadata(obj, structs.replace(meta, managed_fields=owners))


def resolve_namespace(entry: ServedResource, call: ApiCall, namespace: str) -> str:
    """Return the namespace of an object: the URL's, which the object may repeat but not contradict."""
    if not entry.kind.namespaced:
        return ""
    if namespace and call.namespace and namespace != call.namespace:
        raise BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    return call.namespace or namespace


async def require_namespace(backend: Backend, entry: ServedResource, call: ApiCall, name: str) -> None:
    """Raise NotFound or Forbidden if the namespace does not exist or is being deleted."""
    spaces = backend.namespaces
    record = await backend.record(spaces, "", call.namespace)
    if record is None:
        raise NotFound.of(spaces.kind, call.namespace)
    if spaces.watch_cache.object(record).is_deleting:
        cause = Cause(
            "NamespaceTerminating", f"namespace {call.namespace} is being terminated", "metadata.namespace"
        )
        why = f"unable to create new content in namespace {call.namespace} because it is being terminated"
        raise Forbidden.to(entry.kind, name, why, [cause])


async def _store(backend: Backend, entry: ServedResource, call: ApiCall, obj: Any) -> WriteResult:
    access = entry.access
    meta = metadata.initial_metadata(
        call, access.metadata(obj), generation=1 if entry.kind.generation == "counted" else 0
    )
    tries = ATTEMPTS if meta.generate_name and not meta.name else 1
    name = meta.name
    for _ in range(tries):
        name = meta.name or (names.generate(meta.generate_name) if meta.generate_name else "")
        named = access.with_metadata(obj, structs.replace(meta, name=name))
        named = await cpu_offload.run(call.size, call.warnings, _prepare_and_validate, entry, call, named)
        try:
            await backend.admission.validate_create(call, named)
            if (
                entry.kind.namespaced and call.size > cpu_offload.LARGE
            ):  # the worker thread took a while: check again
                await require_namespace(backend, entry, call, name)
            return await _commit(backend, entry, call, named, name)
        except KeyExists:
            continue
        finally:
            call.release()
    raise await _name_taken_error(backend, entry, call, name, generated=tries > 1)


def _prepare_and_validate(entry: ServedResource, call: ApiCall, obj: Any) -> Any:
    strategy = entry.strategy
    obj = strategy.prepare_create(call, obj)
    meta = entry.access.metadata(obj)
    causes = [*metadata.validate(strategy, meta), *strategy.validate_create(call, obj)]
    if causes:
        raise Invalid.of(entry.kind, meta.name or meta.generate_name, causes)
    return obj


async def _commit(backend: Backend, entry: ServedResource, call: ApiCall, obj: Any, name: str) -> WriteResult:
    key = entry.key(call.namespace, name)
    value = entry.access.encode_stored(obj)
    check_size(value)
    if call.dry_run:
        if await backend.store.get(key) is not None:
            raise KeyExists(key)
        return WriteResult(entry, obj, value, 0, created=True)
    return await commit_write(entry, obj, value, backend.create(call, entry, key, value, obj), created=True)


async def commit_write(
    entry: ServedResource, obj: Any, value: bytes, write: Awaitable[int], *, created: bool = False
) -> WriteResult:
    """Await a store write and return the object with its revision. The watch cache learns the object before
    the write, so that no reader has to decode it.
    """
    entry.watch_cache.expect_write(value, obj)
    try:
        revision = await write
    except BaseException:
        entry.watch_cache.cancel_write(value)
        raise
    return WriteResult(
        entry, entry.watch_cache.finish_write(value, obj, revision), value, revision, created=created
    )


async def _name_taken_error(
    backend: Backend, entry: ServedResource, call: ApiCall, name: str, *, generated: bool
) -> APIError:
    record = await backend.record(entry, call.namespace, name)
    deleting = (
        record is not None
        and entry.access.metadata(entry.watch_cache.object(record)).deletion_timestamp is not None
    )
    error = errors.AlreadyExists.of(entry.kind, name, deleting=deleting)
    if not generated:
        return error
    message = f"{error.message}, the server was not able to generate a unique name for the object"
    return AlreadyExists(message, details={**error.details, "retryAfterSeconds": 1})
