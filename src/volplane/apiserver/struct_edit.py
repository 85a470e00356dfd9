"""Edits of frozen objects; if nothing changes, the same object is returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from operator import is_
from typing import Any, TypeVar

import msgspec
from msgspec import structs

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")


@cache
def _field_defaults(of: type[msgspec.Struct]) -> Mapping[str, Any]:
    return {
        f.name: f.default if f.default is not msgspec.NODEFAULT else f.default_factory()
        for f in structs.fields(of)
    }


def set_defaults(obj: S, **values: Any) -> S:
    """Set these values where the object has none; a pointer that is set to zero has one."""
    empties = _field_defaults(type(obj))
    missing = {name: value for name, value in values.items() if getattr(obj, name) == empties[name]}
    return structs.replace(obj, **missing) if missing else obj


def replace_fields(obj: S, **values: Any) -> S:
    """Replace these fields."""
    new = {name: value for name, value in values.items() if getattr(obj, name) is not value}
    return structs.replace(obj, **new) if new else obj


def map_items(items: tuple[T, ...], edit: Callable[[T], T]) -> tuple[T, ...]:
    """Edit every item."""
    made = tuple([edit(item) for item in items])
    return items if all(map(is_, items, made)) else made
