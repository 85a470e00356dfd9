"""The numbers of the API's fields in protobuf, as `protobuf.json` lists them.

One row per message: its fields in the order of their numbers, counted from one; a number in between says
where the count goes on. `^core.VolumeSource` is a message whose fields are part of the outer object in JSON.
`items:SchemaOrList` is one of the values that JSON writes in two ways. Everything else about a field is what
`object.schema` knows.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct

from volplane.api.object import Object


class ProtobufField(Struct, frozen=True):
    number: int
    name: str = ""  # in JSON
    inlined_message: str = ""  # the row of a message whose fields are lifted into this one
    form: str = ""


@cache
def _rows() -> dict[str, str]:
    text = resources.files("volplane.api").joinpath("protobuf.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, str])


def message_name(of: type[Object]) -> str:
    """The name of a type's row: its group and its own."""
    return f"{of.__module__.split('.')[2]}.{of.__name__}"


def list_message_fields(row: str) -> list[ProtobufField]:
    fields, number = [], 0
    for word in _rows()[row].split():
        if word.isdecimal():
            number = int(word) - 1
            continue
        number += 1
        name, _, form = word.partition(":")
        lifted = name[1:] if name.startswith("^") else ""
        fields.append(ProtobufField(number, "" if lifted else name, lifted, form))
    return fields
