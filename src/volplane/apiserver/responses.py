"""Encode what the verbs return as HTTP responses: objects, lists, tables, watch lines and Status.

The common case concatenates stored bytes. The Content-Type of JSON has no charset, because some clients
compare the whole string.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import yaml
from msgspec import Raw, Struct

from volplane.api.errors import APIError, NotAcceptable
from volplane.apiserver import cpu_offload, tables
from volplane.apiserver.backend import WriteResult
from volplane.apiserver.negotiation import JSON, METADATA, METADATA_LIST, TABLE, YAML, ResponseFormat
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.selectors import Selection
from volplane.apiserver.verbs.list import ListResult
from volplane.apiserver.verbs.watch import BOOKMARK, WatchItem, watch_items
from volplane.apiserver.watch_cache import WatchEvent
from volplane.store import StoreEvent, StoreRecord
from volplane.web import Response

HEADERS = [("Content-Type", JSON), ("Cache-Control", "no-cache, private")]
INITIAL_END = "k8s.io/initial-events-end"

YAML_COST_FACTOR = 8  # YAML takes this many times longer than the rest of a request of the same size
AT_ONCE, ROWS_AT_ONCE = 1000, 50  # list items encoded in one turn of the event loop

_encoder = msgspec.json.Encoder()


class _MetadataOnly(Struct):
    metadata: Raw


_metadata = msgspec.json.Decoder(_MetadataOnly)


def json_response(status: int, data: Any) -> Response:
    return Response(status=status, headers=HEADERS, body=_encoder.encode(data) + b"\n")


def error_response(error: APIError) -> Response:
    headers = HEADERS
    if error.retry_after:
        headers = [*HEADERS, ("Retry-After", str(error.retry_after))]
    return Response(status=error.code, headers=headers, body=_encoder.encode(error.status()) + b"\n")


def success_response(code: int, details: dict[str, Any] | None = None) -> Response:
    """Return the Status of an operation that returns no object."""
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        status["details"] = details
    return json_response(code, {**status, "code": code} if code == 201 else status)


async def object_response(format: ResponseFormat, status: int, data: bytes) -> Response:
    """Return JSON bytes in the requested media type."""
    if format.media == YAML:
        text = await cpu_offload.run(len(data) * YAML_COST_FACTOR, [], _as_yaml, data)
        return Response(status=status, headers=[("Content-Type", YAML)], body=text)
    return Response(status=status, headers=HEADERS, body=data + b"\n")


def _as_yaml(data: bytes) -> bytes:
    text: str = yaml.dump(msgspec.json.decode(data), Dumper=_Dumper, sort_keys=False)
    return text.encode()


class _Dumper(yaml.CSafeDumper):
    """Writes repeated values in full: clients do not expect anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# One object


async def record_response(
    entry: ServedResource, found: StoreRecord, format: ResponseFormat, include: str = ""
) -> Response:
    wire = entry.access.to_wire(found.value, found.revision)
    if format.transform:
        wire = _transform(entry, format, include, wire, lambda: entry.watch_cache.object(found))
    return await object_response(format, 200, wire)


async def write_response(outcome: WriteResult, format: ResponseFormat, include: str = "") -> Response:
    wire = outcome.entry.access.to_wire(outcome.value, outcome.revision)
    if format.transform:
        wire = _transform(outcome.entry, format, include, wire, lambda: outcome.obj)
    return await object_response(format, 201 if outcome.created else 200, wire)


def _transform(
    entry: ServedResource,
    format: ResponseFormat,
    include: str,
    wire: bytes,
    obj: Callable[[], Any],
    columns: bool = True,
) -> bytes:
    match format.transform:
        case "Table":
            printer, wanted = entry.strategy.printer, include or "Metadata"
            table = tables.render(entry.kind, [obj()], wanted, columns, printer, format.version)
            return _encoder.encode(table)
        case "PartialObjectMetadata":
            return partial_object_metadata(wire, format.version)
        case _:
            raise not_convertible(format)


def not_convertible(format: ResponseFormat) -> NotAcceptable:
    """The error for an object that has no such form."""
    return NotAcceptable(
        f"only the following media types are accepted when converting to {format.transform}: none"
    )


def _no_list() -> NotAcceptable:
    return NotAcceptable(
        f"only the following media types are accepted when converting to {METADATA_LIST}: {JSON}"
    )


def check_format(format: ResponseFormat, *, lists: bool) -> None:
    """Raise NotAcceptable before the verb runs, so that a refused request has no effect."""
    if lists and format.transform == METADATA:
        raise _no_list()
    if not lists and format.transform == METADATA_LIST:
        raise not_convertible(format)


