"""Answers on the wire: objects, lists, tables, watch lines and Status, from what the verbs return.

The common case is bytes from the store in one concatenation. The Content-Type of JSON has no charset: some
clients compare the whole string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import yaml
from msgspec import Raw, Struct

from volplane.api.errors import APIError, NotAcceptable
from volplane.apiserver import effort, tables
from volplane.apiserver.backend import Written
from volplane.apiserver.feed import Note
from volplane.apiserver.negotiation import JSON, METADATA, METADATA_LIST, YAML, Wanted
from volplane.apiserver.registry import Entry
from volplane.apiserver.selection import Selection
from volplane.apiserver.verbs.list import Listed
from volplane.apiserver.verbs.watch import BOOKMARK, Told, told_of
from volplane.store import Event, Record
from volplane.web import Response

HEADERS = [("Content-Type", JSON), ("Cache-Control", "no-cache, private")]
INITIAL_END = "k8s.io/initial-events-end"

YAML_COSTS = 8  # times what the rest of a request of the same size takes
AT_ONCE, ROWS_AT_ONCE = 1000, 50  # items of a list that are made in one turn of the loop

_encoder = msgspec.json.Encoder()


class _MetadataOnly(Struct):
    metadata: Raw


_metadata = msgspec.json.Decoder(_MetadataOnly)


def json(status: int, data: Any) -> Response:
    return Response(status=status, headers=HEADERS, body=_encoder.encode(data) + b"\n")


def failure(error: APIError) -> Response:
    headers = HEADERS
    if error.retry_after:
        headers = [*HEADERS, ("Retry-After", str(error.retry_after))]
    return Response(status=error.code, headers=headers, body=_encoder.encode(error.status()) + b"\n")


def success(code: int, details: dict[str, Any] | None = None) -> Response:
    """The Status of an operation that has no object to show."""
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        status["details"] = details
    return json(code, {**status, "code": code} if code == 201 else status)


async def body(wanted: Wanted, status: int, data: bytes) -> Response:
    """JSON bytes in the media type that was asked for."""
    if wanted.media == YAML:
        text = await effort.run(len(data) * YAML_COSTS, [], _as_yaml, data)
        return Response(status=status, headers=[("Content-Type", YAML)], body=text)
    return Response(status=status, headers=HEADERS, body=data + b"\n")


def _as_yaml(data: bytes) -> bytes:
    text: str = yaml.dump(msgspec.json.decode(data), Dumper=_Dumper, sort_keys=False)
    return text.encode()


class _Dumper(yaml.CSafeDumper):
    """Repeated values are written out: clients do not expect anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# One object


async def record(entry: Entry, found: Record, wanted: Wanted, include: str = "") -> Response:
    wire = entry.shape.wire(found.value, found.revision)
    if not wanted.transform:
        return await body(wanted, 200, wire)
    return await body(
        wanted, 200, _transformed(entry, wanted, include, wire, lambda: entry.feed.object(found))
    )


async def written(outcome: Written, wanted: Wanted, include: str = "") -> Response:
    entry = outcome.entry
    status = 201 if outcome.created else 200
    wire = entry.shape.wire(outcome.value, outcome.revision)
    if not wanted.transform:
        return await body(wanted, status, wire)
    return await body(wanted, status, _transformed(entry, wanted, include, wire, lambda: outcome.obj))


def _transformed(
    entry: Entry, wanted: Wanted, include: str, wire: bytes, obj: Callable[[], Any], columns: bool = True
) -> bytes:
    match wanted.transform:
        case "Table":
            table = tables.render(entry.kind, [obj()], include or "Metadata", columns, entry.strategy.printer)
            table["apiVersion"] = f"meta.k8s.io/{wanted.version}"
            return _encoder.encode(table)
        case "PartialObjectMetadata":
            return partial(wire, wanted.version)
        case _:
            raise _no_item(wanted)


def _no_item(wanted: Wanted) -> NotAcceptable:
    return NotAcceptable(
        f"only the following media types are accepted when converting to {wanted.transform}: none"
    )


def _no_list() -> NotAcceptable:
    return NotAcceptable(
        f"only the following media types are accepted when converting to {METADATA_LIST}: {JSON}"
    )


def check(wanted: Wanted, *, lists: bool) -> None:
    """Raises NotAcceptable before anything is done: who is refused must not have acted."""
    if lists and wanted.transform == METADATA:
        raise _no_list()
    if not lists and wanted.transform == METADATA_LIST:
        raise _no_item(wanted)


