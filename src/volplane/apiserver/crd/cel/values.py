"""Values while an expression runs, and what makes two of them equal.

Numbers, text, bytes, times and lists are Python's own. `Obj` is an object with declared fields, a plain dict
is a map. Lists that are sets or maps by schema are equal whatever their order.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from volplane.apiserver.crd.cel import types
from volplane.apiserver.crd.cel.errors import Exhausted
from volplane.apiserver.crd.cel.types import Type

NOTHING: Any = object()


class Obj(dict[str, Any]):
    """An object; its members are fields under their escaped names."""


class Bag(list[Any]):
    """A list without order: `keys` identify the elements of a map list, none mean a set."""

    def __init__(self, items: Any = (), keys: tuple[str, ...] = ()) -> None:
        super().__init__(items)
        self.keys = keys


class Maybe:
    """An optional value."""

    __slots__ = ("value",)

    def __init__(self, value: Any = NOTHING) -> None:
        self.value = value

    @property
    def is_set(self) -> bool:
        return self.value is not NOTHING


class Namespace:
    """`optional`, where functions of that name stand."""

    type = Type("optional")


class Budget:
    """How many steps may still be taken."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise Exhausted


def type_of(value: Any) -> Type:
    match value:
        case None:
            return types.NULL
        case bool():
            return types.BOOL
        case int():
            return types.INT
        case float():
            return types.DOUBLE
        case str():
            return types.STRING
        case bytes():
            return types.BYTES
        case list():
            return types.list_of(types.DYN)
        case Obj():
            return types.object_of({})
        case dict():
            return types.map_of(types.DYN, types.DYN)
        case datetime():
            return types.TIMESTAMP
        case timedelta():
            return types.DURATION
        case Maybe():
            return types.optional_of(types.DYN)
        case Type():
            return types.TYPE
        case Namespace():
            return value.type
    raise TypeError(f"no type for {value!r}")


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Type) or isinstance(other, Type):
        return isinstance(one, Type) and isinstance(other, Type) and one.name == other.name
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Maybe) or isinstance(other, Maybe):
        return isinstance(one, Maybe) and isinstance(other, Maybe) and _equal_optionals(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return _equal_lists(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    return bool(one == other)


def _equal_optionals(one: Maybe, other: Maybe) -> bool:
    return one.is_set == other.is_set and (not one.is_set or equal(one.value, other.value))


def _equal_lists(one: list[Any], other: list[Any]) -> bool:
    if len(one) != len(other):
        return False
    if isinstance(one, Bag) or isinstance(other, Bag):
        return all(any(equal(item, match) for match in other) for item in one)
    return all(map(equal, one, other))


def key_of(item: Any, keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(key) for key in keys) if isinstance(item, dict) else ()


def joined(one: list[Any], other: list[Any]) -> list[Any]:
    """`+` of lists. Sets grow by what is new; map lists replace what has the same key, in place."""
    if not isinstance(one, Bag):
        return [*one, *other]
    made = Bag(one, one.keys)
    for item in other:
        at = next((i for i, held in enumerate(made) if _alike(held, item, one.keys)), None)
        if at is None:
            made.append(item)
        elif one.keys:
            made[at] = item
    return made


def _alike(one: Any, other: Any, keys: tuple[str, ...]) -> bool:
    return equal(list(key_of(one, keys)), list(key_of(other, keys))) if keys else equal(one, other)
