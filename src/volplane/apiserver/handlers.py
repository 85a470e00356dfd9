"""HTTP handlers of resources: decode the request, call the verb, encode the result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

from msgspec import structs

from volplane.api import codec, kinds
from volplane.api.errors import APIError
from volplane.apiserver import decode, query_options, responses
from volplane.apiserver import patch as patches
from volplane.apiserver.backend import Backend
from volplane.apiserver.negotiation import ResponseFormat, negotiate, negotiate_stream
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.selectors import Selection
from volplane.apiserver.store_errors import to_api_error
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.subresources import PostSubresource
from volplane.apiserver.verbs.apply import apply
from volplane.apiserver.verbs.collection import delete_collection
from volplane.apiserver.verbs.create import create
from volplane.apiserver.verbs.delete import delete
from volplane.apiserver.verbs.get import get
from volplane.apiserver.verbs.list import list_records
from volplane.apiserver.verbs.patch import patch
from volplane.apiserver.verbs.update import update
from volplane.apiserver.verbs.watch import WatchOptions, watch
from volplane.store import StoreClosed, StoreEvent, StoreFailed
from volplane.web import DirectWriter, Request, Response

UNREAD_TIMEOUT = 60.0  # seconds a watcher may leave events unread before it is disconnected

Handler = Callable[[Backend, ServedResource, ApiCall, Request], Awaitable[Response]]


def _negotiate_format(entry: ServedResource, request: Request, *, lists: bool = False) -> ResponseFormat:
    format = negotiate(request.headers.get("accept"), numbered=not entry.kind.is_custom)
    if format.transform:
        responses.check_format(format, lists=lists)
    return format


async def _decode_body(entry: ServedResource, call: ApiCall, request: Request) -> object:
    call.size = len(request.body)
    validation = query_options.field_validation(request.query, call.verb)
    obj, warnings = await decode.decode_request(entry.kind, request, validation)
    call.warnings.extend(warnings)
    return obj


async def on_create(backend: Backend, entry: ServedResource, call: ApiCall, request: Request) -> Response:
    format = _negotiate_format(entry, request)
    outcome = await create(backend, entry, call, await _decode_body(entry, call, request))
    return await responses.write_response(outcome, format, query_options.include_object(request.query))


async def on_update(backend: Backend, entry: ServedResource, call: ApiCall, request: Request) -> Response:
    format = _negotiate_format(entry, request)
    outcome = await update(backend, entry, call, await _decode_body(entry, call, request))
    return await responses.write_response(outcome, format, query_options.include_object(request.query))


async def on_patch(backend: Backend, entry: ServedResource, call: ApiCall, request: Request) -> Response:
    format = _negotiate_format(entry, request)
    call.size = len(request.body)
    validation = query_options.field_validation(request.query, "patch")
    content_type = request.headers.get("content-type")
    applies = patches.media_type(entry.kind, content_type) == patches.APPLY
    force = query_options.force(request.query, applies=applies)
    if applies:
        outcome = await apply(backend, entry, call, request.body, force=force, validation=validation)
    else:
        outcome = await patch(backend, entry, call, content_type, request.body, validation=validation)
    return await responses.write_response(outcome, format, query_options.include_object(request.query))


async def on_get(backend: Backend, entry: ServedResource, call: ApiCall, request: Request) -> Response:
    format = _negotiate_format(entry, request)
    found = await get(backend, entry, call, version=request.query.get("resourceVersion"))
    return await responses.record_response(entry, found, format, query_options.include_object(request.query))


async def on_list(backend: Backend, entry: ServedResource, call: ApiCall, request: Request) -> Response:
    format = _negotiate_format(entry, request, lists=True)
    options = query_options.list_options_of(request.query, entry.kind)
    found = await list_records(backend, entry, call, options)
    return await responses.list_response(entry, found, format, query_options.include_object(request.query))


async def on_delete(backend: Backend, entry: ServedResource, call: ApiCall, request: Request) -> Response:
    format = _negotiate_format(entry, request)
    delete_options = query_options.delete_options_of(request)
    dry = call.dry_run or bool(delete_options.dry_run)
    outcome = await delete(backend, entry, structs.replace(call, dry_run=dry), delete_options)
    if outcome.gone and not entry.kind.returns_deleted:
        meta = entry.access.metadata(outcome.obj)
        details = {"name": meta.name, "group": entry.kind.group, "kind": entry.kind.plural, "uid": meta.uid}
        return responses.success_response(200, {k: v for k, v in details.items() if v})
    answer = await responses.write_response(outcome, format)
    if not outcome.gone and delete_options.orphan_dependents is False:
        answer.status = 202
    return answer


async def on_delete_collection(
    backend: Backend, entry: ServedResource, call: ApiCall, request: Request
) -> Response:
    format = _negotiate_format(entry, request, lists=True)
    delete_options = query_options.delete_options_of(request)
    call = structs.replace(call, dry_run=call.dry_run or bool(delete_options.dry_run))
    options = query_options.list_options_of(request.query, entry.kind)
    return await responses.list_response(
        entry, await delete_collection(backend, entry, call, options, delete_options), format
    )


async def on_watch(backend: Backend, entry: ServedResource, call: ApiCall, request: Request) -> Response:
    format = negotiate_stream(request.headers.get("accept"), numbered=not entry.kind.is_custom)
    responses.check_format(format, lists=False)
    options = query_options.watch_options_of(request.query, entry.kind)
    lines = responses.WatchLines(entry, format, query_options.include_object(request.query))
    pushed = _PushWriter(lines, options.selection)
    stream = _stream(backend, entry, call, options, pushed)
    return Response(
        status=200, headers=responses.HEADERS, body=stream, patience=UNREAD_TIMEOUT, direct=pushed.set_sink
    )


class _PushWriter:
    """Writes events to a watcher's connection when they are published, as long as its buffer has room."""

    def __init__(self, lines: responses.WatchLines, selection: Selection) -> None:
        self.lines = lines
        self._selection = selection
        self._sink: DirectWriter | None = None

    def set_sink(self, sink: DirectWriter) -> None:
        self._sink = sink

    def is_full(self) -> bool:
        return self._sink is None or self._sink.is_full

    def __call__(self, batch: Sequence[StoreEvent]) -> bool:
        assert self._sink is not None
        try:
            data = self.lines.encode_events(batch, self._selection)
        except Exception:  # the publisher must not fail; the stream gets the same batch and reports the error
            return False
        if data:
            self._sink.write(data)
        return True


