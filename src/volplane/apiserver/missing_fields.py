"""The required fields of the published schema that an object does not have.

Kinds without a strategy of their own are validated by this. The other kinds have their own rules, because
Kubernetes' rules for them say more than the schema. The status is written by controllers and not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from volplane.api.errors import Causes, required_value
from volplane.api.object import Field, Object, schema
from volplane.api.published_schema import required_fields

_MAY_BE_EMPTY = ("integer", "number", "boolean", "any")


def missing_fields(obj: Any) -> Causes:
    of: type[Object] = type(obj)
    for field in _fields(of):
        if field.name not in ("metadata", "status"):
            yield from _check_field(obj, field, field.name)


def _missing_below(obj: Object, path: str) -> Causes:
    for field in _fields(type(obj)):
        yield from _check_field(obj, field, f"{path}.{field.name}")


def _check_field(obj: Any, field: Field, path: str) -> Causes:
    value = getattr(obj, field.attribute)
    of: type[Object] = type(obj)
    if field.name in _required_names(of) and _is_missing(value, field):
        yield required_value(path)
    elif isinstance(value, Object):
        yield from _missing_below(value, path)
    else:
        for key, item in _items(value):
            if isinstance(item, Object):
                yield from _missing_below(item, f"{path}[{key}]")


def _is_missing(value: Any, field: Field) -> bool:
    if value is None:
        return True
    return field.shape not in _MAY_BE_EMPTY and not isinstance(value, Object) and not value


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return iter(value.items())
    return enumerate(value) if isinstance(value, tuple) else iter(())


@cache
def _fields(of: type[Object]) -> tuple[Field, ...]:
    return tuple(schema(of).values())


@cache
def _required_names(of: type[Object]) -> frozenset[str]:
    return frozenset(required_fields(of))
