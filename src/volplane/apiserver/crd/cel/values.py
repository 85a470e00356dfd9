"""Values during evaluation, and their equality.

Numbers, strings, bytes, times and lists are Python's own. A `CelObject` has declared fields, a plain dict is
a map. Lists with list type `set` or `map` are equal regardless of order.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar

from volplane.apiserver.crd.cel import types
from volplane.apiserver.crd.cel.errors import CostLimitExceeded
from volplane.apiserver.crd.cel.types import CelType

NOTHING: Any = object()


class CelObject(dict[str, Any]):
    """An object; its members are fields under their escaped names."""


class UnorderedList(list[Any]):
    """A list with list type `map` (`keys` identify its elements) or `set` (no keys)."""

    def __init__(self, items: Any = (), keys: tuple[str, ...] = ()) -> None:
        super().__init__(items)
        self.keys = keys


class OptionalValue:
    """An optional value."""

    __slots__ = ("value",)

    def __init__(self, value: Any = NOTHING) -> None:
        self.value = value

    @property
    def is_set(self) -> bool:
        return self.value is not NOTHING


class CelNamespace:
    """A namespace of functions, such as `optional` with `optional.of`."""

    def __init__(self, type_name: str) -> None:
        self.type = CelType(type_name)


class LibraryValue:
    """A value of a type that Kubernetes adds to CEL."""

    type_name: ClassVar[str]


class CostBudget:
    """The number of cost steps that are left."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise CostLimitExceeded


def type_of(value: Any) -> CelType:
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
        case CelObject():
            return types.object_of({})
        case dict():
            return types.map_of(types.DYN, types.DYN)
        case datetime():
            return types.TIMESTAMP
        case timedelta():
            return types.DURATION
        case OptionalValue():
            return types.optional_of(types.DYN)
        case CelType():
            return types.TYPE
        case CelNamespace():
            return value.type
        case LibraryValue():
            return CelType(value.type_name)
    raise TypeError(f"no type for {value!r}")


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, CelType) or isinstance(other, CelType):
        return isinstance(one, CelType) and isinstance(other, CelType) and one.name == other.name
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, OptionalValue) or isinstance(other, OptionalValue):
        return (
            isinstance(one, OptionalValue)
            and isinstance(other, OptionalValue)
            and _equal_optionals(one, other)
        )
    if isinstance(one, list) and isinstance(other, list):
        return _equal_lists(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    return bool(one == other)


def _equal_optionals(one: OptionalValue, other: OptionalValue) -> bool:
    return one.is_set == other.is_set and (not one.is_set or equal(one.value, other.value))


def _equal_lists(one: list[Any], other: list[Any]) -> bool:
    if len(one) != len(other):
        return False
    if isinstance(one, UnorderedList) or isinstance(other, UnorderedList):
        return all(any(equal(item, match) for match in other) for item in one)
    return all(map(equal, one, other))


def key_of(item: Any, keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(key) for key in keys) if isinstance(item, dict) else ()


def concatenate_lists(one: list[Any], other: list[Any]) -> list[Any]:
    """Concatenate lists with `+`. Sets add new elements; map lists replace elements with the same key."""
    if not isinstance(one, UnorderedList):
        return [*one, *other]
    result = UnorderedList(one, one.keys)
    for item in other:
        at = next((i for i, held in enumerate(result) if _same_element(held, item, one.keys)), None)
        if at is None:
            result.append(item)
        elif one.keys:
            result[at] = item
    return result


def _same_element(one: Any, other: Any, keys: tuple[str, ...]) -> bool:
    return equal(list(key_of(one, keys)), list(key_of(other, keys))) if keys else equal(one, other)
