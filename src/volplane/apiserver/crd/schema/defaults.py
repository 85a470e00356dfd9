"""Defaults of a structural schema, on the way in and on the way out of the store.

A null counts as left out where the schema is not nullable: with a default it becomes that, without one it
goes. Run twice, nothing more happens.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from volplane.apiserver.crd.schema import Schema, additional_of, items_of, property_of


def fill(value: Any, schema: Schema | None) -> None:
    """Set the defaults of what is missing, in place."""
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
    """Remove members that are null where they may not be and nothing replaces them."""
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
    """Can reading with this schema add anything?"""
    if schema is None:
        return False
    if schema.get("default") is not None:
        return True
    inner = [*schema.get("properties", {}).values(), additional_of(schema), items_of(schema)]
    return any(has_defaults(s) for s in inner)


def _null(value: Any, schema: Schema) -> bool:
    return value is None and not schema.get("nullable")
