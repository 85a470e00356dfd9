"""Protobuf messages as plain data with JSON names. A table of actions is compiled for each type.

A field that Go holds by value is always on the wire: zero means that it is not set. A field that Go holds by
pointer is on the wire only if it is set, even to zero. If a field occurs twice, the last value counts, and
messages are merged.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from volplane.api.apiextensions import JSONSchemaProps
from volplane.api.object import Field, Object, schema
from volplane.api.published_schema import PublishedField, list_message_fields, message_name
from volplane.apiserver.decode.protobuf import values
from volplane.apiserver.decode.protobuf.values import Reader
from volplane.apiserver.decode.protobuf.wire import (
    END_GROUP,
    FIXED64,
    LENGTH,
    VARINT,
    InvalidProtobuf,
    skip,
    span,
    to_signed,
    varint,
)

Map = dict[str, Any]
Fill = Callable[[bytes, int, int, Map], None]  # reads the fields between two positions into a dict
Act = Callable[[bytes, int, int, Map], int]  # reads a field after its tag; returns the next position


@cache
def message(of: type[Object]) -> Fill:
    """The reader of a type."""
    return _fill(message_name(of), of)


@cache
def _fill(row: str, of: type[Object]) -> Fill:
    acts: dict[int, Act] = {}
    numbers: dict[int, str] = {}
    action = acts.get

    def fill(data: bytes, at: int, end: int, out: Map) -> None:
        while at < end:
            tag = data[at]
            if tag < 0x80:
                at += 1
            else:
                tag, at = varint(data, at)
            act = action(tag)
            at = skip_unknown(data, at, end, tag) if act is None else act(data, at, end, out)
        if at > end:
            raise InvalidProtobuf("unexpected EOF")

    def skip_unknown(data: bytes, at: int, end: int, tag: int) -> int:
        number, kind = tag >> 3, tag & 7
        if kind == END_GROUP:
            raise InvalidProtobuf(f"proto: {of.__name__}: wiretype end group for non-group")
        if not 0 < number < 1 << 29:
            raise InvalidProtobuf(f"proto: {of.__name__}: illegal tag {number} (wire type {tag})")
        if number in numbers:
            raise InvalidProtobuf(f"proto: wrong wireType = {kind} for field {numbers[number]}")
        return skip(data, at, end, tag)

    for field in list_message_fields(row):
        numbers[field.number] = field.name
        for kind, act in _acts(field, of).items():
            acts[field.number << 3 | kind] = act
    return fill


def _acts(field: PublishedField, of: type[Object]) -> dict[int, Act]:
    """The actions for a field, by wire type."""
    if field.inlined_message:
        return {LENGTH: _inlined_message(field.inlined_message, of)}
    known = schema(of)[field.name]
    name = field.name
    keep = known.pointer or (known.shape == "any" and not known.format)
    match known.shape:
        case "list":
            assert known.item is not None
            return _list(name, known.item, field.form)
        case "map":
            assert known.item is not None
            return {LENGTH: _map(name, known.item, field.form)}
        case "integer" | "boolean":
            return {VARINT: _number(name, keep, as_bool=known.shape == "boolean")}
        case "number":
            return {FIXED64: _double(name, keep)}
        case "object":
            assert known.type is not None
            return {LENGTH: _object(name, keep, known.type)}
        case "string" if not known.format:
            return {LENGTH: _text(name, keep)}
    return {LENGTH: _value(name, keep, _reader(known, field.form))}


# One value


def _text(name: str, keep: bool) -> Act:
    decode = values.text

    def act(data: bytes, at: int, end: int, out: Map) -> int:
        size = data[at]
        if size < 0x80:
            at += 1
            stop = at + size
            if stop > end:
                raise InvalidProtobuf("unexpected EOF")
        else:
            at, stop = span(data, at, end)
        if at < stop or keep:
            out[name] = decode(data, at, stop)
        elif name in out:
            del out[name]
        return stop

    return act


def _number(name: str, keep: bool, *, as_bool: bool) -> Act:
    def act(data: bytes, at: int, end: int, out: Map) -> int:
        value, at = varint(data, at)
        if value or keep:
            out[name] = bool(value) if as_bool else to_signed(value)
        elif name in out:
            del out[name]
        return at

    return act


def _double(name: str, keep: bool) -> Act:
    def act(data: bytes, at: int, end: int, out: Map) -> int:
        if at + 8 > end:
            raise InvalidProtobuf("unexpected EOF")
        value: float = struct.unpack_from("<d", data, at)[0]
        if not math.isfinite(value):
            raise InvalidProtobuf("json: unsupported value")
        if value or keep:
            out[name] = value
        elif name in out:
            del out[name]
        return at + 8

    return act


def _object(name: str, keep: bool, of: type[Object]) -> Act:
    fill: Fill | None = None  # compiled at first use: the type may be the one being compiled

    def act(data: bytes, at: int, end: int, out: Map) -> int:
        nonlocal fill
        if fill is None:
            fill = message(of)
        at, stop = span(data, at, end)
        inner = out.get(name)
        if inner is None:
            inner = {}
        fill(data, at, stop, inner)
        if inner or keep:
            out[name] = inner
        elif name in out:
            del out[name]
        return stop

    return act


def _inlined_message(row: str, of: type[Object]) -> Act:
    fill = _fill(row, of)

    def act(data: bytes, at: int, end: int, out: Map) -> int:
        at, stop = span(data, at, end)
        fill(data, at, stop, out)
        return stop

    return act


def _value(name: str, keep: bool, read: Reader) -> Act:
    def act(data: bytes, at: int, end: int, out: Map) -> int:
        at, stop = span(data, at, end)
        value = read(data, at, stop)
        if value is None or not (value or keep):
            out.pop(name, None)
        else:
            out[name] = value
        return stop

    return act


# Lists and maps


def _list(name: str, item: Field, form: str) -> dict[int, Act]:
    if item.shape == "integer":
        return _integers(name)
    read = _reader(item, form)

    def act(data: bytes, at: int, end: int, out: Map) -> int:
        at, stop = span(data, at, end)
        value = read(data, at, stop)
        held = out.get(name)
        if held is None:
            out[name] = [value]
        else:
            held.append(value)
        return stop

    return {LENGTH: act}


def _integers(name: str) -> dict[int, Act]:
    def read_one(data: bytes, at: int, end: int, out: Map) -> int:
        value, at = varint(data, at)
        out.setdefault(name, []).append(to_signed(value))
        return at

    def read_packed(data: bytes, at: int, end: int, out: Map) -> int:
        at, stop = span(data, at, end)
        held = out.setdefault(name, [])
        while at < stop:
            value, at = varint(data, at)
            held.append(to_signed(value))
        if at > stop:
            raise InvalidProtobuf("unexpected EOF")
        return stop

    return {VARINT: read_one, LENGTH: read_packed}


def _map(name: str, item: Field, form: str) -> Act:
    read = _reader(item, form)

    def act(data: bytes, at: int, end: int, out: Map) -> int:
        at, stop = span(data, at, end)
        key, where = "", (stop, stop)
        for tag, start, past in values.members(data, at, stop):
            if tag == 0x0A:
                key = values.text(data, start, past)
            elif tag == 0x12:
                where = (start, past)
        held = out.get(name)
        if held is None:
            held = out[name] = {}
        held[key] = read(data, *where)  # an absent value is an empty one
        return stop

    return act


def _reader(field: Field, form: str = "") -> Reader:
    """The reader of a length-delimited value."""
    if form:
        return _UNIONS[form](_fresh(JSONSchemaProps))
    if field.format:
        return _FORMATS[field.format]
    match field.shape:
        case "object":
            assert field.type is not None
            return _fresh(field.type)
        case "bytes":
            return values.raw
        case "any":
            return values.embedded_json
        case "list":
            return values.string_list
        case "string":
            return values.text
    raise TypeError(f"no protobuf form for a {field.shape}")


def _fresh(of: type[Object]) -> Reader:
    def read(data: bytes, at: int, end: int) -> Map:
        out: Map = {}
        message(of)(data, at, end, out)
        return out

    return read


_FORMATS: dict[str, Reader] = {
    "date-time": values.time,
    "micro-time": values.micro_time,
    "quantity": values.amount,
    "int-or-string": values.int_or_string,
}
_UNIONS: dict[str, Callable[[Reader], Reader]] = {
    "SchemaOrList": values.schema_or_list,
    "SchemaOrBool": values.schema_or_bool,
    "SchemaOrNames": values.schema_or_names,
}
