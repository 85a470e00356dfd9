"""Convert schemas to CEL types and JSON values to CEL values: declared fields only, under escaped names.

A resource also has `kind`, `apiVersion` and its name in metadata. Fields that a schema does not declare
(`x-kubernetes-preserve-unknown-fields`) have no type and are not visible to expressions.
"""

from __future__ import annotations

import base64
import binascii
import re
from contextlib import suppress
from functools import lru_cache
from typing import Any

from volplane.apiserver.crd.cel import functions, types
from volplane.apiserver.crd.cel.errors import CelEvaluationError
from volplane.apiserver.crd.cel.lexer import RESERVED
from volplane.apiserver.crd.cel.types import CelType
from volplane.apiserver.crd.cel.values import CelObject, UnorderedList
from volplane.apiserver.crd.schema import (
    EMBEDDED,
    INT_OR_STRING,
    LIST_KEYS,
    LIST_TYPE,
    Schema,
    additional_of,
    items_of,
)

_WORDS = RESERVED | {"true", "false", "null", "in"}
_SPELLABLE = re.compile(r"[a-zA-Z_./-][a-zA-Z0-9_./-]*")
_ESCAPES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_STRING: Schema = {"type": "string"}
_META: Schema = {"type": "object", "properties": {"name": _STRING, "generateName": _STRING}}
_SCALARS = {"boolean": types.BOOL, "number": types.DOUBLE, "integer": types.INT}
_TEXTS = {
    "byte": types.BYTES, "duration": types.DURATION, "date": types.TIMESTAMP, "date-time": types.TIMESTAMP,
}  # fmt: skip


@lru_cache(maxsize=4096)
def escape(name: str) -> str | None:
    """Return the escaped name of a field, or None if expressions cannot refer to it."""
    if name in _WORDS:
        return f"__{name}__"
    if not _SPELLABLE.fullmatch(name):
        return None
    return re.sub(r"__|[./-]", lambda found: _ESCAPES[found[0]], name)


def type_of(schema: Schema, *, resource: bool = False) -> CelType | None:
    """Return the CEL type of a schema, or None if it is not visible to expressions."""
    if schema.get(INT_OR_STRING):
        return types.DYN
    match schema.get("type"):
        case "array":
            item = _type_of(items_of(schema))
            return types.list_of(item) if item is not None else None
        case "object":
            return _object_type(schema, resource)
        case "string":
            return _TEXTS.get(schema.get("format", ""), types.STRING)
        case kind:
            return _SCALARS.get(kind or "")


def _type_of(schema: Schema | None) -> CelType | None:
    return type_of(schema, resource=bool(schema.get(EMBEDDED))) if schema is not None else None


def _object_type(schema: Schema, resource: bool) -> CelType | None:
    others = additional_of(schema)
    if others is not None:
        value = _type_of(others)
        return types.map_of(types.STRING, value) if value is not None else None
    fields = {}
    for name, inner in fields_of(schema, resource).items():
        spelled, type = escape(name), _type_of(inner)
        if spelled is not None and type is not None:
            fields[spelled] = type
    return types.object_of(fields)


def fields_of(schema: Schema, resource: bool) -> dict[str, Schema]:
    fields = dict(schema.get("properties", {}))
    return {**fields, "kind": _STRING, "apiVersion": _STRING, "metadata": _META} if resource else fields


def value_of(value: Any, schema: Schema | None, *, resource: bool = False) -> Any:
    """Convert a JSON value to the types of its schema."""
    if value is None or schema is None or schema.get(INT_OR_STRING):
        return value
    match schema.get("type"):
        case "array" if isinstance(value, list):
            return _list(value, schema)
        case "object" if isinstance(value, dict):
            return _object(value, schema, resource)
        case "number" if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        case "integer" if isinstance(value, float) and value.is_integer():
            return int(value)
        case "string" if isinstance(value, str) and schema.get("format") in _TEXTS:
            return _text(value, schema["format"])
    return value


def _list(items: list[Any], schema: Schema) -> list[Any]:
    inner = items_of(schema)
    resource = bool(inner and inner.get(EMBEDDED))
    result = [value_of(item, inner, resource=resource) for item in items]
    match schema.get(LIST_TYPE):
        case "set":
            return UnorderedList(result)
        case "map":
            keys = (escape(key) for key in schema.get(LIST_KEYS, ()))
            return UnorderedList(result, tuple(key for key in keys if key))
    return result


def _object(value: dict[str, Any], schema: Schema, resource: bool) -> dict[str, Any]:
    others = additional_of(schema)
    if others is not None:
        below = bool(others.get(EMBEDDED))
        return {name: value_of(inner, others, resource=below) for name, inner in value.items()}
    fields = fields_of(schema, resource)
    result = CelObject()
    for name, inner in value.items():
        known = fields.get(name)
        spelled = escape(name) if known is not None else None
        if known is not None and spelled is not None:
            result[spelled] = value_of(inner, known, resource=bool(known.get(EMBEDDED)))
    return result


def _text(value: str, format: str) -> Any:
    """Convert a formatted string. A malformed one stays a string; validation reports it."""
    with suppress(CelEvaluationError, binascii.Error, ValueError):
        match format:
            case "byte":
                return base64.b64decode(value, validate=True)
            case "duration":
                return functions.to_duration(value)
            case "date":
                return functions.to_timestamp(f"{value}T00:00:00Z")
            case "date-time":
                return functions.to_timestamp(value)
    return value
