"""Canonicalize the quantities of objects that are created in process and therefore bypass the decoder.

The function compiled for a type visits only fields that can hold a quantity. An object whose quantities are
canonical is returned unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import structs

from volplane.api import quantity
from volplane.api.errors import BadRequest
from volplane.api.object import Field, Object, schema

Fix = Callable[[Any], Any]


def canonicalize_quantities(obj: Any) -> Any:
    of: type[Object] = type(obj)
    fix = _fixer_of(of)
    return obj if fix is None else fix(obj)


@cache
def _fixer_of(of: type[Object], above: frozenset[type[Object]] = frozenset()) -> Fix | None:
    """Return None if the type contains no quantity; a recursive type adds nothing."""
    if of in above:
        return None
    fixes = [
        (field.attribute, fix)
        for field in schema(of).values()
        if (fix := _field_fixer(field, above | {of})) is not None
    ]
    if not fixes:
        return None

    def fix_object(obj: Any) -> Any:
        changes = {}
        for attribute, fix in fixes:
            value = getattr(obj, attribute)
            if value and (new := fix(value)) is not value:
                changes[attribute] = new
        return structs.replace(obj, **changes) if changes else obj

    return fix_object


def _field_fixer(field: Field, above: frozenset[type[Object]]) -> Fix | None:
    if field.format == "quantity":
        return _amount
    if field.type is not None:
        return _fixer_of(field.type, above)
    inner = _field_fixer(field.item, above) if field.item is not None else None
    if inner is None:
        return None
    return _map_fixer(inner) if field.shape == "map" else _list_fixer(inner)


def _amount(text: str) -> str:
    try:
        spelled = quantity.canonical(text)
    except quantity.InvalidQuantity as error:
        raise BadRequest(str(error)) from error
    return text if spelled == text else spelled


def _list_fixer(fix: Fix) -> Fix:
    def fix_list(items: Any) -> Any:
        new = tuple(fix(item) for item in items)
        return items if all(a is b for a, b in zip(items, new, strict=True)) else new

    return fix_list


def _map_fixer(fix: Fix) -> Fix:
    def fix_map(items: Any) -> Any:
        new = {key: fix(value) for key, value in items.items()}
        return items if all(items[key] is value for key, value in new.items()) else new

    return fix_map
