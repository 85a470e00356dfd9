"""Implementations of CEL functions that do not fit in one expression.

Functions that visit every element or character charge the cost budget, which is their first argument.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from volplane.apiserver.crd.cel import types
from volplane.apiserver.crd.cel.errors import NO_OVERLOAD, CelEvaluationError
from volplane.apiserver.crd.cel.types import CelType
from volplane.apiserver.crd.cel.values import (
    CostBudget,
    LibraryValue,
    OptionalValue,
    UnorderedList,
    concatenate_lists,
    equal,
    type_of,
)
from volplane.apiserver.crd.schema import patterns
from volplane.apiserver.crd.schema.values import format_number
from volplane.base import clock

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_DURATIONS = re.compile(rf"(?:{_DURATION.pattern})+")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_CHARACTERS = 10  # per cost step


# Numbers


def check_int64(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise CelEvaluationError("integer overflow")
    return value


def divide(a: int, b: int) -> int:
    if b == 0:
        raise CelEvaluationError("division by zero")
    return check_int64(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1))


def remainder(a: int, b: int) -> int:
    if b == 0:
        raise CelEvaluationError("modulus by zero")
    return int(math.fmod(a, b)) if abs(a) < 1 << 53 and abs(b) < 1 << 53 else a - b * divide(a, b)


def quotient(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


# Conversions


def kind_of(value: Any) -> CelType:
    found = type_of(value)
    return CelType("null_type") if found == types.NULL else CelType(found.name)


def to_bool(text: str) -> bool:
    if text in ("true", "True", "TRUE", "t", "1"):
        return True
    if text in ("false", "False", "FALSE", "f", "0"):
        return False
    raise CelEvaluationError("type conversion error from 'string' to 'bool'")


def to_int(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,100}", text):
        raise CelEvaluationError("type conversion error from 'string' to 'int'")
    return check_int64(int(text))


def to_double(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CelEvaluationError("type conversion error from 'string' to 'double'") from None


def to_string(value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return format_number(value)
        case bytes():
            return _decode_utf8(value)
        case datetime():
            return clock.stamp(value)
        case timedelta():
            return f"{format_number(value.total_seconds())}s"
        case LibraryValue() if value.type_name in ("ip", "cidr"):
            return str(value)
    raise CelEvaluationError(NO_OVERLOAD)


def _decode_utf8(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise CelEvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None


def to_timestamp(text: str) -> datetime:
    try:
        return clock.parse(text)
    except ValueError as error:
        raise CelEvaluationError(f"parsing time {text!r}: {error}") from None


def to_duration(text: str) -> timedelta:
    bare = text.lstrip("+-")
    if bare != "0" and not _DURATIONS.fullmatch(bare):
        raise CelEvaluationError(f'time: invalid duration "{text}"')
    seconds = sum(float(amount) * _SECONDS[unit] for amount, unit in _DURATION.findall(bare))
    try:
        return timedelta(seconds=-seconds if text.startswith("-") else seconds)
    except OverflowError:
        raise CelEvaluationError(f'time: invalid duration "{text}"') from None


def time_sum(one: Any, other: timedelta) -> Any:
    try:
        return one + other
    except OverflowError:
        raise CelEvaluationError("timestamp overflow") from None


# Text


def _pay(budget: CostBudget, *texts: Any) -> None:
    """Charge for reading or creating strings of this length."""
    budget.spend(sum(len(text) for text in texts) // _CHARACTERS)


def per_character(run: Callable[..., Any], texts: int = 1) -> Callable[..., Any]:
    """Charge for the length of the first argument, or of the first `texts` arguments."""

    def charge_and_run(budget: CostBudget, *values: Any) -> Any:
        _pay(budget, *values[:texts])
        return run(*values)

    return charge_and_run


def matches(budget: CostBudget, text: str, pattern: str) -> bool:
    return _compile_pattern(budget, text, pattern).search(text) is not None


def find(budget: CostBudget, text: str, pattern: str) -> str:
    return _compile_pattern(budget, text, pattern).search(text) or ""


def find_all(budget: CostBudget, text: str, pattern: str, limit: int = -1) -> list[str]:
    found: list[str] = []
    for piece in _compile_pattern(budget, text, pattern).find_all(text):
        if 0 <= limit <= len(found):
            break
        _pay(budget, text)  # each search may read the whole rest
        found.append(piece)
    return found


def _compile_pattern(budget: CostBudget, text: str, pattern: str) -> patterns.Re2Pattern:
    # As upstream: one step per ten characters of the text, times one per four of the pattern.
    budget.spend((len(text) // _CHARACTERS + 1) * (len(pattern) // 4 + 1))
    try:
        return patterns.compile(pattern)
    except patterns.InvalidPattern as error:
        raise CelEvaluationError(str(error)) from error


def char_at(text: str, at: int) -> str:
    if not 0 <= at <= len(text):
        raise CelEvaluationError(f"index out of range: {at}")
    return text[at : at + 1]


def replace(budget: CostBudget, text: str, old: str, new: str, limit: int = -1) -> str:
    places = len(text) + 1 if not old else text.count(old)
    if limit >= 0:
        places = min(places, limit)
    budget.spend((len(text) + places * len(new)) // _CHARACTERS)  # charged before the string is created
    return text.replace(old, new, limit)


def split(budget: CostBudget, text: str, separator: str, limit: int = -1) -> list[str]:
    budget.spend(len(text) if not separator else len(text) // _CHARACTERS)
    if limit == 0:
        return []
    if not separator:
        return list(text) if limit < 0 else [*text[: limit - 1], text[limit - 1 :]]
    return text.split(separator, limit - 1 if limit > 0 else -1)


def substring(text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    if not 0 <= start <= end <= len(text):
        raise CelEvaluationError(f"index out of range: {start}")
    return text[start:end]


def join_strings(budget: CostBudget, parts: list[Any], separator: str = "") -> str:
    if not all(isinstance(part, str) for part in parts):
        raise CelEvaluationError(NO_OVERLOAD)
    _pay(budget, *parts)
    budget.spend(len(parts) * len(separator) // _CHARACTERS)
    return separator.join(parts)


# Lists and maps


def equals(budget: CostBudget, one: Any, other: Any) -> bool:
    """Compare and charge per element; sets compare every pair."""
    budget.spend(_elements(one) * (_elements(other) if isinstance(one, UnorderedList) else 1))
    return equal(one, other)


def _elements(value: Any) -> int:
    """Return the number of values inside a value."""
    if isinstance(value, list):
        return len(value) + sum(_elements(item) for item in value if isinstance(item, list | dict))
    if isinstance(value, dict):
        return len(value) + sum(_elements(item) for item in value.values() if isinstance(item, list | dict))
    return len(value) // 1000 if isinstance(value, str | bytes) else 0


def sum_of_lists(budget: CostBudget, one: list[Any], other: list[Any]) -> list[Any]:
    budget.spend(len(one) * len(other) if isinstance(one, UnorderedList) else len(one) + len(other))
    return concatenate_lists(one, other)


def is_in_list(budget: CostBudget, value: Any, items: list[Any]) -> bool:
    budget.spend(len(items))
    return any(equal(value, item) for item in items)


def is_in_map(value: Any, held: dict[Any, Any]) -> bool:
    return not isinstance(value, list | dict) and value in held


def is_sorted(budget: CostBudget, items: list[Any]) -> bool:
    budget.spend(len(items))
    return all(_order(a, b) <= 0 for a, b in pairwise(items))


def _order(one: Any, other: Any) -> int:
    try:
        return int(one > other) - int(one < other)
    except TypeError:
        raise CelEvaluationError(NO_OVERLOAD) from None


def sum_items(budget: CostBudget, items: list[Any]) -> Any:
    budget.spend(len(items))
    result = sum(items)
    return check_int64(result) if isinstance(result, int) else result


def minimum(budget: CostBudget, items: list[Any]) -> Any:
    return _extreme(budget, items, "min", -1)


def maximum(budget: CostBudget, items: list[Any]) -> Any:
    return _extreme(budget, items, "max", 1)


def _extreme(budget: CostBudget, items: list[Any], name: str, sign: int) -> Any:
    budget.spend(len(items))
    if not items:
        raise CelEvaluationError(f"{name} called on empty list")
    found = items[0]
    for item in items[1:]:
        if _order(item, found) * sign > 0:
            found = item
    return found


def first_index(budget: CostBudget, items: list[Any], wanted: Any) -> int:
    budget.spend(len(items))
    return next((at for at, item in enumerate(items) if equal(item, wanted)), -1)


def last_index(budget: CostBudget, items: list[Any], wanted: Any) -> int:
    budget.spend(len(items))
    return next((at for at in reversed(range(len(items))) if equal(items[at], wanted)), -1)


def unwrap(value: OptionalValue) -> Any:
    if not value.is_set:
        raise CelEvaluationError("optional.none() dereference")
    return value.value
