"""The functions and operators of CEL: their signatures and implementations.

Signatures are written as in the CEL documentation (`string.contains(string) -> bool`; operators by their
internal names). The compiler chooses by type. If a type is known only at run time, the first signature that
fits the values is used; if none fits, the error is `no such overload`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from msgspec import Struct

from volplane.apiserver.crd.cel import functions as f
from volplane.apiserver.crd.cel import kubernetes, types
from volplane.apiserver.crd.cel.errors import CelEvaluationError
from volplane.apiserver.crd.cel.types import CelType
from volplane.apiserver.crd.cel.values import OptionalValue

Function = Callable[..., Any]  # (budget, *values)


class Overload(Struct, frozen=True):
    name: str
    member: bool
    args: tuple[CelType, ...]  # the target first
    result: CelType
    run: Function


_SIGNATURE = re.compile(
    r"(?:(?P<target>[a-z_]+(?:\(.*?\))?)\.)?(?P<name>[^(]+)\((?P<args>.*)\) -> (?P<result>.+)"
)
_SPLIT = re.compile(r",\s*(?![^()]*\))")


def _overload(signature: str, run: Function) -> Overload:
    found = _SIGNATURE.fullmatch(signature)
    assert found is not None, signature
    args = [_type(text) for text in _SPLIT.split(found["args"]) if text]
    target = [_type(found["target"])] if found["target"] else []
    return Overload(found["name"], bool(target), (*target, *args), _type(found["result"]), run)


def _type(text: str) -> CelType:
    name, _, inner = text.partition("(")
    if not inner:
        return types.NAMED.get(name) or CelType(name)
    named = "optional_type" if name == "optional" else name
    return CelType(named, tuple(_type(part) for part in _SPLIT.split(inner.removesuffix(")"))))


def _plain(run: Function) -> Function:
    """Wrap a function that costs one step, whatever its arguments."""
    return lambda budget, *values: run(*values)


def _comparison_rows(name: str, holds: Callable[[int], bool]) -> Iterator[tuple[str, Function]]:
    pairs = [(t, t) for t in ("bool", "int", "double", "string", "bytes", "timestamp", "duration")]
    for one, other in [*pairs, ("int", "double"), ("double", "int")]:
        yield f"{name}({one}, {other}) -> bool", _plain(lambda a, b: holds((a > b) - (a < b)))


_ROWS: tuple[tuple[str, Function], ...] = (
    # Logic. The compiler handles && and ||, because they may evaluate one side only.
    ("!_(bool) -> bool", _plain(lambda a: not a)),
    ("_==_(A, A) -> bool", f.equals),
    ("_!=_(A, A) -> bool", lambda budget, a, b: not f.equals(budget, a, b)),
    *_comparison_rows("_<_", lambda order: order < 0),
    *_comparison_rows("_<=_", lambda order: order <= 0),
    *_comparison_rows("_>_", lambda order: order > 0),
    *_comparison_rows("_>=_", lambda order: order >= 0),
    ("@in(A, list(A)) -> bool", f.is_in_list),
    ("@in(A, map(A, B)) -> bool", _plain(f.is_in_map)),
    # Arithmetic
    ("-_(int) -> int", _plain(lambda a: f.check_int64(-a))),
    ("-_(double) -> double", _plain(lambda a: -a)),
    ("_+_(int, int) -> int", _plain(lambda a, b: f.check_int64(a + b))),
    ("_+_(double, double) -> double", _plain(lambda a, b: a + b)),
    ("_+_(string, string) -> string", f.per_character(operator.add, texts=2)),
    ("_+_(bytes, bytes) -> bytes", f.per_character(operator.add, texts=2)),
    ("_+_(list(A), list(A)) -> list(A)", f.sum_of_lists),
    ("_+_(timestamp, duration) -> timestamp", _plain(f.time_sum)),
    ("_+_(duration, timestamp) -> timestamp", _plain(lambda a, b: f.time_sum(b, a))),
    ("_+_(duration, duration) -> duration", _plain(f.time_sum)),
    ("_-_(int, int) -> int", _plain(lambda a, b: f.check_int64(a - b))),
    ("_-_(double, double) -> double", _plain(lambda a, b: a - b)),
    ("_-_(timestamp, timestamp) -> duration", _plain(lambda a, b: a - b)),
    ("_-_(timestamp, duration) -> timestamp", _plain(lambda a, b: f.time_sum(a, -b))),
    ("_-_(duration, duration) -> duration", _plain(lambda a, b: a - b)),
    ("_*_(int, int) -> int", _plain(lambda a, b: f.check_int64(a * b))),
    ("_*_(double, double) -> double", _plain(lambda a, b: a * b)),
    ("_/_(int, int) -> int", _plain(f.divide)),
    ("_/_(double, double) -> double", _plain(f.quotient)),
    ("_%_(int, int) -> int", _plain(f.remainder)),
    # Conversions
    ("type(A) -> type", _plain(f.kind_of)),
    ("dyn(A) -> dyn", _plain(lambda a: a)),
    ("bool(bool) -> bool", _plain(lambda a: a)),
    ("bool(string) -> bool", _plain(f.to_bool)),
    ("int(int) -> int", _plain(lambda a: a)),
    ("int(double) -> int", _plain(lambda a: f.check_int64(math.trunc(a)))),
    ("int(string) -> int", _plain(f.to_int)),
    ("int(timestamp) -> int", _plain(lambda a: math.floor(a.timestamp()))),
    ("double(double) -> double", _plain(lambda a: a)),
    ("double(int) -> double", _plain(float)),
    ("double(string) -> double", _plain(f.to_double)),
    ("string(A) -> string", _plain(f.to_string)),
    ("bytes(bytes) -> bytes", _plain(lambda a: a)),
    ("bytes(string) -> bytes", _plain(lambda a: a.encode())),
    ("timestamp(timestamp) -> timestamp", _plain(lambda a: a)),
    ("timestamp(string) -> timestamp", _plain(f.to_timestamp)),
    ("duration(duration) -> duration", _plain(lambda a: a)),
    ("duration(string) -> duration", _plain(f.to_duration)),
    # Sizes
    *(
        (form.format(shape), _plain(len))
        for shape in ("string", "bytes", "list(A)", "map(A, B)")
        for form in ("size({}) -> int", "{}.size() -> int")
    ),
    # Text
    ("string.contains(string) -> bool", f.per_character(operator.contains)),
    ("string.startsWith(string) -> bool", _plain(str.startswith)),
    ("string.endsWith(string) -> bool", _plain(str.endswith)),
    ("string.matches(string) -> bool", f.matches),
    ("matches(string, string) -> bool", f.matches),
    ("string.find(string) -> string", f.find),
    ("string.findAll(string) -> list(string)", f.find_all),
    ("string.findAll(string, int) -> list(string)", f.find_all),
    ("string.charAt(int) -> string", _plain(f.char_at)),
    ("string.indexOf(string) -> int", _plain(str.find)),
    ("string.indexOf(string, int) -> int", _plain(str.find)),
    ("string.lastIndexOf(string) -> int", _plain(str.rfind)),
    ("string.lowerAscii() -> string", f.per_character(str.lower)),
    ("string.upperAscii() -> string", f.per_character(str.upper)),
    ("string.replace(string, string) -> string", f.replace),
    ("string.replace(string, string, int) -> string", f.replace),
    ("string.split(string) -> list(string)", f.split),
    ("string.split(string, int) -> list(string)", f.split),
    ("string.substring(int) -> string", _plain(f.substring)),
    ("string.substring(int, int) -> string", _plain(f.substring)),
    ("string.trim() -> string", _plain(str.strip)),
    ("list(string).join() -> string", f.join_strings),
    ("list(string).join(string) -> string", f.join_strings),
    # Lists
    ("list(A).isSorted() -> bool", f.is_sorted),
    ("list(int).sum() -> int", f.sum_items),
    ("list(double).sum() -> double", f.sum_items),
    ("list(A).min() -> A", f.minimum),
    ("list(A).max() -> A", f.maximum),
    ("list(A).indexOf(A) -> int", f.first_index),
    ("list(A).lastIndexOf(A) -> int", f.last_index),
    # Times, in UTC
    *(
        (f"timestamp.{name}() -> int", _plain(part))
        for name, part in {
            "getFullYear": lambda t: t.year,
            "getMonth": lambda t: t.month - 1,
            "getDate": lambda t: t.day,
            "getDayOfMonth": lambda t: t.day - 1,
            "getDayOfWeek": lambda t: (t.weekday() + 1) % 7,
            "getDayOfYear": lambda t: t.timetuple().tm_yday - 1,
            "getHours": lambda t: t.hour,
            "getMinutes": lambda t: t.minute,
            "getSeconds": lambda t: t.second,
        }.items()
    ),
    # Optional values
    ("optional.none() -> optional(A)", _plain(lambda *_: OptionalValue())),
    ("optional.of(A) -> optional(A)", _plain(lambda _, a: OptionalValue(a))),
    ("optional(A).hasValue() -> bool", _plain(lambda a: a.is_set)),
    ("optional(A).value() -> A", _plain(f.unwrap)),
    ("optional(A).orValue(A) -> A", _plain(lambda a, b: a.value if a.is_set else b)),
    ("optional(A).or(optional(A)) -> optional(A)", _plain(lambda a, b: a if a.is_set else b)),
    *kubernetes.ROWS,
)


@cache
def overloads() -> dict[tuple[str, bool], list[Overload]]:
    """Return the overloads by name, and by whether they are methods."""
    found: dict[tuple[str, bool], list[Overload]] = {}
    for signature, run in _ROWS:
        made = _overload(signature, run)
        found.setdefault((made.name, made.member), []).append(made)
    return found


def element(held: Any, index: Any) -> Any:
    """`_[_]`."""
    if isinstance(held, list):
        if type(index) is float and index.is_integer():
            index = int(index)
        if type(index) is not int:
            raise CelEvaluationError(f"unsupported index type '{f.kind_of(index).name}' in list")
        if not 0 <= index < len(held):
            raise CelEvaluationError(f"index out of bounds: {index}")
        return held[index]
    if isinstance(held, dict):
        if index not in held:
            raise CelEvaluationError(f"no such key: {index}")
        return held[index]
    raise CelEvaluationError("no such overload")
