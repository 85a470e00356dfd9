"""The typed verbs of the API. Each role has a client with its own user; clients can share caches.

Writers send patches of the fields they change, with uid or resourceVersion as precondition where it matters.
While `written_revisions` is set, every write records its revision there: a controller plans a key again only
when its caches have reached the revisions that it wrote.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Literal, TypeVar, Unpack, overload

from volplane.api import kinds
from volplane.api.core import Binding, ObjectReference, Pod
from volplane.api.errors import AlreadyExists, Conflict, Invalid, NotFound
from volplane.api.meta import DeleteOptions, ObjectMeta, Preconditions, Resource
from volplane.api.policy import Eviction
from volplane.base.trace import recording
from volplane.client import patches
from volplane.client.cache import Cache, Caches
from volplane.client.patches import PatchOptions
from volplane.client.transport import (
    ChangeType,
    ListPage,
    ObjectChange,
    PatchBody,
    PatchStyle,
    Transport,
)
from volplane.rules.trace_subjects import TRACED_TYPES, list_trace_facts

T = TypeVar("T", bound=Resource)

written_revisions: ContextVar[dict[type[Resource], int] | None] = ContextVar("volplane_written", default=None)


class Client:
    def __init__(self, transport: Transport, *, caches: Caches | None = None, component: str = "") -> None:
        self.transport = transport
        self._reads: Transport = transport  # lists and watches
        self.component = component
        self._own = caches is None
        self._caches = caches or Caches(transport)
        # Called before each write; raises an APIError while this process must not write.
        self.check_write: Callable[[], None] | None = None

    def require_write(self) -> None:
        """Raises an APIError while this process must not write, because it may have lost its Lease."""
        if self.check_write is not None:
            self.check_write()

    # --- read

    async def get(self, type: type[T], name: str, namespace: str = "") -> T:
        return _learn(await self.transport.get(type, name, namespace))

    async def find(self, type: type[T], name: str, namespace: str = "") -> T | None:
        """Read from the server; None if the object does not exist."""
        try:
            return _learn(await self.transport.get(type, name, namespace))
        except NotFound:
            return None

    async def list(
        self, type: type[T], namespace: str = "", *, labels: str = "", fields: str = "", limit: int = 0
    ) -> builtins.list[T]:
        """All matching objects; `limit` is the page size."""
        items: list[T] = []
        token = ""
        while True:
            page = await self._reads.list(
                type, namespace, labels=labels, fields=fields, limit=limit, token=token
            )
            items.extend(page.items)
            token = page.token
            if not token:
                return items

    async def list_page(
        self,
        type: type[T],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        token: str = "",
        revision: str = "",
    ) -> ListPage[T]:
        return await self._reads.list(
            type, namespace, labels=labels, fields=fields, limit=limit, token=token, revision=revision
        )

    async def watch(
        self, type: type[T], namespace: str = "", *, labels: str = "", fields: str = "", revision: int = 0
    ) -> AsyncIterator[ObjectChange[T]]:
        """Yield changes until the stream ends; without a revision, all existing objects first.

        They are listed, because not every server can send them in the stream (upstream's with an older etcd).
        """
        if not revision:
            page = await self._reads.list(type, namespace, labels=labels, fields=fields)
            for obj in page.items:
                yield ObjectChange(ChangeType.ADDED, obj, obj.revision)
            revision = page.revision
        watching = self._reads.watch(type, namespace, labels=labels, fields=fields, revision=revision)
        async with watching as batches:
            async for batch in batches:
                for change in batch:
                    yield change

    def cache(self, type: type[T], *, namespace: str = "", labels: str = "", fields: str = "") -> Cache[T]:
        return self._caches.get(type, namespace=namespace, labels=labels, fields=fields)

    # --- write

    async def create(
        self,
        obj: T,
        *,
        namespace: str = "",
        exists_ok: bool = False,
        subresource: str = "",
        name: str = "",
        of: type[Resource] | None = None,
    ) -> T:
        """Create an object. `exists_ok`: return an existing one, which another client may have created."""
        self.require_write()
        _learn(obj)  # so that the request belongs to its trace
        try:
            made = await self.transport.create(obj, namespace, name=name, subresource=subresource, of=of)
        except AlreadyExists:
            if not exists_ok:
                raise
            return await self.get(type(obj), obj.name, namespace or obj.namespace)
        return self._note_write(made)

    async def update(self, obj: T, *, subresource: str = "") -> T:
        """PUT: only for objects of which every field is known and owned here (Leases)."""
        self.require_write()
        return self._note_write(await self.transport.update(obj, subresource=subresource))

    @overload
    async def patch(
        self,
        type: type[T],
        name: str,
        namespace: str = "",
        *,
        missing_ok: Literal[False] = False,
        **options: Unpack[PatchOptions],
    ) -> T: ...

    @overload
    async def patch(
        self,
        type: type[T],
        name: str,
        namespace: str = "",
        *,
        missing_ok: bool,
        **options: Unpack[PatchOptions],
    ) -> T | None: ...

    async def patch(
        self,
        type: type[T],
        name: str,
        namespace: str = "",
        *,
        missing_ok: bool = False,
        **options: Unpack[PatchOptions],
    ) -> T | None:
        """Patch with exactly one of merge, strategic, json, apply. `uid` and `revision` are preconditions
        (`Conflict`).

        Returns None only with `missing_ok`, if the object does not exist.
        """
        self.require_write()
        body, style = patches.build_patch(options)
        try:
            obj = await self._send_patch(type, name, namespace, body, style, options)
        except NotFound:
            if missing_ok:
                return None
            raise
        except Invalid as error:
            # The server reports another uid as an attempt to change it. Here it means another object.
            if options.get("uid") and any(cause.field == "metadata.uid" for cause in error.causes):
                raise Conflict(error.message, details=error.details) from error
            raise
        return self._note_write(obj)

    async def _send_patch(
        self,
        type: type[T],
        name: str,
        namespace: str,
        body: PatchBody,
        style: PatchStyle,
        options: PatchOptions,
    ) -> T:
        return await self.transport.patch(
            type,
            name,
            namespace,
            body,
            style,
            subresource=options.get("subresource", ""),
            manager=self.component,
            force=options.get("force", False),
        )

    async def delete(
        self,
        type: type[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        revision: str = "",
        grace: int | None = None,
        propagation: str = "",
        missing_ok: bool = False,
    ) -> T | None:
        """Delete an object. Returns it while finalizers or a grace period keep it, None when it is gone."""
        self.require_write()
        options = DeleteOptions(
            grace_period_seconds=grace,
            preconditions=_preconditions(uid, revision),
            propagation_policy=propagation or None,
        )
        try:
            left = await self.transport.delete(type, name, namespace, options)
        except NotFound:
            if missing_ok:
                return None
            raise
        return None if left is None else self._note_write(left)

    async def bind(self, pod: Pod, node: str) -> None:
        """Bind the pod to the node; the uid prevents binding another pod of the same name."""
        self.require_write()
        binding = Binding(
            metadata=ObjectMeta(name=pod.name, namespace=pod.namespace, uid=pod.uid),
            target=ObjectReference(kind="Node", name=node),
        )
        await self.transport.create(binding, pod.namespace, name=pod.name, subresource="binding", of=Pod)

    async def evict(self, pod: Pod, grace: int | None = None) -> None:
        self.require_write()
        eviction = Eviction(
            metadata=ObjectMeta(name=pod.name, namespace=pod.namespace),
            delete_options=DeleteOptions(
                grace_period_seconds=grace, preconditions=Preconditions(uid=pod.uid)
            ),
        )
        await self.transport.create(eviction, pod.namespace, name=pod.name, subresource="eviction", of=Pod)

    async def close(self) -> None:
        """Close the client's own caches. The transport belongs to its creator."""
        if self._own:
            await self._caches.close()

    def _note_write(self, obj: T) -> T:
        notes = written_revisions.get()
        if notes is not None and obj.revision > notes.get(type(obj), 0):
            notes[type(obj)] = obj.revision
        return _learn(obj)

    def __repr__(self) -> str:
        return f"client of {self.component or self.transport!r}"


def _learn(obj: T) -> T:
    """Note which claim an object belongs to, if steps are recorded."""
    if type(obj) in TRACED_TYPES and (trace := recording()) is not None:
        trace.index.learn_all(list_trace_facts(obj))
    return obj


def _preconditions(uid: str, revision: str) -> Preconditions | None:
    if not uid and not revision:
        return None
    return Preconditions(uid=uid or None, resource_version=revision or None)


def describe(obj: Resource) -> str:
    """`persistentvolumeclaims default/data`, for log lines."""
    return f"{kinds.of(type(obj)).plural} {obj.key}"
