"""How long the values of a schema can be at most: what it limits, or what fits into the largest request.

The numbers are upstream's: they decide which rules a definition may have.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from volplane.apiserver.crd.cel.schema_types import escape, fields_of
from volplane.apiserver.crd.schema import EMBEDDED, INT_OR_STRING, Schema, additional_of, items_of

LARGEST_REQUEST = 3 * 1024 * 1024  # bytes
_QUOTES = 2
_BYTES_PER_CHARACTER = 4  # at most, in UTF-8
_SHORTEST_ENTRY = 6  # of a map: a key of two bytes with its quotes, a colon, a comma
_FORMATS: Mapping[str, tuple[int, int]] = {"duration": (32, 3), "date": (12, 12), "date-time": (32, 21)}
_SCALARS: Mapping[str, int] = {"boolean": 4, "number": 1, "integer": 1}  # type → shortest JSON


class DeclaredSize(Struct, frozen=True):
    """Of a string its length, of a list or map the number of elements; 0 for all other values."""

    longest: int = 0
    shortest_json: int = 2
    fields: Mapping[str, DeclaredSize] = {}
    key: DeclaredSize | None = None
    item: DeclaredSize | None = None

    def at(self, path: tuple[str, ...]) -> DeclaredSize | None:
        """`@items`, `@values` and `@keys` stand for the elements of a list or map."""
        found: DeclaredSize | None = self
        for name in path:
            if found is None:
                return None
            if name in ("@items", "@values"):
                found = found.item
            elif name == "@keys":
                found = found.key
            else:
                found = found.fields.get(name)
        return found


def declared_size(schema: Schema, *, resource: bool = False) -> DeclaredSize | None:
    """None if the schema is not visible to expressions."""
    if schema.get(INT_OR_STRING):
        return DeclaredSize(_longest_string(schema), 1)
    match schema.get("type"):
        case "array":
            return _list(schema)
        case "object":
            return _object(schema, resource)
        case "string":
            return _string(schema)
        case str(kind) if kind in _SCALARS:
            return DeclaredSize(0, _SCALARS[kind])
    return None


def most_occurrences(size: DeclaredSize) -> int:
    """How many values of this size fit into a request."""
    return LARGEST_REQUEST // (size.shortest_json + 1)


def _inner(schema: Schema) -> DeclaredSize | None:
    return declared_size(schema, resource=bool(schema.get(EMBEDDED)))


def _list(schema: Schema) -> DeclaredSize | None:
    inner = items_of(schema)
    item = _inner(inner) if inner is not None else None
    if item is None:
        return None
    most = _limit(schema, "maxItems", (LARGEST_REQUEST - _QUOTES) // (item.shortest_json + 1))
    return DeclaredSize(most, item=item)


def _object(schema: Schema, resource: bool) -> DeclaredSize | None:
    others = additional_of(schema)
    if others is not None:
        value = _inner(others)
        if value is None:
            return None
        estimated = (LARGEST_REQUEST - _QUOTES) // (value.shortest_json + _SHORTEST_ENTRY)
        most = _limit(schema, "maxProperties", estimated)
        return DeclaredSize(most, key=DeclaredSize(), item=value)
    fields, shortest, required = {}, 2, set(schema.get("required", ()))
    for name, inner in fields_of(schema, resource).items():
        size = _inner(inner)
        if size is None:
            continue
        if (spelled := escape(name)) is not None:
            fields[spelled] = size
        if name in required and inner.get("default") is None:
            shortest += len(name) + size.shortest_json + 4
    return DeclaredSize(0, shortest, fields)


def _string(schema: Schema) -> DeclaredSize:
    format = schema.get("format", "")
    if format in _FORMATS:
        longest, shortest = _FORMATS[format]
        return DeclaredSize(longest, shortest)
    if format == "byte":
        return DeclaredSize(_limit(schema, "maxLength", LARGEST_REQUEST - _QUOTES))
    return DeclaredSize(_longest_string(schema))


def _longest_string(schema: Schema) -> int:
    if schema.get("maxLength") is not None:
        return _limit(schema, "maxLength", 0) * _BYTES_PER_CHARACTER
    choices = schema.get("enum")
    if choices and not schema.get(INT_OR_STRING):
        return max((len(c.encode()) for c in choices if isinstance(c, str)), default=0)
    return LARGEST_REQUEST - _QUOTES


def _limit(schema: Schema, key: str, otherwise: int) -> int:
    given = schema.get(key)
    return otherwise if given is None else max(given, 0)
