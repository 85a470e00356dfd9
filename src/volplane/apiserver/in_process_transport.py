"""The in-process transport: calls the same verbs as HTTP, with Structs instead of bytes.

One transport acts for one user and is authorized like HTTP requests. The objects it returns are shared by the
whole process; they are frozen.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from volplane.api import codec, kinds
from volplane.api.authorization import SubjectAccessReview
from volplane.api.errors import NotFound
from volplane.api.kinds import Kind
from volplane.api.meta import DeleteOptions, PartialObjectMetadata, Resource
from volplane.apiserver import subresources
from volplane.apiserver.auth.authorize import Attributes, AuthorizerChain
from volplane.apiserver.authorization_attributes import selected_name
from volplane.apiserver.backend import Backend
from volplane.apiserver.canonical_quantities import canonicalize_quantities
from volplane.apiserver.patch import TrustedBody
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.reviews import review_access
from volplane.apiserver.selectors import select
from volplane.apiserver.store_errors import AS_API_ERRORS, to_api_error
from volplane.apiserver.strategy import ApiCall, RequestUser
from volplane.apiserver.verbs import watch as watching
from volplane.apiserver.verbs.apply import apply
from volplane.apiserver.verbs.create import create
from volplane.apiserver.verbs.delete import delete
from volplane.apiserver.verbs.get import get
from volplane.apiserver.verbs.list import ListOptions, list_records
from volplane.apiserver.verbs.patch import patch as change
from volplane.apiserver.verbs.update import update
from volplane.base import clock
from volplane.client.transport import ChangeType, ListPage, ObjectChange, PatchBody, PatchStyle, WatchContext
from volplane.store import StoreError

T = TypeVar("T", bound=Resource)


class InProcessTransport:
    """A `client.Transport` that calls the API server in the same process."""

    def __init__(self, backend: Backend, user: RequestUser, authorizer: AuthorizerChain) -> None:
        self._backend = backend
        self._user = user
        self._authorizer = authorizer
        self._manager = user.name.rpartition(":")[2]  # the field manager of its updates to tracked objects

    async def get(self, type: type[T], name: str, namespace: str = "") -> T:
        entry, call = self._call("get", type, namespace, name)
        with AS_API_ERRORS:
            return _to_client_type(type, entry.watch_cache.object(await get(self._backend, entry, call)))

    async def list(
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
        entry, call = self._call("list", type, namespace, fields=fields)
        asked = ListOptions(select(entry.kind, labels, fields), limit, token, revision)
        with AS_API_ERRORS:
            listed = await list_records(self._backend, entry, call, asked)
        items = [_to_client_type(type, entry.watch_cache.object(r)) for r in listed.records]
        return ListPage(items, listed.revision, listed.token)

    async def create(
        self,
        obj: T,
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        of: type[Resource] | None = None,
    ) -> T:
        entry, call = self._call(
            "create", of or type(obj), namespace or obj.metadata.namespace, name, subresource
        )
        if isinstance(obj, SubjectAccessReview):
            return _to_client_type(type(obj), review_access(self._authorizer, call, obj))
        with AS_API_ERRORS:
            if not subresource:
                return _to_client_type(
                    type(obj), (await create(self._backend, entry, call, _to_server_form(entry, obj))).obj
                )
            post = subresources.POSTS.get((entry.resource, subresource))
            if post is None:
                raise NotFound.path()
            await self._backend.admission.post(call, obj)
            answer: Any = await post.act(self._backend, entry, call, obj)
        answered: T = answer or obj
        return answered

    async def update(self, obj: T, *, subresource: str = "") -> T:
        meta = obj.metadata
        entry, call = self._call(
            "update", type(obj), meta.namespace, meta.name, subresource, manager=self._manager
        )
        with AS_API_ERRORS:
            return _to_client_type(
                type(obj), (await update(self._backend, entry, call, _to_server_form(entry, obj))).obj
            )

    async def patch(
        self,
        type: type[T],
        name: str,
        namespace: str,
        patch: PatchBody,
        style: PatchStyle,
        *,
        subresource: str = "",
        manager: str = "",
        force: bool = False,
    ) -> T:
        entry, call = self._call(
            "patch", type, namespace, name, subresource, manager=manager or self._manager
        )
        if style is PatchStyle.APPLY:
            assert isinstance(patch, Mapping)
            head = {"apiVersion": entry.kind.api_version, "kind": entry.kind.kind}
            body = msgspec.json.encode({**head, **patch})
            with AS_API_ERRORS:
                return _to_client_type(type, (await apply(self._backend, entry, call, body, force=force)).obj)
        body = TrustedBody(msgspec.json.encode(patch))
        with AS_API_ERRORS:
            return _to_client_type(type, (await change(self._backend, entry, call, style.value, body)).obj)

    async def delete(
        self, type: type[T], name: str, namespace: str = "", options: DeleteOptions | None = None
    ) -> T | None:
        entry, call = self._call("delete", type, namespace, name)
        options = options or DeleteOptions()
        call = structs.replace(call, dry_run=bool(options.dry_run))
        with AS_API_ERRORS:
            written = await delete(self._backend, entry, call, options)
        return None if written.gone else _to_client_type(type, written.obj)

    def watch(
        self,
        type: type[T],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        revision: int = 0,
        seconds: int = 0,
    ) -> WatchContext[T]:
        entry, call = self._call("watch", type, namespace, fields=fields)
        asked = watching.WatchOptions(
            selection=select(entry.kind, labels, fields),
            version=str(revision or ""),
            bookmarks=True,
            seconds=seconds,
        )
        return _changes(type, watching.watch(self._backend, entry, call, asked))

    async def close(self) -> None:
        """Nothing to close."""

    def allows(self, verb: str, type: type[Resource], namespace: str = "", fields: str = "") -> bool:
        """Return whether the user may use the verb on a kind, even if the kind is not served yet."""
        kind = kinds.of(type)
        where = namespace if kind.namespaced else ""
        return self._authorizer.allows(self._user, _attributes(verb, kind, where, "", "", fields))

    def _call(
        self,
        verb: str,
        type: type[Resource],
        namespace: str,
        name: str = "",
        subresource: str = "",
        fields: str = "",
        manager: str = "",
    ) -> tuple[ServedResource, ApiCall]:
        entry = self._backend.registry.of(type)
        where = namespace if entry.kind.namespaced else ""
        attrs = _attributes(verb, entry.kind, where, name, subresource, fields)
        self._authorizer.require(self._user, attrs)
        call = ApiCall(
            verb,
            entry.kind,
            self._user,
            self._backend.reader,
            clock.wall(),
            where,
            name,
            subresource,
            manager=manager,
            check_access=partial(self._require_verb, attrs),
        )
        return entry, call

    def _require_verb(self, attrs: Attributes, verb: str) -> None:
        self._authorizer.require(self._user, structs.replace(attrs, verb=verb))


def _attributes(
    verb: str, kind: Kind, namespace: str, name: str, subresource: str, fields: str
) -> Attributes:
    if kind.resource == "namespaces":
        namespace = name
    named = name or (selected_name(fields) if fields else "")
    return Attributes(verb, kind.group, kind.plural, namespace, named, subresource, fields=fields)


@asynccontextmanager
async def _changes(
    type: type[T],
    batches: AsyncGenerator[Sequence[watching.WatchItem], None],
) -> AsyncIterator[AsyncIterator[Sequence[ObjectChange[Any]]]]:
    async def decode_batches() -> AsyncGenerator[Sequence[ObjectChange[Any]], None]:
        try:
            async for batch in batches:
                yield [_change(type, item) for item in batch]
        except StoreError as error:
            raise to_api_error(error) from error

    async with aclosing(batches), aclosing(decode_batches()) as changes:
        yield changes


def _change(of: type[T], item: watching.WatchItem) -> ObjectChange[Any]:
    obj = _to_client_type(of, item.event.object(item.type)) if item.event else None
    return ObjectChange(ChangeType(item.type), obj, item.revision)


def _to_client_type(of: type[T], obj: Any) -> T:
    """Convert an object to the client's Struct: plain data of a custom resource, or only its metadata."""
    if isinstance(obj, dict):
        return codec.convert(of, obj)
    typed: T = of(metadata=obj.metadata) if issubclass(of, PartialObjectMetadata) else obj
    return typed


def _to_server_form(entry: ServedResource, obj: Resource) -> Any:
    if not entry.kind.is_custom:
        return canonicalize_quantities(obj)
    plain: dict[str, Any] = msgspec.json.decode(codec.encode(obj))  # plain JSON data: lists, not tuples
    return plain
