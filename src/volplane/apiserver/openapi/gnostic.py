"""The OpenAPI v2 document as gnostic's protobuf message, which kubectl up to 1.28 requires.

Encodes only what our document contains: a function for each message, and one for fields and varints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import json


def encode(document: Mapping[str, Any]) -> bytes:
    return (
        _text(1, document["swagger"])
        + _field(2, _info(document["info"]))
        + _field(
            8,
            b"".join(_field(2, _named_value(path, _path(body))) for path, body in document["paths"].items()),
        )
        + _field(9, _schemas(document["definitions"]))
    )


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _named_value(name: str, value: bytes) -> bytes:
    return _text(1, name) + _field(2, value)


def _info(info: Mapping[str, str]) -> bytes:
    return _text(1, info["title"]) + _text(2, info["version"])


# Paths


def _path(body: Mapping[str, Any]) -> bytes:
    return _field(8, _operation(body["patch"]))


def _operation(operation: Mapping[str, Any]) -> bytes:
    out = _text(5, operation["operationId"])
    out += b"".join(_text(7, media) for media in operation["consumes"])
    out += b"".join(_field(8, _parameter(p)) for p in operation["parameters"])
    answers = (
        _named_value(code, _field(1, _text(1, r["description"])))
        for code, r in operation["responses"].items()
    )
    out += _field(9, b"".join(_field(1, answer) for answer in answers))
    return out + _extensions(13, operation)


def _parameter(parameter: Mapping[str, str]) -> bytes:
    plain = _text(2, parameter["in"]) + _text(4, parameter["name"]) + _text(6, parameter["type"])
    # ParametersItem.parameter, Parameter.non_body_parameter, NonBodyParameter.query_parameter_sub_schema
    return _field(1, _field(2, _field(3, plain)))


# Schemas


def _schemas(named: Mapping[str, Any]) -> bytes:
    return b"".join(_field(1, _named_value(name, _schema(body))) for name, body in named.items())


def _schema(schema: Mapping[str, Any]) -> bytes:
    out = b""
    for number, key in ((1, "$ref"), (2, "format"), (4, "description")):
        if key in schema:
            out += _text(number, schema[key])
    out += b"".join(_text(19, name) for name in schema.get("required", ()))
    others = schema.get("additionalProperties")
    if isinstance(others, Mapping):
        out += _field(21, _field(1, _schema(others)))
    elif others is not None:
        out += _field(21, bytes([2 << 3, others]))
    if "type" in schema:
        out += _field(22, _text(1, schema["type"]))
    if "items" in schema:
        out += _field(23, _field(1, _schema(schema["items"])))
    if "properties" in schema:
        out += _field(25, _schemas(schema["properties"]))
    return out + _extensions(31, schema)


def _extensions(number: int, holder: Mapping[str, Any]) -> bytes:
    """Extension values are YAML text, and JSON is YAML."""
    return b"".join(
        _field(number, _named_value(key, _field(2, json.encode(value) + b"\n")))
        for key, value in holder.items()
        if key.startswith("x-")
    )
