"""Apply the defaults of a structural schema, to requests and to stored objects.

A null in a field that is not nullable is replaced by the default, or removed if there is none. Idempotent.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from volplane.apiserver.crd.schema import Schema, additional_of, items_of, property_of


def fill(value: Any, schema: Schema | None) -> None:
    """Set defaults of missing fields, in place."""
    if schema is None:
        return
    if type(value) is dict:
        properties = schema.get("properties", {})
        for name, inner in properties.items():
            default = inner.get("default")
            if default is not None and (name not in value or _null(value[name], inner)):
                value[name] = deepcopy(default)
        others = additional_of(schema)
        for name in value:
            below = properties.get(name, others)
            if name not in properties and others is not None and _null(value[name], others):
                value[name] = deepcopy(others.get("default"))
            if type(value[name]) in (dict, list):
                fill(value[name], below)
    elif type(value) is list:
        item = items_of(schema)
        for at, inner in enumerate(value):
            if item is not None and _null(inner, item):
                value[at] = deepcopy(item.get("default"))
            if type(value[at]) in (dict, list):
                fill(value[at], item)


def drop_nulls(value: Any, schema: Schema | None) -> None:
    """Remove null members that are not nullable and have no default."""
    if type(value) is dict:
        gone = []
        for name, inner in value.items():
            below = property_of(schema, name)
            if below is not None and _null(inner, below) and below.get("default") is None:
                gone.append(name)
            elif type(inner) in (dict, list):
                drop_nulls(inner, below)
        for name in gone:
            del value[name]
    elif type(value) is list:
        item = items_of(schema)
        for inner in value:
            if type(inner) in (dict, list):
                drop_nulls(inner, item)


def has_defaults(schema: Schema | None) -> bool:
    """Return whether the schema has any default."""
    if schema is None:
        return False
    if schema.get("default") is not None:
        return True
    inner = [*schema.get("properties", {}).values(), additional_of(schema), items_of(schema)]
    return any(has_defaults(s) for s in inner)


def _null(value: Any, schema: Schema) -> bool:
    return value is None and not schema.get("nullable")
