"""The API server called in process: the same verbs, Structs in and shared Structs out, no bytes between.

One `Local` carries one user, and asks the same authorizers as HTTP does. Objects that it hands out are
shared by everybody in the process: nobody changes them (they are frozen).
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
from volplane.api.meta import DeleteOptions, Resource
from volplane.apiserver import subresources
from volplane.apiserver.acts import name_in
from volplane.apiserver.auth.authorize import Act, Authority
from volplane.apiserver.backend import Backend
from volplane.apiserver.canonical import canonical
from volplane.apiserver.failures import AS_API_ERRORS, api_error
from volplane.apiserver.patch import Own
from volplane.apiserver.registry import Entry
from volplane.apiserver.reviews import access_of
from volplane.apiserver.selection import select
from volplane.apiserver.strategy import Call, User
from volplane.apiserver.verbs import watch as watching
from volplane.apiserver.verbs.apply import apply
from volplane.apiserver.verbs.create import create
from volplane.apiserver.verbs.delete import delete
from volplane.apiserver.verbs.get import get
from volplane.apiserver.verbs.list import Asked, list_records
from volplane.apiserver.verbs.patch import patch as change
from volplane.apiserver.verbs.update import update
from volplane.base import clock
from volplane.client.transport import Change, ChangeType, Page, Patch, PatchStyle, Watching
from volplane.store import StoreError

T = TypeVar("T", bound=Resource)


class Local:
    """`client.Transport` without a wire."""

    def __init__(self, backend: Backend, user: User, authority: Authority) -> None:
        self._backend = backend
        self._user = user
        self._authority = authority
        self._manager = user.name.rpartition(":")[2]  # of fields it changes in objects that are tracked

    async def get(self, type: type[T], name: str, namespace: str = "") -> T:
        entry, call = self._call("get", type, namespace, name)
        with AS_API_ERRORS:
            return _typed(type, entry.feed.object(await get(self._backend, entry, call)))

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
    ) -> Page[T]:
        entry, call = self._call("list", type, namespace, fields=fields)
        asked = Asked(select(entry.facts, labels, fields), limit, token, revision)
        with AS_API_ERRORS:
            listed = await list_records(self._backend, entry, call, asked)
        items = [_typed(type, entry.feed.object(r)) for r in listed.records]
        return Page(items, listed.revision, listed.token)

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
            return _typed(type(obj), access_of(self._authority, call, obj))
        with AS_API_ERRORS:
            if not subresource:
                return _typed(type(obj), (await create(self._backend, entry, call, _given(entry, obj))).obj)
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
            return _typed(type(obj), (await update(self._backend, entry, call, _given(entry, obj))).obj)

    async def patch(
        self,
        type: type[T],
        name: str,
        namespace: str,
        patch: Patch,
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
                return _typed(type, (await apply(self._backend, entry, call, body, force=force)).obj)
        body = Own(msgspec.json.encode(patch))
        with AS_API_ERRORS:
            return _typed(type, (await change(self._backend, entry, call, style.value, body)).obj)

    async def delete(
        self, type: type[T], name: str, namespace: str = "", options: DeleteOptions | None = None
    ) -> T | None:
        entry, call = self._call("delete", type, namespace, name)
        options = options or DeleteOptions()
        call = structs.replace(call, dry_run=bool(options.dry_run))
        with AS_API_ERRORS:
            written = await delete(self._backend, entry, call, options)
        return None if written.gone else _typed(type, written.obj)

    def watch(
        self,
        type: type[T],
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        revision: int = 0,
        seconds: int = 0,
    ) -> Watching[T]:
        entry, call = self._call("watch", type, namespace, fields=fields)
        asked = watching.Asked(
            selection=select(entry.facts, labels, fields),
            version=str(revision or ""),
            bookmarks=True,
            seconds=seconds,
        )
        return _changes(type, watching.watch(self._backend, entry, call, asked))

    async def close(self) -> None:
        """Nothing is held."""

    def allows(self, verb: str, type: type[Resource], namespace: str = "", fields: str = "") -> bool:
        """Whether the user may do that to objects of a kind, which need not be served yet."""
        kind = kinds.of(type)
        where = namespace if kind.namespaced else ""
        return self._authority.allows(self._user, _act(verb, kind, where, "", "", fields))

    def _call(
        self,
        verb: str,
        type: type[Resource],
        namespace: str,
        name: str = "",
        subresource: str = "",
        fields: str = "",
        manager: str = "",
    ) -> tuple[Entry, Call]:
        entry = self._backend.registry.of(type)
        where = namespace if entry.kind.namespaced else ""
        act = _act(verb, entry.kind, where, name, subresource, fields)
        self._authority.require(self._user, act)
        call = Call(
            verb,
            entry.kind,
            self._user,
            self._backend.reader,
            clock.wall(),
            where,
            name,
            subresource,
            manager=manager,
            may=partial(self._may, act),
        )
        return entry, call

    def _may(self, act: Act, verb: str) -> None:
        self._authority.require(self._user, structs.replace(act, verb=verb))


def _act(verb: str, kind: Kind, namespace: str, name: str, subresource: str, fields: str) -> Act:
    if kind.resource == "namespaces":
        namespace = name
    named = name or (name_in(fields) if fields else "")
    return Act(verb, kind.group, kind.plural, namespace, named, subresource, fields=fields)


@asynccontextmanager
async def _changes(
    type: type[T],
    batches: AsyncGenerator[Sequence[watching.Told], None],
) -> AsyncIterator[AsyncIterator[Sequence[Change[Any]]]]:
    async def decoded() -> AsyncGenerator[Sequence[Change[Any]], None]:
        try:
            async for batch in batches:
                yield [_change(type, told) for told in batch]
        except StoreError as error:
            raise api_error(error) from error

    async with aclosing(batches), aclosing(decoded()) as changes:
        yield changes


def _change(of: type[T], told: watching.Told) -> Change[Any]:
    obj = _typed(of, told.note.object(told.type)) if told.note else None
    return Change(ChangeType(told.type), obj, told.revision)


def _typed(of: type[T], obj: Any) -> T:
    """A custom resource is plain data here, and a Struct to the client that has a type for it."""
    typed: T = codec.convert(of, obj) if isinstance(obj, dict) else obj
    return typed


def _given(entry: Entry, obj: Resource) -> Any:
    if entry.kind.type is not None:
        return canonical(obj)
    plain: dict[str, Any] = msgspec.json.decode(codec.encode(obj))  # lists as JSON has them, not tuples
    return plain