def partial(wire: bytes, version: str = "v1") -> bytes:
    """An object reduced to its metadata, which stays as it is in bytes."""
    found = _metadata.decode(wire).metadata
    head = f'{{"kind":"{METADATA}","apiVersion":"meta.k8s.io/{version}","metadata":'.encode()
    return head + bytes(found) + b"}"


# Lists


async def listed(entry: Entry, found: Listed, wanted: Wanted, include: str = "") -> Response:
    meta = _list_meta(found)
    records, wire = found.records, entry.shape.wire
    match wanted.transform:
        case "Table":
            return await body(wanted, 200, await _table(entry, records, meta, wanted, include or "Metadata"))
        case "PartialObjectMetadataList":
            head = f'{{"kind":"{METADATA_LIST}","apiVersion":"meta.k8s.io/{wanted.version}","metadata":'
            items = await effort.each(
                records, lambda r: partial(wire(r.value, r.revision), wanted.version), ROWS_AT_ONCE
            )
            return await body(wanted, 200, _list(head.encode(), meta, items))
        case "PartialObjectMetadata":
            raise _no_list()
        case _:
            items = await effort.each(records, lambda r: wire(r.value, r.revision), AT_ONCE)
            return await body(wanted, 200, _list(entry.list_head, meta, items))


async def _table(
    entry: Entry, records: Sequence[Record], meta: dict[str, Any], wanted: Wanted, include: str
) -> bytes:
    printer = entry.strategy.printer
    table = tables.render(entry.kind, [], include, True, printer)

    def rows(record: Record) -> Raw:
        made = tables.render(entry.kind, [entry.feed.object(record)], include, False, printer)
        return Raw(_encoder.encode(made["rows"][0]))

    made = await effort.each(records, rows, ROWS_AT_ONCE)
    return _encoder.encode(
        {**table, "apiVersion": f"meta.k8s.io/{wanted.version}", "metadata": meta, "rows": made}
    )


def _list_meta(found: Listed) -> dict[str, Any]:
    meta: dict[str, Any] = {"resourceVersion": str(found.revision)}
    if found.token:
        meta["continue"] = found.token
    if found.remaining:
        meta["remainingItemCount"] = found.remaining
    return meta


def _list(head: bytes, meta: dict[str, Any], items: Sequence[bytes]) -> bytes:
    return b'%b%b,"items":[%b]}' % (head, _encoder.encode(meta), b",".join(items))


# Watch lines


class Lines:
    """Turns what a watch tells into lines; a table's columns are told with its first event only."""

    def __init__(self, entry: Entry, wanted: Wanted, include: str) -> None:
        self._entry = entry
        self._wanted = wanted
        self._include = include
        self._columns = True
        kind = entry.kind
        self._bookmark = (
            f'{{"type":"BOOKMARK","object":{{"kind":"{kind.kind}","apiVersion":"{kind.api_version}",'
        )

    def of(self, batch: Sequence[Told]) -> bytes:
        return b"".join([self._line(told) for told in batch])

    def at_once(self, batch: Sequence[Event], selection: Selection) -> bytes:
        """The same of events as they come; made once for all who see them alike."""
        if selection.everything and not self._wanted.transform:
            return self._entry.feed.lines(batch)
        return self.of(told_of(self._entry, selection, batch))

    def _line(self, told: Told) -> bytes:
        if told.type == BOOKMARK or told.note is None:
            return self._bookmark_line(told)
        if not self._wanted.transform:
            return told.note.line(told.type)
        return b'{"type":"%b","object":%b}\n' % (told.type.encode(), self._object(told.type, told.note))

    def _object(self, type: str, note: Note) -> bytes:
        wire = note.body(type)
        made = _transformed(
            self._entry, self._wanted, self._include, wire, lambda: note.object(type), self._columns
        )
        self._columns = False
        return made

    def _bookmark_line(self, told: Told) -> bytes:
        annotations = f',"annotations":{{"{INITIAL_END}":"true"}}' if told.ends_initial else ""
        meta = f'"metadata":{{"resourceVersion":"{told.revision}","creationTimestamp":null{annotations}}}'
        return f"{self._bookmark}{meta}}}}}\n".encode()


def error_line(error: APIError) -> bytes:
    return b'{"type":"ERROR","object":%b}\n' % _encoder.encode(error.status())
