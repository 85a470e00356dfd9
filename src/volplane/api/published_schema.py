"""Protobuf numbers, required fields and integer widths: facts of the published schema that no Struct has.

`published_schema.json` has a row for each message: its fields in the order of their protobuf numbers, counted
from one; a number in between says where the count goes on. `name!` is a required field, `generation:int64` an
integer of 64 bits (the others have 32), `items:SchemaOrList` a value that JSON writes in two ways.
`^core.VolumeSource` is a message whose fields are part of the outer object in JSON.
`tools/published_schema.py` renews the marks from the schema that Kubernetes publishes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct

from volplane.api.object import Object

INT32, INT64 = "int32", "int64"


class PublishedField(Struct, frozen=True):
    number: int  # in protobuf
    name: str = ""  # in JSON
    inlined_message: str = ""  # the row of a message whose fields belong to this one
    form: str = ""
    is_required: bool = False
    is_int64: bool = False


@cache
def _rows() -> dict[str, str]:
    text = resources.files("volplane.api").joinpath("published_schema.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, str])


def message_name(of: type[Object]) -> str:
    """The name of a type's row: its group and its own."""
    return f"{of.__module__.split('.')[2]}.{of.__name__}"


def list_message_fields(row: str) -> list[PublishedField]:
    fields, number = [], 0
    for word in _rows()[row].split():
        if word.isdecimal():
            number = int(word) - 1
            continue
        number += 1
        name, _, form = word.partition(":")
        if name.startswith("^"):
            fields.append(PublishedField(number, inlined_message=name[1:]))
        elif form == INT64:
            fields.append(PublishedField(number, name.rstrip("!"), "", "", name.endswith("!"), is_int64=True))
        else:
            fields.append(PublishedField(number, name.rstrip("!"), "", form, name.endswith("!")))
    return fields


@cache
def _fields_by_name(of: type[Object]) -> Mapping[str, PublishedField]:
    row = message_name(of)
    return {field.name: field for field in _with_inlined(row)} if row in _rows() else {}


def _with_inlined(row: str) -> Iterator[PublishedField]:
    for field in list_message_fields(row):
        if field.inlined_message:
            yield from _with_inlined(field.inlined_message)
        else:
            yield field


def required_fields(of: type[Object]) -> list[str]:
    return sorted(name for name, field in _fields_by_name(of).items() if field.is_required)


def integer_width(of: type[Object], name: str) -> str:
    """`int32` or `int64` for an integer field, or a list of integers."""
    field = _fields_by_name(of).get(name)
    return INT64 if field is not None and field.is_int64 else INT32
