"""Values that are messages in protobuf but scalars in JSON: times, quantities, raw JSON.

Each reader returns the JSON value of its message, or None for a zero that JSON omits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from volplane.apiserver.decode.protobuf.wire import InvalidProtobuf, skip, span, to_signed, varint

Reader = Callable[[bytes, int, int], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_json = msgspec.json.Decoder()


def text(data: bytes, at: int, end: int) -> str:
    part = data[at:end]
    try:
        return part.decode()
    except UnicodeDecodeError:
        return part.decode(errors="replace")  # as Go's JSON would write it


def raw(data: bytes, at: int, end: int) -> bytes:
    return data[at:end]


def members(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a small message as (tag, begin, end); for a varint begin is its value."""
    while at < end:
        tag, at = varint(data, at)
        if tag & 7 == 2:
            start, at = span(data, at, end)
            yield tag, start, at
        elif tag & 7 == 0:
            value, at = varint(data, at)
            yield tag, value, at
        elif tag & 7 == 4:
            raise InvalidProtobuf("proto: wiretype end group for non-group")
        else:
            at = skip(data, at, end, tag)
    if at > end:
        raise InvalidProtobuf("unexpected EOF")


def time(data: bytes, at: int, end: int) -> str | None:
    """Whole seconds, as in JSON: both encodings of an object must be equal."""
    moment = _moment(data, at, end, exact=False)
    return None if moment is None else f"{moment.isoformat()}Z"


def micro_time(data: bytes, at: int, end: int) -> str | None:
    moment = _moment(data, at, end, exact=True)
    return None if moment is None else f"{moment.isoformat(timespec='microseconds')}Z"


def _moment(data: bytes, at: int, end: int, *, exact: bool) -> datetime | None:
    if at == end:
        return None
    seconds = nanos = 0
    for tag, value, _ in members(data, at, end):
        if tag == 0x08:
            seconds = to_signed(value)
        elif tag == 0x10:
            nanos = to_signed(value)
    micros = int(nanos / 1000) if exact else 0  # towards zero
    try:
        return (_EPOCH + timedelta(seconds=seconds, microseconds=micros)).replace(tzinfo=None)
    except OverflowError as error:
        raise InvalidProtobuf("Time.MarshalJSON: year outside of range [0,9999]") from error


def amount(data: bytes, at: int, end: int) -> str:
    found = ""
    for tag, start, stop in members(data, at, end):
        if tag == 0x0A:
            found = text(data, start, stop)
    return found or "0"


def int_or_string(data: bytes, at: int, end: int) -> int | str:
    kind, number, word = 0, 0, ""
    for tag, start, stop in members(data, at, end):
        if tag == 0x08:
            kind = start
        elif tag == 0x10:
            number = to_signed(start)
        elif tag == 0x1A:
            word = text(data, start, stop)
    if kind > 1:
        raise InvalidProtobuf("impossible IntOrString.Type")
    return word if kind else number


def embedded_json(data: bytes, at: int, end: int) -> Any:
    """JSON inside protobuf: field sets, parameters, defaults of schemas."""
    found = b""
    for tag, start, stop in members(data, at, end):
        if tag == 0x0A:
            found = data[start:stop]
    if not found:
        return None
    try:
        return _json.decode(found)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidProtobuf(str(error)) from error


def string_list(data: bytes, at: int, end: int) -> list[str]:
    """A list of strings as the value of a map, which protobuf wraps in a message."""
    return [text(data, start, stop) for tag, start, stop in members(data, at, end) if tag == 0x0A]


def schema_or_list(schema: Reader) -> Reader:
    return lambda data, at, end: _many(schema, data, at, end, 0x12) or _last(schema, data, at, end, 0x0A)


def schema_or_names(schema: Reader) -> Reader:
    return lambda data, at, end: _many(text, data, at, end, 0x12) or _last(schema, data, at, end, 0x0A)


def schema_or_bool(schema: Reader) -> Reader:
    def read(data: bytes, at: int, end: int) -> Any:
        found = _last(schema, data, at, end, 0x12)
        allows = [bool(value) for tag, value, _ in members(data, at, end) if tag == 0x08]
        return (allows or [False])[-1] if found is None else found

    return read


def _many(read: Reader, data: bytes, at: int, end: int, wanted: int) -> list[Any]:
    return [read(data, start, stop) for tag, start, stop in members(data, at, end) if tag == wanted]


def _last(read: Reader, data: bytes, at: int, end: int, wanted: int) -> Any:
    return (_many(read, data, at, end, wanted) or [None])[-1]