async def _stream(
    backend: Backend, entry: ServedResource, call: ApiCall, options: WatchOptions, pushed: _PushWriter
) -> AsyncGenerator[bytes, None]:
    """Send errors as the last event, because the status line is already sent."""
    try:
        async with aclosing(watch(backend, entry, call, options, pushed)) as batches:
            async for batch in batches:
                yield pushed.lines.encode(batch)
    except APIError as error:
        yield responses.error_line(error)
    except (StoreClosed, StoreFailed) as error:
        yield responses.error_line(to_api_error(error))


async def on_post(
    post: PostSubresource, backend: Backend, entry: ServedResource, call: ApiCall, request: Request
) -> Response:
    format = _negotiate_format(entry, request)  # an unacceptable response is refused before the act
    validation = query_options.field_validation(request.query, "create")
    kind = kinds.of(post.type)
    obj, warnings = await decode.decode_request(kind, request, validation)
    call.warnings.extend(warnings)
    await backend.admission.post(call, obj)
    result = await post.act(backend, entry, call, obj)
    if result is None:
        return responses.success_response(201)
    return await responses.object_response(format, 201, codec.encode(result))


HANDLERS: Mapping[str, Handler] = {
    "create": on_create, "get": on_get, "list": on_list, "watch": on_watch, "update": on_update,
    "patch": on_patch, "delete": on_delete, "deletecollection": on_delete_collection,
}  # fmt: skip
