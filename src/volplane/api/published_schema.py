"""Protobuf numbers, required fields and integer widths: facts of the published schema that no Struct has.

`published_schema.json` has a row for each message: its fields in the order of their protobuf numbers, counted
from one; a number among them is the protobuf number of the field that follows it. `name!` is a required
field, `generation:int64` an integer of 64 bits (the others have 32), `items:SchemaOrList` a value that JSON
writes in two ways. `^core.VolumeSource` is a message whose fields are part of the outer object in JSON.
`tools/published_schema.py` updates `!` and `:int64` from the schema that Kubernetes publishes. The rows of
kinds without a Struct also have the type of each field, after `=` (see `api.data_types`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct

from volplane.api.object import Object

INT32, INT64 = "int32", "int64"

_PACKAGES = {
    "meta": "io.k8s.apimachinery.pkg.apis.meta.v1",
    "apiextensions": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1",
    "apiregistration": "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1",
    "noderuntime": "io.k8s.api.node.v1",
}


class PublishedField(Struct, frozen=True):
    number: int  # in protobuf
    name: str = ""  # in JSON
    inlined_message: str = ""  # the row of a message whose fields belong to this one
    form: str = ""
    is_required: bool = False
    is_int64: bool = False
    type: str = ""  # in rows of kinds without a Struct


@cache
def _rows() -> dict[str, str]:
    text = resources.files("volplane.api").joinpath("published_schema.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, str])


def message_name(of: type[Object]) -> str:
    """The name of a type's row: the group and the type, as in `core.Pod`."""
    return f"{of.__module__.split('.')[2]}.{of.__name__}"


def package_of(group: str) -> str:
    """The published package of a row's group; `autoscaling/v2` is one in another version than v1."""
    name, _, version = group.partition("/")
    return _PACKAGES.get(group, f"io.k8s.api.{name}.{version or 'v1'}")


def list_message_fields(row: str) -> list[PublishedField]:
    fields, number = [], 0
    for word in _rows()[row].split():
        if word.isdecimal():
            number = int(word) - 1
            continue
        number += 1
        fields.append(_read_word(number, word))
    return fields


def _read_word(number: int, word: str) -> PublishedField:
    if word.startswith("^"):
        return PublishedField(number, inlined_message=word[1:])
    label, _, type = word.partition("=")
    label, _, form = label.partition(":")
    is_int64 = form == INT64 or INT64 in type
    return PublishedField(
        number,
        name=label.rstrip("!"),
        form="" if is_int64 else form,
        is_required=label.endswith("!"),
        is_int64=is_int64,
        type=type,
    )


@cache
def _fields_by_name(of: type[Object]) -> Mapping[str, PublishedField]:
    row = message_name(of)
    return {field.name: field for field in list_fields(row)} if row in _rows() else {}


def list_fields(row: str) -> Iterator[PublishedField]:
    """The fields of a row in JSON, where those of inlined messages are part of the outer object."""
    for field in list_message_fields(row):
        if field.inlined_message:
            yield from list_fields(field.inlined_message)
        else:
            yield field


def required_fields(of: type[Object]) -> list[str]:
    return sorted(name for name, field in _fields_by_name(of).items() if field.is_required)


def integer_width(of: type[Object], name: str) -> str:
    """`int32` or `int64` for an integer field, or a list of integers."""
    field = _fields_by_name(of).get(name)
    return INT64 if field is not None and field.is_int64 else INT32
