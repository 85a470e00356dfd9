"""Apply structural schemas to plain data: pruning, defaulting, validation.

A schema is the plain JSON of `openAPIV3Schema`; the functions walk value and schema in parallel. Data is
modified in place and must belong to the caller. The structure (properties, items, additionalProperties, type)
controls pruning and defaulting; everything else only validates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

Schema = Mapping[str, Any]

PRESERVE = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"
INT_OR_STRING = "x-kubernetes-int-or-string"
LIST_TYPE = "x-kubernetes-list-type"
LIST_KEYS = "x-kubernetes-list-map-keys"
MAP_TYPE = "x-kubernetes-map-type"
VALIDATIONS = "x-kubernetes-validations"

TYPE_META = frozenset({"apiVersion", "kind", "metadata"})


def property_of(schema: Schema | None, name: str) -> Schema | None:
    """Return the schema of a member: its own, or additionalProperties."""
    if schema is None:
        return None
    found: Schema | None = schema.get("properties", {}).get(name)
    return found if found is not None else additional_of(schema)


def additional_of(schema: Schema) -> Schema | None:
    """Return additionalProperties if it is a schema, not `true`."""
    found = schema.get("additionalProperties")
    return found if isinstance(found, Mapping) else None


def items_of(schema: Schema | None) -> Schema | None:
    found = schema.get("items") if schema is not None else None
    return found if isinstance(found, Mapping) else None


def child_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def children(value: Any, schema: Schema, path: str) -> Iterator[tuple[Any, Schema, str]]:
    """Yield the objects and lists directly inside a value, with their schemas and paths."""
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), additional_of(schema)
        for name, inner in value.items():
            if not isinstance(inner, dict | list):
                continue
            if name in properties:
                yield inner, properties[name], child_path(path, name)
            elif others is not None:
                yield inner, others, f"{path}[{name}]"
    elif isinstance(value, list) and (item := items_of(schema)) is not None:
        for at, inner in enumerate(value):
            yield inner, item, f"{path}[{at}]"


def may_contain_key(schema: Schema | None, key: str) -> bool:
    """Return False only if the key occurs nowhere in the schema; fast, but True may be a false positive."""
    return schema is not None and f'"{key}":'.encode() in msgspec.json.encode(schema)


def json_equal(one: Any, other: Any) -> bool:
    """Compare as JSON: 1 equals 1.0, 1 does not equal true, a list equals a tuple."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(json_equal, one, other))
    return bool(one == other)
