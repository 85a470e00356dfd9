"""Messages as log lines, without their secrets.

A field is secret if the protocol marks it `csi_secret`, at any depth of the message.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from volplane.csi.proto import volume_pb2

_secret: Any = volume_pb2.csi_secret  # the generated stub declares a plain descriptor

STRIPPED = "***stripped***"
_encode = json.JSONEncoder(separators=(",", ":")).encode


def text(message: Message) -> str:
    """One line of JSON with the protocol's own field names."""
    return _encode(_fields(message))


def _fields(message: Message) -> dict[str, Any]:
    return {field.name: _value(field, value) for field, value in message.ListFields()}


@cache  # reading the options of a field takes longer than everything else here
def _is_secret(field: FieldDescriptor) -> bool:
    return bool(field.GetOptions().Extensions[_secret])


@cache
def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _value(field: FieldDescriptor, value: Any) -> Any:
    if _is_secret(field):
        return STRIPPED
    if field.message_type is None:
        return _scalar(field, value)
    if _is_map(field):
        return dict(value)
    if field.message_type.file.package == "google.protobuf":
        return MessageToDict(value)
    return [_fields(item) for item in value] if field.is_repeated else _fields(value)


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None and not field.is_repeated:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value
    return list(value) if field.is_repeated else value
