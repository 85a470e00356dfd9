"""Validate that a schema is structural: types are declared outside of allOf, anyOf, oneOf and not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from volplane.api.errors import Cause, forbidden, invalid, required_value
from volplane.apiserver.crd.schema import (
    EMBEDDED,
    INT_OR_STRING,
    LIST_KEYS,
    LIST_TYPE,
    MAP_TYPE,
    PRESERVE,
    VALIDATIONS,
    Schema,
    additional_of,
    items_of,
    patterns,
)

_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]
_EMPTY = {
    "root": "must not be empty at the root",
    "item": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}
_STRUCTURAL: Mapping[str, str] = {
    "type": "must be empty to be structural",
    "additionalProperties": "must be undefined to be structural",
    "default": "must be undefined to be structural",
    "title": "must be empty to be structural",
    "description": "must be empty to be structural",
    "nullable": "must be false to be structural",
    PRESERVE: "must be false to be structural",
    EMBEDDED: "must be false to be structural",
    INT_OR_STRING: "must be false to be structural",
    LIST_KEYS: "must be empty to be structural",
    LIST_TYPE: "must be undefined to be structural",
    MAP_TYPE: "must be undefined to be structural",
    VALIDATIONS: "must be empty to be structural",
}


def validate(schema: Schema, path: str) -> list[Cause]:
    found = [*_node(schema, "root", path), *_complete(schema, schema, path, path)]
    return sorted(found, key=str)


def _node(schema: Schema, level: str, path: str) -> Iterator[Cause]:
    if schema.get("type") == "array" and items_of(schema) is None:
        yield required_value(f"{path}.items", "must be specified")
    item, others = items_of(schema), additional_of(schema)
    if item is not None:
        yield from _node(item, "item", f"{path}.items")
    for name, inner in schema.get("properties", {}).items():
        yield from _node(inner, "field", f"{path}.properties[{name}]")
    if schema.get("additionalProperties") is not None and level == "root":
        yield forbidden(f"{path}.additionalProperties", "must not be used at the root")
    if others is not None:
        yield from _node(others, "field", f"{path}.additionalProperties")
    yield from _extensions(schema, path)
    alternatives = schema.get("anyOf") == _INT_OR_STRING
    first = schema.get("allOf") or [{}]
    yield from _values(schema, path, alternatives, first[0].get("anyOf") == _INT_OR_STRING)
    yield from _type(schema, level, path)
    yield from _metadata(schema, level, path)


def _extensions(schema: Schema, path: str) -> list[Cause]:
    if not schema.get(INT_OR_STRING):
        return []
    detail = f"must be false if {INT_OR_STRING} is true"
    return [invalid(f"{path}.{key}", True, detail) for key in (PRESERVE, EMBEDDED) if schema.get(key)]


def _type(schema: Schema, level: str, path: str) -> Iterator[Cause]:
    type, here = schema.get("type", ""), f"{path}.type"
    if schema.get(EMBEDDED) and type != "object":
        detail = f"must be object if {EMBEDDED} is true"
        yield invalid(here, type, detail) if type else required_value(here, detail)
    elif not type and not schema.get(INT_OR_STRING) and not schema.get(PRESERVE):
        yield required_value(here, _EMPTY[level])
    if schema.get(EMBEDDED) and schema.get("additionalProperties") is not None:
        yield forbidden(f"{path}.additionalProperties", f"must not be used if {EMBEDDED} is set")
    if level == "root" and type and type != "object":
        yield invalid(here, type, "must be object at the root")
    if schema.get(EMBEDDED) and not schema.get(PRESERVE) and not schema.get("properties"):
        detail = f"must not be empty if {EMBEDDED} is true without {PRESERVE}"
        yield required_value(f"{path}.properties", detail)


def _metadata(schema: Schema, level: str, path: str) -> Iterator[Cause]:
    """The schema may not redefine kind, apiVersion and metadata of a resource."""
    properties = schema.get("properties", {})
    resource = level == "root" or schema.get(EMBEDDED)
    for name in ("kind", "apiVersion"):
        if resource and name in properties and properties[name].get("type") != "string":
            here = f"{path}.properties[{name}].type"
            yield invalid(here, properties[name].get("type", ""), "must be string")
    if "metadata" not in properties:
        return
    here, given = f"{path}.properties[metadata]", properties["metadata"]
    if resource and given.get("type") != "object":
        yield invalid(f"{here}.type", given.get("type", ""), "must be object")
    if level == "root" and _restricts_more_than_names(given):
        detail = (
            "must not specify anything other than name and generateName, but metadata is implicitly specified"
        )
        yield forbidden(here, detail)


def _restricts_more_than_names(schema: Schema) -> bool:
    rest = {key for key in schema if key not in ("type", "default", "properties")}
    return bool(rest) or not set(schema.get("properties", {})) <= {"name", "generateName"}


def _values(schema: Schema, path: str, skip_any: bool, skip_first: bool) -> Iterator[Cause]:
    """allOf, anyOf, oneOf and not may not declare structure."""
    if not skip_any:
        for at, inner in enumerate(schema.get("anyOf", ())):
            yield from _nested_causes(inner, f"{path}.anyOf[{at}]")
    for at, inner in enumerate(schema.get("allOf", ())):
        yield from _nested_causes(inner, f"{path}.allOf[{at}]", skip_any=skip_first and at == 0)
    for at, inner in enumerate(schema.get("oneOf", ())):
        yield from _nested_causes(inner, f"{path}.oneOf[{at}]")
    if schema.get("not") is not None:
        yield from _nested_causes(schema["not"], f"{path}.not")
    pattern = schema.get("pattern")
    if pattern:
        try:
            patterns.compile(pattern)
        except patterns.InvalidPattern as error:
            detail = f"must be a valid regular expression, but isn't: {error}"
            yield invalid(f"{path}.pattern", pattern, detail)


def _nested_causes(schema: Schema, path: str, *, skip_any: bool = False) -> Iterator[Cause]:
    yield from _values(schema, path, skip_any, False)
    item = items_of(schema)
    if item is not None:
        yield from _nested_causes(item, f"{path}.items")
    for name, inner in schema.get("properties", {}).items():
        yield from _nested_causes(inner, f"{path}.properties[{name}]")
    for key, detail in _STRUCTURAL.items():
        if _is_given(schema, key):
            yield forbidden(f"{path}.{key}", detail)
    if "metadata" in schema.get("properties", {}):
        yield forbidden(f"{path}.properties[metadata]", "must not be specified in a nested context")


def _is_given(schema: Schema, key: str) -> bool:
    value: Any = schema.get(key)
    return value is not None if key in ("default", "additionalProperties") else bool(value)


def _complete(values: Schema, schema: Schema, path: str, where: str) -> Iterator[Cause]:
    """Fields restricted in allOf, anyOf, oneOf and not must be declared in the structure."""
    if values.get("not") is not None:
        yield from _missing_structure(values["not"], schema, path, f"{where}.not")
    for key in ("allOf", "anyOf", "oneOf"):
        for at, inner in enumerate(values.get(key, ())):
            yield from _missing_structure(inner, schema, path, f"{where}.{key}[{at}]")


def _missing_structure(values: Schema, schema: Schema | None, path: str, where: str) -> Iterator[Cause]:
    if schema is None:
        yield required_value(path, f"because it is defined in {where}")
        return
    yield from _complete(values, schema, path, where)
    item = items_of(values)
    if item is not None:
        yield from _missing_structure(item, items_of(schema), f"{path}.items", f"{where}.items")
    for name, inner in values.get("properties", {}).items():
        step = f"properties[{name}]"
        known = schema.get("properties", {}).get(name)
        yield from _missing_structure(inner, known, f"{path}.{step}", f"{where}.{step}")
