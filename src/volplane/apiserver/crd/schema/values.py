"""Validate values against a schema, with upstream's messages.

All errors are reported at once. On an update, errors in an unchanged value are ignored level by level
(ratcheting), so that a stricter schema does not block updates of existing objects. The path inside a message
is relative to where validation began; the path in front of it is absolute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from volplane.api.errors import Cause, invalid, not_supported, required_value, too_long, too_many
from volplane.apiserver.crd.schema import (
    INT_OR_STRING,
    Schema,
    additional_of,
    formats,
    items_of,
    json_equal,
    patterns,
)
from volplane.apiserver.crd.schema.correlate import ValuePair

ROOT_PATH = "<nil>"  # upstream's path of the object itself
TYPE_INVALID = "FieldValueTypeInvalid"

_JSON_TYPES: Mapping[type, str] = {
    bool: "boolean", str: "string", int: "integer", float: "number", list: "array", dict: "object",
}  # fmt: skip
_COMBINATORS = frozenset({"anyOf", "oneOf", "allOf", "not"})
_OF_STRINGS = frozenset({"format", "pattern", "maxLength", "minLength"})
_NATIVE_FORMATS = {"integer": "int64", "number": "float64"}
_INT32 = 1 << 31
_MAX_FLOAT32 = 3.4028234663852886e38


class ValidationResult:
    """The errors of a value. `passed` counts successful checks, to find the closest alternative."""

    __slots__ = ("causes", "passed")

    def __init__(self) -> None:
        self.causes: list[Cause] = []
        self.passed = 0

    def add(self, cause: Cause) -> None:
        if cause not in self.causes:
            self.causes.append(cause)

    def merge(self, other: ValidationResult) -> None:
        for cause in other.causes:
            self.add(cause)
        self.passed += other.passed


class ValuePosition:
    """The position of a value, and the old value there; its path is built only for error messages."""

    __slots__ = ("above", "pair", "step")

    def __init__(self, above: ValuePosition | None, step: str, pair: ValuePair | None) -> None:
        self.above = above  # None: where validation begins
        self.step = step  # `name` or `[0]`; the path of the validated field where validation begins
        self.pair = pair  # the new value with its old one

    def member(self, name: str) -> ValuePosition:
        return ValuePosition(self, name, self.pair.member(name) if self.pair is not None else None)

    def item(self, at: int, schema: Schema) -> ValuePosition:
        return ValuePosition(self, f"[{at}]", self.pair.item(at, schema) if self.pair is not None else None)

    @property
    def base(self) -> str:
        return self.step if self.above is None else self.above.base

    @property
    def name(self) -> str:
        """The path relative to where validation began."""
        return "" if self.above is None else _join_path(self.above.name, self.step)

    @property
    def path(self) -> str:
        return _join_path(self.base, self.name) or ROOT_PATH

    def message(self, words: str) -> str:
        return f"{self.name} in body {words}"


def _join_path(path: str, step: str) -> str:
    return f"{path}.{step}" if path and step and not step.startswith("[") else f"{path}{step}"


def validate(
    value: Any, schema: Schema | None, *, base: str = "", pair: ValuePair | None = None
) -> list[Cause]:
    """Return the errors of a value; `base` is the path of its field."""
    result = ValidationResult()
    if schema is not None:
        _validate_ratcheting(value, schema, ValuePosition(None, base, pair), result)
    return result.causes


def _validate_ratcheting(
    value: Any, schema: Schema, position: ValuePosition, result: ValidationResult
) -> None:
    before = len(result.causes)
    _validate(value, schema, position, result)
    if len(result.causes) > before and position.pair is not None and position.pair.is_unchanged:
        del result.causes[before:]


def _validate(value: Any, schema: Schema, position: ValuePosition, result: ValidationResult) -> None:
    _type(value, schema, position, result)
    if value is None:
        _enum(value, schema, position, result)
        return
    if not _COMBINATORS.isdisjoint(schema):
        _combinators(value, schema, position, result)
    match value:
        case bool():
            pass
        case str():
            if not _OF_STRINGS.isdisjoint(schema):
                _string(value, schema, position, result)
        case int() | float():
            _number(value, schema, position, result)
        case list() | tuple():
            _items(value, schema, position, result)
        case dict():
            _members(value, schema, position, result)
    _enum(value, schema, position, result)


# Type, enum


def types_of(schema: Schema) -> tuple[str, ...]:
    if schema.get(INT_OR_STRING):
        return ("integer", "string")
    return (schema["type"],) if schema.get("type") else ()


def format_of(schema: Schema) -> str:
    """Return the format if it applies to the type, else ""."""
    given: str = schema.get("format", "")
    if not given:
        return ""
    wanted = types_of(schema)
    alone = wanted[0] if len(wanted) == 1 else ""
    return given if formats.is_known_format(alone, given) else ""


def _type(value: Any, schema: Schema, position: ValuePosition, result: ValidationResult) -> None:
    wanted = types_of(schema)
    given = "null" if value is None else _JSON_TYPES.get(type(value), "array")
    if not wanted or _is_of(value, given, wanted, schema):
        result.passed += 1
        return
    format = format_of(schema)
    if format and given not in ("string", "array", "null"):
        result.add(_type_cause(position, format, _NATIVE_FORMATS.get(given, "")))
    else:
        result.add(_type_cause(position, ",".join(wanted), given))


def _is_of(value: Any, given: str, wanted: tuple[str, ...], schema: Schema) -> bool:
    if given in wanted:
        return True
    match given:
        case "null":
            return bool(schema.get("nullable"))
        case "integer":
            return "number" in wanted
        case "number":
            return "integer" in wanted and value.is_integer()
    return False


def _type_cause(position: ValuePosition, wanted: str, given: str) -> Cause:
    detail = invalid(position.path, given, position.message(f"must be of type {wanted}: {_quote(given)}"))
    return Cause(TYPE_INVALID, detail.message, detail.field)


def _quote(text: str) -> str:
    return invalid("", text, "").message.removeprefix("Invalid value: ").removesuffix(": ")


def _enum(value: Any, schema: Schema, position: ValuePosition, result: ValidationResult) -> None:
    allowed = schema.get("enum")
    if not allowed or any(json_equal(value, choice) for choice in allowed):
        result.passed += 1
        return
    shown = [choice if isinstance(choice, str) else _quote(choice) for choice in allowed]
    result.add(not_supported(position.path, value, shown))


# Strings and numbers


def _string(value: str, schema: Schema, position: ValuePosition, result: ValidationResult) -> None:
    format = format_of(schema)
    pattern = schema.get("pattern")
    longest, shortest = schema.get("maxLength"), schema.get("minLength")
    if longest is not None and len(value) > longest:
        result.add(too_long(position.path, longest))
    elif shortest is not None and len(value) < shortest:
        result.add(
            invalid(position.path, value, position.message(f"should be at least {shortest} chars long"))
        )
    elif pattern and patterns.compile(pattern).search(value) is None:
        result.add(invalid(position.path, value, position.message(f"should match '{pattern}'")))
    else:
        result.passed += 1
    if format and not formats.matches_format(format, value):
        result.add(_type_cause(position, format, value))


def _number(value: float, schema: Schema, position: ValuePosition, result: ValidationResult) -> None:
    wanted, format = types_of(schema), format_of(schema)
    if _out_of_range(value, wanted, format):
        detail = f" with format {format}" if format else " (default format)"
        words = f"Checked value must be of type {wanted[0]}{detail} in {position.name}"
        result.add(invalid(position.base or ROOT_PATH, "", words))
    else:
        result.passed += 1
    for key, holds, words_of in _LIMITS:
        limit = schema.get(key)
        if limit is None:
            continue
        exclusive = bool(schema.get(f"exclusive{key[0].upper()}{key[1:]}"))
        if not holds(value, limit, exclusive):
            word = words_of[1] if exclusive else words_of[0]
            result.add(
                invalid(
                    position.path,
                    _whole_number(value),
                    position.message(f"should be {word} {format_number(limit)}"),
                )
            )


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


def format_number(value: float) -> str:
    """Format a number as Go does."""
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e21):
        return str(int(value))
    return repr(value)


def _whole_number(value: float) -> float:
    """Convert whole floats to int for messages."""
    return int(value) if float(value).is_integer() and abs(value) < 1e21 else value


# Lists and objects


def _items(value: Any, schema: Schema, position: ValuePosition, result: ValidationResult) -> None:
    item = items_of(schema)
    if item is not None:
        for at, inner in enumerate(value):
            _validate_ratcheting(inner, item, position.item(at, schema), result)
    fewest, most, size = schema.get("minItems"), schema.get("maxItems"), len(value)
    if fewest is not None and size < fewest:
        result.add(invalid(position.path, size, position.message(f"should have at least {fewest} items")))
    if most is not None and size > most:
        result.add(too_many(position.path, size, most))
    result.passed += 1


def _members(
    value: dict[str, Any], schema: Schema, position: ValuePosition, result: ValidationResult
) -> None:
    fewest, most, size = schema.get("minProperties"), schema.get("maxProperties"), len(value)
    if fewest is not None and size < fewest:
        result.add(
            invalid(position.path, size, position.message(f"should have at least {fewest} properties"))
        )
    if most is not None and size > most:
        result.add(too_many(position.path, size, most))
    properties, others = schema.get("properties", {}), additional_of(schema)
    for name, inner in value.items():
        below = properties.get(name, others)
        if below is not None:
            _validate_ratcheting(inner, below, position.member(name), result)
        elif schema.get("additionalProperties") is False:
            detail = f"{position.name}.{name} in body is a forbidden property"
            result.add(invalid(position.path, name, detail))
    for name in schema.get("required", ()):
        if name not in value:
            result.add(required_value(position.member(name).path))
    result.passed += 1


# Alternatives


def _combinators(value: Any, schema: Schema, position: ValuePosition, result: ValidationResult) -> None:
    if alternatives := schema.get("anyOf"):
        _any_of(value, alternatives, position, result)
    if alternatives := schema.get("oneOf"):
        _one_of(value, alternatives, position, result)
    if parts := schema.get("allOf"):
        _all_of(value, parts, position, result)
    refused = schema.get("not")
    if refused is not None and not _validate_alone(value, refused, position).causes:
        result.add(_combinator_cause(position, "must not validate the schema (not)"))


def _validate_alone(value: Any, schema: Schema, position: ValuePosition) -> ValidationResult:
    """Validate one alternative separately."""
    made = ValidationResult()
    _validate(value, schema, position, made)
    return made


def _combinator_cause(position: ValuePosition, words: str) -> Cause:
    return invalid(position.base or ROOT_PATH, "", f"{_quote(position.name)} {words}")


def _any_of(
    value: Any, alternatives: Iterable[Schema], position: ValuePosition, result: ValidationResult
) -> None:
    found = []
    for alternative in alternatives:
        found.append(_validate_alone(value, alternative, position))
        if not found[-1].causes:
            result.merge(found[-1])
            return
    result.add(_combinator_cause(position, "must validate at least one schema (anyOf)"))
    result.merge(_closest(found))


def _one_of(
    value: Any, alternatives: Iterable[Schema], position: ValuePosition, result: ValidationResult
) -> None:
    found = [_validate_alone(value, alternative, position) for alternative in alternatives]
    valid = [r for r in found if not r.causes]
    if len(valid) == 1:
        result.merge(valid[0])
        return
    detail = f"Found {len(valid)} valid alternatives" if valid else "Found none valid"
    result.add(_combinator_cause(position, f"must validate one and only one schema (oneOf). {detail}"))
    if not valid:
        result.merge(_closest(found))


def _closest(found: list[ValidationResult]) -> ValidationResult:
    """Return the alternative with the most successful checks: the one that was most likely meant."""
    return max(found, key=lambda r: r.passed)  # the first of equals


def _all_of(value: Any, parts: Iterable[Schema], position: ValuePosition, result: ValidationResult) -> None:
    found = [_validate_alone(value, part, position) for part in parts]
    for each in found:
        result.merge(each)
    failed = sum(bool(r.causes) for r in found)
    if failed:
        none = ". None validated" if failed == len(found) else ""
        result.add(_combinator_cause(position, f"must validate all the schemas (allOf){none}"))
