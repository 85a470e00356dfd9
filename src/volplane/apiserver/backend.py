"""What every verb needs: the registry, the store, and the functions through which all writes go.

A write is acknowledged after the store has committed it. Fail points around each commit let crash tests kill
the process just before and just after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from volplane.api.core import Namespace
from volplane.api.errors import NotFound, Timeout, TooLarge
from volplane.apiserver.auth.admission import AdmissionChain
from volplane.apiserver.auth.issuer import TokenIssuer
from volplane.apiserver.auth.well_known_users import SYSTEM
from volplane.apiserver.registry import Registry, ServedResource
from volplane.apiserver.strategy import ApiCall, R
from volplane.apiserver.write_spans import TRACED, build_write_span
from volplane.base import clock, failpoint, trace
from volplane.store import RecordTooLarge, Store, StoreEvent, StoreRecord, WriteUncertain

# The default request limit of etcd (1.5 MiB), minus room for the key and the conditions of a write.
OBJECT_LIMIT = 1536 * 1024 - 4 * 1024


def check_size(value: bytes, held: bytes = b"") -> None:
    """Raise TooLarge. The limit is the same on every store; an object above it may still shrink."""
    if len(value) > OBJECT_LIMIT and len(value) > len(held):
        raise TooLarge(f"Request entity too large: limit is {OBJECT_LIMIT}")


class WriteResult(Struct):
    """The result of a write."""

    entry: ServedResource
    obj: Any
    value: bytes
    revision: int  # 0: nothing was stored (dry run of a create)
    created: bool = False
    gone: bool = False  # the object was removed: `obj` is its last state


class Backend:
    def __init__(self, store: Store, registry: Registry, issuer: TokenIssuer) -> None:
        self.store = store
        self.registry = registry
        self.issuer = issuer
        self.namespaces = registry.of(Namespace)
        self.reader = StoreReader(self)
        self.admission = AdmissionChain()
        self.trace = trace.current() or trace.start()

    def system_call(
        self, verb: str, entry: ServedResource, name: str = "", namespace: str = "", subresource: str = ""
    ) -> ApiCall:
        """Return a call that the server makes itself."""
        return ApiCall(verb, entry.kind, SYSTEM, self.reader, clock.wall(), namespace, name, subresource)

    async def record(self, entry: ServedResource, namespace: str, name: str) -> StoreRecord | None:
        return await self.store.get(entry.key(namespace, name))

    async def require(self, entry: ServedResource, call: ApiCall) -> StoreRecord:
        """Return the record of the call's object. Raise NotFound."""
        record = await self.record(entry, call.namespace, call.name)
        if record is None:
            raise NotFound.of(entry.kind, call.name)
        return record

    async def create(self, call: ApiCall, entry: ServedResource, key: str, value: bytes, obj: Any) -> int:
        with _CommitScope(await self._start_span(call, entry, key, None, obj), call, entry):
            revision = await self.store.create(key, value)
        await _wait_until_followed(entry, revision)
        return revision

    async def update(
        self, call: ApiCall, entry: ServedResource, record: StoreRecord, value: bytes, old: Any, new: Any
    ) -> int:
        with _CommitScope(await self._start_span(call, entry, record.key, old, new), call, entry):
            revision = await self.store.update(record.key, value, revision=record.revision)
        await _wait_until_followed(entry, revision)
        return revision

    async def delete(self, call: ApiCall, entry: ServedResource, record: StoreRecord, obj: Any) -> StoreEvent:
        old = entry.watch_cache.object(record) if self.trace.sinks and entry.resource in TRACED else obj
        with _CommitScope(await self._start_span(call, entry, record.key, old, None), call, entry):
            event = await self.store.delete(record.key, revision=record.revision)
        await _wait_until_followed(entry, event.revision)
        return event

    async def _start_span(
        self, call: ApiCall, entry: ServedResource, key: str, old: Any, new: Any
    ) -> trace.span | None:
        if (short := TRACED.get(entry.resource)) is None:
            return None
        subject = f"{short}/{key.removeprefix(entry.prefix)}"
        if not self.trace.sinks:
            return self.trace.span("apiserver", call.verb, subject, user=call.user.name)
        return await build_write_span(self, call, subject, old, new)


async def _wait_until_followed(entry: ServedResource, revision: int) -> None:
    """Wait until this server acts on the write: a client that creates a CRD finds the kind served."""
    if entry.wait_applied is not None:
        await entry.wait_applied(revision)


class _CommitScope:
    """Fail points and the trace span around one commit. An uncertain write raises Timeout."""

    __slots__ = ("place", "span")

    def __init__(self, span: trace.span | None, call: ApiCall, entry: ServedResource) -> None:
        self.place = ""
        if failpoint.is_armed:
            below = f"/{call.subresource}" if call.subresource else ""
            self.place = f"write:{call.verb}:{entry.resource}{below}"
        self.span = span

    def __enter__(self) -> None:
        if self.place:
            failpoint.hit(f"{self.place}:before")
        if self.span:
            self.span.__enter__().announce()

    def __exit__(self, kind: Any, error: Any, where: Any) -> None:
        if self.span:
            self.span.__exit__(kind, error, where)
        if self.place and error is None:
            failpoint.hit(f"{self.place}:after")
        if isinstance(error, RecordTooLarge):
            raise TooLarge(f"Request entity too large: {error}") from error
        if isinstance(error, WriteUncertain):
            raise Timeout(f"Timeout: the request may or may not have taken effect: {error}") from error


class StoreReader:
    """Reads other objects for admission."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def get(self, type: type[R], name: str, namespace: str = "") -> R | None:
        entry = self._backend.registry.of(type)
        record = await self._backend.record(entry, namespace, name)
        found: R | None = None if record is None else entry.watch_cache.object(record)
        return found

    async def list(self, type: type[R], namespace: str = "") -> Sequence[R]:
        entry = self._backend.registry.of(type)
        listing = await self._backend.store.list(entry.namespace_prefix(namespace))
        return [entry.watch_cache.object(record) for record in listing.records]
