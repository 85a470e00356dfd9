"""The transport to any Kubernetes API server: JSON over HTTPS.

Connection errors become `Unavailable` or `Timeout`, so callers handle one tree of errors. The lines of a
watch may arrive in parts, or several at once; all complete lines are passed on as one batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import cache
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from volplane.api import codec, errors, kinds
from volplane.api.kinds import Kind
from volplane.api.meta import DeleteOptions, ListMeta, PartialObjectMetadata, Resource
from volplane.base import failpoint, trace
from volplane.base.trace_context import HEADER
from volplane.client.credentials import Credentials, CredentialSource
from volplane.client.transport import ChangeType, ListPage, ObjectChange, PatchBody, PatchStyle, WatchContext
from volplane.web.client import ClientResponse, HttpClient, HttpError

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Resource)

REQUEST = 60.0  # seconds; the server's limit for requests other than watches
CONNECT = 30.0  # seconds until the response headers of a watch
JSON = "application/json"
_NOTHING = nullcontext()
METADATA = "application/json;as=PartialObjectMetadata%s;g=meta.k8s.io;v=v1, application/json"


class _List(Struct, Generic[T]):
    metadata: ListMeta = ListMeta()
    items: tuple[T, ...] | None = ()


class _Event(Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(Struct):
    metadata: _BookmarkMeta


class _BookmarkMeta(Struct):
    resource_version: str = msgspec.field(name="resourceVersion", default="")


_events: msgspec.json.Decoder[_Event] = msgspec.json.Decoder(_Event)
_bookmarks: msgspec.json.Decoder[_Bookmark] = msgspec.json.Decoder(_Bookmark)


@cache
def _lists(type: type[T]) -> msgspec.json.Decoder[_List[T]]:
    return msgspec.json.Decoder(_List[type])  # type: ignore[valid-type]


def _decode(of: type[T], data: bytes) -> T:
    """Decode an object. Upstream's server sends null for empty lists and maps."""
    try:
        return codec.decode(of, data)
    except msgspec.ValidationError:
        if b"null" not in data:
            raise
        return codec.decode(of, _without_nulls(data))


def _page(of: type[T], data: bytes) -> _List[T]:
    try:
        return _lists(of).decode(data)
    except msgspec.ValidationError:
        if b"null" not in data:
            raise
        return _lists(of).decode(_without_nulls(data))


def _without_nulls(data: bytes) -> bytes:
    def drop_nulls(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: drop_nulls(v) for k, v in value.items() if v is not None}
        return [drop_nulls(v) for v in value] if isinstance(value, list) else value

    return msgspec.json.encode(drop_nulls(msgspec.json.decode(data)))


