"""Validation of values against a schema, in the words that clients know.

Everything wrong is told at once. On an update, what is wrong about a value that has not changed is forgiven
(`Pair.unchanged`), level by level: a schema that was tightened does not lock up the objects that are there.
The subtle thing: a path inside a message is relative to where validation began, the path before it is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from volplane.api.errors import Cause, invalid, not_supported, required, too_long, too_many
from volplane.apiserver.crd.schema import (
    INT_OR_STRING,
    Schema,
    additional_of,
    formats,
    items_of,
    patterns,
    same,
)
from volplane.apiserver.crd.schema.correlate import Pair

NOWHERE = "<nil>"  # how upstream spells the path of the object itself
TYPE_INVALID = "FieldValueTypeInvalid"

_JSON_TYPES: Mapping[type, str] = {
    bool: "boolean", str: "string", int: "integer", float: "number", list: "array", dict: "object",
}  # fmt: skip
_NATIVE_FORMATS = {"integer": "int64", "number": "float64"}
_INT32 = 1 << 31
_MAX_FLOAT32 = 3.4028234663852886e38


class Result:
    """What is wrong with a value. `passed` counts the checks that held: alternatives are compared by it."""

    __slots__ = ("causes", "passed")

    def __init__(self, causes: Iterable[Cause] = (), passed: int = 0) -> None:
        self.causes = list(causes)
        self.passed = passed

    def add(self, *causes: Cause) -> None:
        self.causes += [cause for cause in causes if cause not in self.causes]

    def merge(self, other: Result) -> None:
        self.add(*other.causes)
        self.passed += other.passed


class Place:
    """Where a value stands: its name inside messages, and the path of the field that is told."""

    __slots__ = ("base", "name")

    def __init__(self, base: str, name: str = "") -> None:
        self.base = base
        self.name = name

    def member(self, name: str) -> Place:
        return Place(self.base, f"{self.name}.{name}" if self.name else name)

    def item(self, at: int) -> Place:
        return Place(self.base, f"{self.name}[{at}]")

    @property
    def path(self) -> str:
        if not self.name:
            return self.base or NOWHERE
        joint = "" if self.name.startswith("[") else "."
        return f"{self.base}{joint}{self.name}" if self.base else self.name

    def says(self, words: str) -> str:
        return f"{self.name} in body {words}"


def validate(value: Any, schema: Schema | None, *, base: str = "", pair: Pair | None = None) -> list[Cause]:
    """What is wrong with a value; `base` is the path of the field it stands in."""
    return [] if schema is None else _ratcheted(value, schema, Place(base), pair).causes


def _ratcheted(value: Any, schema: Schema, place: Place, pair: Pair | None) -> Result:
    result = _validate(value, schema, place, pair)
    if result.causes and pair is not None and pair.unchanged:
        return Result(passed=result.passed)
    return result


def _validate(value: Any, schema: Schema, place: Place, pair: Pair | None) -> Result:
    result = Result(passed=1)
    result.merge(_type(value, schema, place))
    if value is None:
        result.merge(_enum(value, schema, place))
        return result
    result.merge(_junctors(value, schema, place, pair))
    match value:
        case bool():
            pass
        case str():
            result.merge(_string(value, schema, place))
        case int() | float():
            result.merge(_number(value, schema, place))
        case list() | tuple():
            result.merge(_items(value, schema, place, pair))
        case dict():
            result.merge(_members(value, schema, place, pair))
    result.merge(_enum(value, schema, place))
    return result


# Type, enum


def types_of(schema: Schema) -> tuple[str, ...]:
    if schema.get(INT_OR_STRING):
        return ("integer", "string")
    return (schema["type"],) if schema.get("type") else ()


def format_of(schema: Schema) -> str:
    """The format, if it means something for the type."""
    given: str = schema.get("format", "")
    wanted = types_of(schema)
    alone = wanted[0] if len(wanted) == 1 else ""
    return given if given and formats.known(alone, given) else ""


def _type(value: Any, schema: Schema, place: Place) -> Result:
    wanted, format = types_of(schema), format_of(schema)
    if not wanted:
        return Result(passed=1)
    if value is None:
        return Result(passed=1) if schema.get("nullable") else _wrong_type(place, ",".join(wanted), "null")
    given = _JSON_TYPES.get(type(value), "array")
    if given in wanted or (given == "integer" and "number" in wanted):
        return Result(passed=1)
    if given == "number" and "integer" in wanted and value.is_integer():
        return Result(passed=1)
    if format and given not in ("string", "array"):
        return _wrong_type(place, format, _NATIVE_FORMATS.get(given, ""))
    return _wrong_type(place, ",".join(wanted), given)


def _wrong_type(place: Place, wanted: str, given: str) -> Result:
    return Result([_type_cause(place, wanted, given)])


def _type_cause(place: Place, wanted: str, given: str) -> Cause:
    told = invalid(place.path, given, place.says(f"must be of type {wanted}: {_quoted(given)}"))
    return Cause(TYPE_INVALID, told.message, told.field)


def _quoted(text: str) -> str:
    return invalid("", text, "").message.removeprefix("Invalid value: ").removesuffix(": ")


def _enum(value: Any, schema: Schema, place: Place) -> Result:
    allowed = schema.get("enum")
    if not allowed or any(same(value, choice) for choice in allowed):
        return Result(passed=1)
    shown = [choice if isinstance(choice, str) else _quoted(choice) for choice in allowed]
    return Result([not_supported(place.path, value, shown)])


# Strings and numbers


def _string(value: str, schema: Schema, place: Place) -> Result:
    result = Result(passed=1)
    format = format_of(schema)
    pattern = schema.get("pattern")
    longest, shortest = schema.get("maxLength"), schema.get("minLength")
    if longest is not None and len(value) > longest:
        result.add(too_long(place.path, longest))
    elif shortest is not None and len(value) < shortest:
        result.add(invalid(place.path, value, place.says(f"should be at least {shortest} chars long")))
    elif pattern and patterns.compile(pattern).search(value) is None:
        result.add(invalid(place.path, value, place.says(f"should match '{pattern}'")))
    if format and not formats.fits(format, value):
        result.add(_type_cause(place, format, value))
    return result


def _number(value: float, schema: Schema, place: Place) -> Result:
    result = Result(passed=1)
    wanted, format = types_of(schema), format_of(schema)
    if _out_of_range(value, wanted, format):
        told = f" with format {format}" if format else " (default format)"
        result.add(
            invalid(
                place.base or NOWHERE, "", f"Checked value must be of type {wanted[0]}{told} in {place.name}"
            )
        )
    for key, holds, words in _LIMITS:
        limit = schema.get(key)
        if limit is None:
            continue
        exclusive = bool(schema.get(f"exclusive{key[0].upper()}{key[1:]}"))
        if not holds(value, limit, exclusive):
            word = words[1] if exclusive else words[0]
            result.add(invalid(place.path, _shown(value), place.says(f"should be {word} {number(limit)}")))
    return result


def _out_of_range(value: float, wanted: tuple[str, ...], format: str) -> bool:
    if len(wanted) != 1:
        return False
    if wanted[0] == "integer":
        limit = _INT32 if format == "int32" else 1 << 63
        return not -limit <= value < limit
    return format == "float" and abs(value) > _MAX_FLOAT32


def _multiple(value: float, factor: float, exclusive: bool) -> bool:
    if isinstance(value, int) and float(factor).is_integer():
        return factor > 0 and value % int(factor) == 0
    ratio = 1 / factor * value if factor < 1 else value / factor
    return factor > 0 and (ratio.is_integer() or math.isclose(ratio, round(ratio), rel_tol=1e-9))


def _at_least(value: float, limit: float, exclusive: bool) -> bool:
    return value > limit if exclusive else value >= limit


def _at_most(value: float, limit: float, exclusive: bool) -> bool:
    return value < limit if exclusive else value <= limit


_LIMITS: tuple[tuple[str, Callable[[float, float, bool], bool], tuple[str, str]], ...] = (
    ("multipleOf", _multiple, ("a multiple of", "a multiple of")),
    ("minimum", _at_least, ("greater than or equal to", "greater than")),
    ("maximum", _at_most, ("less than or equal to", "less than")),
)


def number(value: float) -> str:
    """A number as Go prints it."""
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e21):
        return str(int(value))
    return repr(value)


def _shown(value: float) -> float:
    """Whole numbers are told without a fraction."""
    return int(value) if float(value).is_integer() and abs(value) < 1e21 else value


# Lists and objects


def _items(value: Any, schema: Schema, place: Place, pair: Pair | None) -> Result:
    result = Result(passed=1)
    item = items_of(schema)
    if item is not None:
        for at, inner in enumerate(value):
            below = pair.item(at, schema) if pair is not None else None
            result.merge(_ratcheted(inner, item, place.item(at), below))
    fewest, most, size = schema.get("minItems"), schema.get("maxItems"), len(value)
    if fewest is not None and size < fewest:
        result.add(invalid(place.path, size, place.says(f"should have at least {fewest} items")))
    if most is not None and size > most:
        result.add(too_many(place.path, size, most))
    return result


def _members(value: dict[str, Any], schema: Schema, place: Place, pair: Pair | None) -> Result:
    result = Result(passed=1)
    fewest, most, size = schema.get("minProperties"), schema.get("maxProperties"), len(value)
    if fewest is not None and size < fewest:
        result.add(invalid(place.path, size, place.says(f"should have at least {fewest} properties")))
    if most is not None and size > most:
        result.add(too_many(place.path, size, most))
    properties, others = schema.get("properties", {}), additional_of(schema)
    for name, inner in value.items():
        below = properties.get(name, others)
        if below is not None:
            matched = pair.member(name) if pair is not None else None
            result.merge(_ratcheted(inner, below, place.member(name), matched))
        elif schema.get("additionalProperties") is False:
            told = f"{place.name}.{name} in body is a forbidden property"
            result.add(invalid(place.path, name, told))
    for name in schema.get("required", ()):
        if name not in value:
            result.add(required(place.member(name).path))
    return result


# Alternatives


def _junctors(value: Any, schema: Schema, place: Place, pair: Pair | None) -> Result:
    result = Result(passed=1)
    if alternatives := schema.get("anyOf"):
        result.merge(_any_of(value, alternatives, place, pair))
    if alternatives := schema.get("oneOf"):
        result.merge(_one_of(value, alternatives, place, pair))
    if parts := schema.get("allOf"):
        result.merge(_all_of(value, parts, place, pair))
    refused = schema.get("not")
    if refused is not None and not _validate(value, refused, place, pair).causes:
        result.add(_junctor(place, "must not validate the schema (not)"))
    return result


def _junctor(place: Place, words: str) -> Cause:
    return invalid(place.base or NOWHERE, "", f"{_quoted(place.name)} {words}")


def _any_of(value: Any, alternatives: Iterable[Schema], place: Place, pair: Pair | None) -> Result:
    results = []
    for alternative in alternatives:
        results.append(_validate(value, alternative, place, pair))
        if not results[-1].causes:
            return results[-1]
    made = Result([_junctor(place, "must validate at least one schema (anyOf)")])
    made.merge(_closest(results))
    return made


def _one_of(value: Any, alternatives: Iterable[Schema], place: Place, pair: Pair | None) -> Result:
    results = [_validate(value, alternative, place, pair) for alternative in alternatives]
    valid = [r for r in results if not r.causes]
    if len(valid) == 1:
        return valid[0]
    found = f"Found {len(valid)} valid alternatives" if valid else "Found none valid"
    made = Result([_junctor(place, f"must validate one and only one schema (oneOf). {found}")])
    if not valid:
        made.merge(_closest(results))
    return made


def _closest(results: list[Result]) -> Result:
    """The alternative that fitted best is the one the writer most likely meant."""
    return max(results, key=lambda r: r.passed)  # the first of equals


def _all_of(value: Any, parts: Iterable[Schema], place: Place, pair: Pair | None) -> Result:
    results = [_validate(value, part, place, pair) for part in parts]
    made = Result()
    for result in results:
        made.merge(result)
    failed = sum(bool(r.causes) for r in results)
    if failed:
        none = ". None validated" if failed == len(results) else ""
        made.add(_junctor(place, f"must validate all the schemas (allOf){none}"))
    return made
