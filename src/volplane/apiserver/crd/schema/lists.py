"""Validate lists with list type `set` (unique elements) and `map` (unique keys)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import json

from volplane.api.errors import Cause, duplicate, invalid
from volplane.apiserver.crd.schema import LIST_KEYS, LIST_TYPE, Schema, children


def validate(value: Any, schema: Schema | None, path: str = "") -> list[Cause]:
    if schema is None:
        return []
    causes = _unique(value, schema, path) if isinstance(value, list) else []
    for inner, below, here in children(value, schema, path):
        causes += validate(inner, below, here)
    return causes


def _unique(items: list[Any], schema: Schema, path: str) -> list[Cause]:
    match schema.get(LIST_TYPE):
        case "set":
            return [duplicate(f"{path}[{at}]", items[at]) for at in _repeated_positions(items)]
        case "map":
            return _unique_keys(items, schema.get(LIST_KEYS, ()), path)
    return []


def _unique_keys(items: list[Any], names: Iterable[str], path: str) -> list[Cause]:
    for at, item in enumerate(items):
        if item is not None and not isinstance(item, dict):
            return [invalid(f"{path}[{at}]", item, "must be an object for an array of list-type map")]
    keys = [{name: item[name] for name in names if name in item} if item else {} for item in items]
    return [duplicate(f"{path}[{at}]", keys[at]) for at in _repeated_positions(keys)]


def _repeated_positions(values: list[Any]) -> Iterator[int]:
    """Yield the position of the second occurrence of each repeated value."""
    times: dict[Any, int] = {}
    for at, value in enumerate(values):
        known = json.encode(value, order="deterministic")  # 1 and true, and 1 and "1", are different
        times[known] = times.get(known, 0) + 1
        if times[known] == 2:
            yield at