class HttpsTransport:
    """Implements `Transport`."""

    def __init__(self, http: HttpClient, source: CredentialSource | None = None) -> None:
        """`source`: of credentials that change."""
        self._http, self._source = http, source
        self._pair = b""  # client certificate of the last credentials

    async def log_in(self) -> None:
        """Get credentials before the first request: a plugin may ask the user. Raises Unauthorized."""
        await self._get_credentials()

    async def get(self, type: type[T], name: str, namespace: str = "") -> T:
        path = kinds.of(type).path(namespace, name)
        return _decode(type, await self._request("GET", path, accept=_accept(type)))

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
        query = _query(
            labelSelector=labels,
            fieldSelector=fields,
            limit=limit,
            resourceVersion=revision,
            **{"continue": token},
        )
        answer = await self._request(
            "GET", kinds.of(type).path(namespace) + query, accept=_accept(type, "List")
        )
        page = _page(type, answer)
        meta = page.metadata
        return ListPage(page.items or (), int(meta.resource_version or 0), meta.continue_)

    async def create(
        self,
        obj: T,
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        of: type[Resource] | None = None,
    ) -> T:
        kind = kinds.of(of or type(obj))
        path = kind.path(namespace or obj.namespace, name if subresource else "", subresource)
        with _fail_points("create", kind, subresource):
            answer = await self._request("POST", path, codec.encode(obj))
        return obj if _is_status(answer) else _decode(type(obj), answer)

    async def update(self, obj: T, *, subresource: str = "") -> T:
        kind = kinds.of(type(obj))
        path = kind.path(obj.namespace, obj.name, subresource)
        with _fail_points("update", kind, subresource):
            answer = await self._request("PUT", path, codec.encode(obj))
        return _decode(type(obj), answer)

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
        kind = kinds.of(type)
        if style is PatchStyle.APPLY and isinstance(patch, Mapping):
            patch = {"kind": kind.kind, "apiVersion": kind.api_version, **patch}
        query = _query(fieldManager=manager, force="true" if force else "")
        path = kind.path(namespace, name, subresource) + query
        with _fail_points("patch", kind, subresource):
            answer = await self._request("PATCH", path, msgspec.json.encode(patch), style)
        return _decode(type, answer)

    async def delete(
        self, type: type[T], name: str, namespace: str = "", options: DeleteOptions | None = None
    ) -> T | None:
        body = b""
        if options is not None:
            body = msgspec.json.encode(
                {"kind": "DeleteOptions", "apiVersion": "v1", **codec.to_dict(options)}
            )
        kind = kinds.of(type)
        with _fail_points("delete", kind):
            answer = await self._request("DELETE", kind.path(namespace, name), body)
        return None if _is_status(answer) else _decode(type, answer)

    @asynccontextmanager
    async def _watching(
        self, type: type[T], path: str
    ) -> AsyncIterator[AsyncIterator[Sequence[ObjectChange[T]]]]:
        used = await self._get_credentials()
        headers = {"Accept": _accept(type), **_authorization(used)}
        async with AsyncExitStack() as stack:
            with _as_api_errors():
                async with asyncio.timeout(CONNECT):
                    stream = self._http.stream("GET", path, headers=headers)
                    answer, chunks = await stack.enter_async_context(stream)
            if answer.status != 200:
                if answer.status == 401 and self._source is not None and used is not None:
                    self._source.reject(used)  # the caller watches again
                raise _error(answer, b"".join([chunk async for chunk in chunks]))
            yield _changes(type, chunks)

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
        query = _query(
            watch="true",
            allowWatchBookmarks="true",
            labelSelector=labels,
            fieldSelector=fields,
            resourceVersion=revision,
            timeoutSeconds=seconds,
        )
        return self._watching(type, kinds.of(type).path(namespace) + query)

    def use_certificate(self, pair: bytes) -> None:
        """Use this certificate, with its key in the same text, for new connections."""
        self._http.use_certificate(pair)

    async def close(self) -> None:
        await self._http.close()

    async def raw(self, method: str, path: str, body: bytes = b"", content_type: str = JSON) -> bytes:
        """Any request, for objects that have no type here."""
        return await self._request(method, path, body, content_type)

    async def put_raw(
        self,
        kind: Kind,
        name: str,
        namespace: str,
        body: bytes,
        *,
        subresource: str = "",
        manager: str = "",
    ) -> bytes:
        """Replace an object by one with all its fields, also those that have no type here."""
        path = kind.path(namespace, name, subresource) + _query(fieldManager=manager)
        with _fail_points("update", kind, subresource):
            return await self._request("PUT", path, body)

    async def _request(
        self, method: str, path: str, body: bytes = b"", content_type: str = JSON, accept: str = JSON
    ) -> bytes:
        headers = {"Accept": accept}
        if body:
            headers["Content-Type"] = content_type
        if parent := trace.traceparent():
            headers[HEADER] = parent
        used = await self._get_credentials()
        answer = await self._send(method, path, headers, body, used)
        if answer.status == 401 and self._source is not None and used is not None:
            self._source.reject(used)
            if (fresh := await self._get_credentials()) != used:
                answer = await self._send(method, path, headers, body, fresh)
        if answer.status >= 400:
            raise _error(answer, answer.body)
        return answer.body

    async def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, used: Credentials | None
    ) -> ClientResponse:
        sent = {**headers, **_authorization(used)} if used is not None else headers
        with _as_api_errors():
            return await self._http.request(method, path, headers=sent, body=body, timeout=REQUEST)

    async def _get_credentials(self) -> Credentials | None:
        if self._source is None:
            return None
        found = await self._source.get_credentials()
        if found.pair and found.pair != self._pair:
            try:
                self._http.use_certificate(found.pair)
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                raise errors.Unauthorized(f"the client certificate cannot be used: {error}") from error
            self._pair = found.pair
        return found

    def __repr__(self) -> str:
        return repr(self._http)


async def _changes(type: type[T], chunks: AsyncIterator[bytes]) -> AsyncIterator[Sequence[ObjectChange[T]]]:
    rest = b""
    with _as_api_errors():
        async for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            batch = [_change(type, line) for line in lines if line.strip()]
            if batch:
                yield batch


def _change(type: type[T], line: bytes) -> ObjectChange[T]:
    event = _events.decode(line)
    if event.type == "ERROR":
        raise errors.from_status(msgspec.json.decode(event.object))
    kind = ChangeType(event.type)
    if kind is ChangeType.BOOKMARK:
        return ObjectChange(kind, None, int(_bookmarks.decode(event.object).metadata.resource_version or 0))
    obj = _decode(type, bytes(event.object))
    return ObjectChange(kind, obj, obj.revision)


def _fail_points(verb: str, kind: Kind, subresource: str = "") -> AbstractContextManager[None]:
    if not failpoint.is_armed:
        return _NOTHING
    return failpoint.around(f"ask:{verb}:{kind.resource}{'/' * bool(subresource)}{subresource}")


def _authorization(used: Credentials | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {used.token}"} if used is not None and used.token else {}


@contextmanager
def _as_api_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise errors.Timeout("the API server did not answer in time") from error
    except (OSError, EOFError, HttpError) as error:
        raise errors.Unavailable(f"the API server cannot be reached: {error}") from error


def _error(answer: ClientResponse, body: bytes) -> errors.APIError:
    try:
        data: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        data = {"message": body.decode(errors="replace")[:1024]}
    if not isinstance(data, dict):
        data = {}
    wait = answer.headers.get("retry-after")
    if wait.isdecimal() and not data.get("details"):  # upstream's server sends it only as a header
        data["details"] = {"retryAfterSeconds": int(wait[:9])}
    return errors.from_status(data, answer.status)


def _accept(type: type[Resource], suffix: str = "") -> str:
    """The Accept header: only metadata for types that have nothing else."""
    return METADATA % suffix if issubclass(type, PartialObjectMetadata) else JSON


def _is_status(body: bytes) -> bool:
    return b'"kind":"Status"' in body[:200] or b'"kind": "Status"' in body[:200]


def _query(**parameters: object) -> str:
    given = {k: v for k, v in parameters.items() if v}
    return f"?{urlencode(given)}" if given else ""