def partial_object_metadata(wire: bytes, version: str = "v1") -> bytes:
    """Reduce an object to its metadata; the metadata bytes are copied unchanged."""
    found = _metadata.decode(wire).metadata
    head = f'{{"kind":"{METADATA}","apiVersion":"meta.k8s.io/{version}","metadata":'.encode()
    return head + bytes(found) + b"}"


# Lists


async def list_response(
    entry: ServedResource, found: ListResult, format: ResponseFormat, include: str = ""
) -> Response:
    meta = _list_meta(found)
    records, wire = found.records, entry.access.to_wire
    match format.transform:
        case "Table":
            return await object_response(
                format, 200, await _table(entry, records, meta, format, include or "Metadata")
            )
        case "PartialObjectMetadataList":
            head = f'{{"kind":"{METADATA_LIST}","apiVersion":"meta.k8s.io/{format.version}","metadata":'
            items = await cpu_offload.map_in_turns(
                records,
                lambda r: partial_object_metadata(wire(r.value, r.revision), format.version),
                ROWS_AT_ONCE,
            )
            return await object_response(format, 200, _list(head.encode(), meta, items))
        case "PartialObjectMetadata":
            raise _no_list()
        case _:
            items = []
            for at in range(0, len(records), AT_ONCE):
                if at:
                    await asyncio.sleep(0)
                items += entry.access.to_list_items(records[at : at + AT_ONCE])
            return await object_response(format, 200, _list(entry.list_prefix, meta, items))


async def _table(
    entry: ServedResource,
    records: Sequence[StoreRecord],
    meta: dict[str, Any],
    format: ResponseFormat,
    include: str,
) -> bytes:
    printer = entry.strategy.printer
    table = tables.render(entry.kind, [], include, True, printer, format.version)

    def rows(record: StoreRecord) -> Raw:
        obj = entry.watch_cache.object(record)
        encoded = tables.render(entry.kind, [obj], include, False, printer, format.version)
        return Raw(_encoder.encode(encoded["rows"][0]))

    encoded = await cpu_offload.map_in_turns(records, rows, ROWS_AT_ONCE)
    return _encoder.encode({**table, "metadata": meta, "rows": encoded})


def _list_meta(found: ListResult) -> dict[str, Any]:
    meta: dict[str, Any] = {"resourceVersion": str(found.revision)}
    if found.token:
        meta["continue"] = found.token
    if found.remaining:
        meta["remainingItemCount"] = found.remaining
    return meta


def _list(head: bytes, meta: dict[str, Any], items: Sequence[bytes]) -> bytes:
    return b'%b%b,"items":[%b]}' % (head, _encoder.encode(meta), b",".join(items))


# Watch lines


class WatchLines:
    """Encodes watch items as lines. Only the first event of a table carries the column definitions."""

    def __init__(self, entry: ServedResource, format: ResponseFormat, include: str) -> None:
        self._entry = entry
        self._wanted = format
        self._include = include
        self._columns = True
        kind, api_version = entry.kind.kind, entry.kind.api_version
        if format.transform:
            kind, api_version = format.transform, f"meta.k8s.io/{format.version}"
        self._bookmark = f'{{"type":"BOOKMARK","object":{{"kind":"{kind}","apiVersion":"{api_version}",'

    def encode(self, batch: Sequence[WatchItem]) -> bytes:
        return b"".join([self._line(item) for item in batch])

    def encode_events(self, batch: Sequence[StoreEvent], selection: Selection) -> bytes:
        """Encode store events. Watchers without selector and transform share the encoded bytes."""
        if selection.selects_all and not self._wanted.transform:
            return self._entry.watch_cache.encode_lines(batch)
        return self.encode(watch_items(self._entry, selection, batch))

    def _line(self, item: WatchItem) -> bytes:
        if item.type == BOOKMARK or item.event is None:
            return self._bookmark_line(item)
        if not self._wanted.transform:
            return item.event.line(item.type)
        return b'{"type":"%b","object":%b}\n' % (item.type.encode(), self._object(item.type, item.event))

    def _object(self, type: str, event: WatchEvent) -> bytes:
        wire = event.body(type)
        encoded = _transform(
            self._entry, self._wanted, self._include, wire, lambda: event.object(type), self._columns
        )
        self._columns = False
        return encoded

    def _bookmark_line(self, item: WatchItem) -> bytes:
        annotations = f',"annotations":{{"{INITIAL_END}":"true"}}' if item.ends_initial else ""
        meta = f'"metadata":{{"resourceVersion":"{item.revision}","creationTimestamp":null{annotations}}}'
        if self._wanted.transform == TABLE:
            meta = f'"metadata":{{"resourceVersion":"{item.revision}"}},"columnDefinitions":null,"rows":[]'
        return f"{self._bookmark}{meta}}}}}\n".encode()


def error_line(error: APIError) -> bytes:
    return b'{"type":"ERROR","object":%b}\n' % _encoder.encode(error.status())
