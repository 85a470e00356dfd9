"""Requests on resources: HTTP becomes a call of a verb, and what the verb returns becomes an answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

from msgspec import structs

from volplane.api import codec, kinds
from volplane.api.errors import APIError
from volplane.apiserver import answers, decode, options
from volplane.apiserver import patch as patches
from volplane.apiserver.backend import Backend
from volplane.apiserver.failures import api_error
from volplane.apiserver.negotiation import Wanted, negotiate
from volplane.apiserver.registry import Entry
from volplane.apiserver.selection import Selection
from volplane.apiserver.strategy import Call
from volplane.apiserver.subresources import Post
from volplane.apiserver.verbs.apply import apply
from volplane.apiserver.verbs.collection import delete_collection
from volplane.apiserver.verbs.create import create
from volplane.apiserver.verbs.delete import delete
from volplane.apiserver.verbs.get import get
from volplane.apiserver.verbs.list import list_records
from volplane.apiserver.verbs.patch import patch
from volplane.apiserver.verbs.update import update
from volplane.apiserver.verbs.watch import Asked, watch
from volplane.store import Closed, Event, Failed
from volplane.web import Request, Response, Sink

UNREAD = 60.0  # seconds a watcher may not read while there is something to tell; then it begins anew

Handler = Callable[[Backend, Entry, Call, Request], Awaitable[Response]]


def _wanted(entry: Entry, request: Request, *, lists: bool = False) -> Wanted:
    wanted = negotiate(request.headers.get("accept"), numbered=entry.kind.type is not None)
    if wanted.transform:
        answers.check(wanted, lists=lists)
    return wanted


async def _decoded(entry: Entry, call: Call, request: Request) -> object:
    call.size = len(request.body)
    validation = options.field_validation(request.query, call.verb)
    obj, warnings = await decode.decode_request(entry.kind, request, validation)
    call.warnings.extend(warnings)
    return obj


async def on_create(backend: Backend, entry: Entry, call: Call, request: Request) -> Response:
    wanted = _wanted(entry, request)
    outcome = await create(backend, entry, call, await _decoded(entry, call, request))
    return await answers.written(outcome, wanted, options.include_object(request.query))


async def on_update(backend: Backend, entry: Entry, call: Call, request: Request) -> Response:
    wanted = _wanted(entry, request)
    outcome = await update(backend, entry, call, await _decoded(entry, call, request))
    return await answers.written(outcome, wanted, options.include_object(request.query))


async def on_patch(backend: Backend, entry: Entry, call: Call, request: Request) -> Response:
    wanted = _wanted(entry, request)
    call.size = len(request.body)
    validation = options.field_validation(request.query, "patch")
    content_type = request.headers.get("content-type")
    applies = patches.media_type(entry.kind, content_type) == patches.APPLY
    force = options.force(request.query, applies=applies)
    if applies:
        outcome = await apply(backend, entry, call, request.body, force=force, validation=validation)
    else:
        outcome = await patch(backend, entry, call, content_type, request.body, validation=validation)
    return await answers.written(outcome, wanted, options.include_object(request.query))


async def on_get(backend: Backend, entry: Entry, call: Call, request: Request) -> Response:
    wanted = _wanted(entry, request)
    found = await get(backend, entry, call, version=request.query.get("resourceVersion"))
    return await answers.record(entry, found, wanted, options.include_object(request.query))


async def on_list(backend: Backend, entry: Entry, call: Call, request: Request) -> Response:
    wanted = _wanted(entry, request, lists=True)
    asked = options.list_options(request.query, entry.facts)
    found = await list_records(backend, entry, call, asked)
    return await answers.listed(entry, found, wanted, options.include_object(request.query))


async def on_delete(backend: Backend, entry: Entry, call: Call, request: Request) -> Response:
    wanted = _wanted(entry, request)
    how = options.delete_options(request)
    dry = call.dry_run or bool(how.dry_run)
    outcome = await delete(backend, entry, structs.replace(call, dry_run=dry), how)
    if outcome.gone and not entry.facts.answers_deleted:
        meta = entry.shape.metadata(outcome.obj)
        details = {"name": meta.name, "group": entry.kind.group, "kind": entry.kind.plural, "uid": meta.uid}
        return answers.success(200, {k: v for k, v in details.items() if v})
    answer = await answers.written(outcome, wanted)
    if not outcome.gone and how.orphan_dependents is False:
        answer.status = 202
    return answer


async def on_delete_collection(backend: Backend, entry: Entry, call: Call, request: Request) -> Response:
    wanted = _wanted(entry, request, lists=True)
    how = options.delete_options(request)
    call = structs.replace(call, dry_run=call.dry_run or bool(how.dry_run))
    asked = options.list_options(request.query, entry.facts)
    return await answers.listed(entry, await delete_collection(backend, entry, call, asked, how), wanted)


async def on_watch(backend: Backend, entry: Entry, call: Call, request: Request) -> Response:
    wanted = _wanted(entry, request)
    asked = options.watch_options(request.query, entry.facts)
    lines = answers.Lines(entry, wanted, options.include_object(request.query))
    pushed = _Pushed(lines, asked.selection)
    stream = _stream(backend, entry, call, asked, pushed)
    return Response(
        status=200, headers=answers.HEADERS, body=stream, patience=UNREAD, direct=pushed.connected
    )


class _Pushed:
    """A watcher whose events are written as they are published, as long as its client takes them."""

    def __init__(self, lines: answers.Lines, selection: Selection) -> None:
        self.lines = lines
        self._selection = selection
        self._sink: Sink | None = None

    def connected(self, sink: Sink) -> None:
        self._sink = sink

    def is_full(self) -> bool:
        return self._sink is None or self._sink.is_full

    def __call__(self, batch: Sequence[Event]) -> bool:
        assert self._sink is not None
        try:
            data = self.lines.at_once(batch, self._selection)
        except Exception:  # whoever publishes cannot help it; the stream meets the same, and tells
            return False
        if data:
            self._sink.write(data)
        return True


async def _stream(
    backend: Backend, entry: Entry, call: Call, asked: Asked, pushed: _Pushed
) -> AsyncGenerator[bytes, None]:
    """The status line is long gone when something goes wrong, so errors are told as the last event."""
    try:
        async with aclosing(watch(backend, entry, call, asked, pushed)) as batches:
            async for batch in batches:
                yield pushed.lines.of(batch)
    except APIError as error:
        yield answers.error_line(error)
    except (Closed, Failed) as error:
        yield answers.error_line(api_error(error))


async def on_post(post: Post, backend: Backend, entry: Entry, call: Call, request: Request) -> Response:
    validation = options.field_validation(request.query, "create")
    kind = kinds.of(post.type)
    obj, warnings = await decode.decode_request(kind, request, validation)
    call.warnings.extend(warnings)
    await backend.admission.post(call, obj)
    made = await post.act(backend, entry, call, obj)
    if made is None:
        return answers.success(201)
    return await answers.body(_wanted(entry, request), 201, codec.encode(made))


HANDLERS: Mapping[str, Handler] = {
    "create": on_create,
    "get": on_get,
    "list": on_list,
    "watch": on_watch,
    "update": on_update,
    "patch": on_patch,
    "delete": on_delete,
    "deletecollection": on_delete_collection,
}
