"""Prepare plain data for a Struct: drop unknown fields and nulls, canonicalize quantities and times.

A walker is compiled for each type from its schema and visits only the fields that may need a change. Wrong
types are left for msgspec to report. Paths are built only for findings: each level adds its own step on the
way out.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec

from volplane.api import quantity
from volplane.api.meta import ManagedFieldsEntry, Resource
from volplane.api.object import Field, Object, schema
from volplane.api.published_schema import integer_width

Walker = Callable[[Any], list[str] | None]  # relative paths of findings; None if there are none
Fix = Callable[[Any, Any, Any], list[str] | None]  # (container, key, value) → findings; may replace the value

_TYPE_META = ("kind", "apiVersion")
_LIMITS = {"int32": 1 << 31, "int64": 1 << 63}
_TIME = re.compile(r"\d{4}-(0[1-9]|1[0-2])-([01]\d|2[0-8])T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ")
_MICRO = re.compile(_TIME.pattern[:-1] + r"\.\d{6}Z")
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)")


class TypeMismatch(Exception):
    """A value that does not fit its field."""


@cache
def walker(of: type[Object]) -> Walker:
    """The walker of a type: cleans a dict in place and returns the paths of unknown fields."""
    table: dict[str, Fix | None] = {}
    known = table.get
    absent: Any = object()
    is_resource = issubclass(of, Resource)

    def walk(data: Any) -> list[str] | None:
        if type(data) is not dict:
            return None  # msgspec reports the type error
        found: list[str] = []
        drop: list[str] = []
        for key, value in data.items():
            fix = known(key, absent)
            if fix is None and value is not None:
                continue
            if fix is absent:
                drop.append(key)
                if not (is_resource and key in _TYPE_META):
                    found.append(key)
            elif value is None:
                drop.append(key)
            else:
                inner = fix(data, key, value)
                if inner:
                    found += _below(key, inner)
        for key in drop:
            del data[key]
        return found or None

    # Filled after `walk` exists: types may contain themselves.
    for name, field in schema(of).items():
        table[name] = _fix(field, of)
    return walk


def _below(key: str, found: list[str]) -> list[str]:
    return [f"{key}{step}" if step.startswith("[") else f"{key}.{step}" for step in found]


def _fix(field: Field, owner: type[Object]) -> Fix | None:
    """The fix for values of this field; None if they need none."""
    if owner is ManagedFieldsEntry and field.name == "fieldsV1":
        return _raw
    if field.format in _FORMATS:
        return _FORMATS[field.format]
    match field.shape:
        case "object":
            assert field.type is not None
            return _object(field.type)
        case "list":
            return _list(field, owner)
        case "map":
            return _map(field, owner)
        case "integer":
            return _integer(owner, field.name)
    return None


def _object(of: type[Object]) -> Fix:
    made: list[Walker] = []  # compiled at first use: the type may be the one being compiled

    def fix(container: Any, key: Any, value: Any) -> list[str] | None:
        if not made:
            made.append(walker(of))
        return made[0](value)

    return fix


def _list(field: Field, owner: type[Object]) -> Fix | None:
    assert field.item is not None
    inner = _fix(_with_name(field.item, field.name), owner)
    zero = _zero(field.item)

    def fix(container: Any, key: Any, value: Any) -> list[str] | None:
        if type(value) is not list:
            return None
        found: list[str] = []
        for at, element in enumerate(value):
            if element is None:
                value[at] = zero() if zero else None
            elif inner is not None:
                got = inner(value, at, element)
                if got:
                    found += _below(f"[{at}]", got)
        return found or None

    return fix


def _map(field: Field, owner: type[Object]) -> Fix | None:
    assert field.item is not None
    inner = _fix(_with_name(field.item, field.name), owner)
    zero = _zero(field.item)

    def fix(container: Any, key: Any, value: Any) -> list[str] | None:
        if type(value) is not dict:
            return None
        found: list[str] = []
        for name, element in value.items():
            if element is None:
                value[name] = zero() if zero else None
            elif inner is not None:
                got = inner(value, name, element)
                if got:
                    found += _below(name, got)
        return found or None

    if inner is None:

        def fix_plain(container: Any, key: Any, value: Any) -> None:
            if type(value) is dict and None in value.values():
                fix(container, key, value)

        return fix_plain
    return fix


def _with_name(item: Field, name: str) -> Field:
    """An item with the name of its list, which determines the width of integers."""
    return Field(
        attribute=item.attribute,
        name=name,
        shape=item.shape,
        format=item.format,
        item=item.item,
        type=item.type,
    )


def _zero(item: Field) -> Callable[[], Any] | None:
    """The zero value that replaces a null element."""
    if item.format == "quantity":
        return lambda: "0"
    return _ZEROS.get(item.shape)


_ZEROS: dict[str, Callable[[], Any]] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "bytes": str,  # empty base64
    "object": dict,
    "map": dict,
    "list": list,
}


def _integer(owner: type[Object], name: str) -> Fix:
    kind = integer_width(owner, name)
    limit = _LIMITS[kind]

    def fix(container: Any, key: Any, value: Any) -> None:
        if type(value) is int and not -limit <= value < limit:
            where = f"Go struct field {owner.__name__}.{name} of type {kind}"
            raise TypeMismatch(f"json: cannot unmarshal number {value} into {where}")

    return fix


# Formats


def _quantity(container: Any, key: Any, value: Any) -> None:
    if type(value) is bool or not isinstance(value, str | int | float):
        return
    try:
        container[key] = quantity.canonical(value.strip() if isinstance(value, str) else value)
    except (ValueError, OverflowError) as error:
        raise TypeMismatch(quantity.MESSAGE) from error


def _time(container: Any, key: Any, value: Any) -> None:
    if type(value) is str and not _TIME.fullmatch(value):
        container[key] = _read_time(value).strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro_time(container: Any, key: Any, value: Any) -> None:
    if type(value) is str and not _MICRO.fullmatch(value):
        container[key] = _read_time(value).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _read_time(text: str) -> datetime:
    layout = "2006-01-02T15:04:05Z07:00"
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise TypeMismatch(f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"')
    whole, fraction, zone = found.groups()
    try:
        exact = f"{whole}.{(fraction or '0')[:6]:0<6}{'+00:00' if zone == 'Z' else zone}"
        return datetime.fromisoformat(exact).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise TypeMismatch(f'parsing time "{text}": {error}') from error


def _raw(container: Any, key: Any, value: Any) -> None:
    container[key] = msgspec.Raw(msgspec.json.encode(value))


_FORMATS: dict[str, Fix | None] = {
    "quantity": _quantity,
    "date-time": _time,
    "micro-time": _micro_time,
    "int-or-string": None,
}
