"""Paths into a schema as definitions write them: `.spec.color`, `.spec['odd name']`, `.spec.labels.any`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from volplane.apiserver.crd.schema import Schema, additional_of

_STEP = re.compile(r"\.(?P<name>[^.\[\]]+)|\[(?P<quoted>'(?:[^'\\]|\\.)*')\]")
_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "'": "'", "\\": "\\",
}  # fmt: skip


class InvalidSchemaPath(ValueError):
    """Not a path, or not a path in this schema."""


def follow(path: str, schema: Schema, *, brackets: bool = True) -> tuple[str, Schema | None]:
    """Resolve a path: return it as messages write it, and the schema there. Raise InvalidSchemaPath."""
    shown = ""
    here: Schema | None = schema
    for name in steps(path, brackets=brackets):
        properties = here.get("properties") if here is not None else None
        others = here.get("additionalProperties") if here is not None else None
        if properties:
            if name not in properties:
                raise InvalidSchemaPath("does not refer to a valid field")
            here, shown = properties[name], f"{shown}.{name}" if shown else name
        elif here is not None and others:
            here, shown = additional_of(here), f"{shown}[{name}]"
        else:
            raise InvalidSchemaPath("does not refer to a valid field")
    return shown, here


def steps(path: str, *, brackets: bool = True) -> Iterator[str]:
    """Yield the names in a path. Raise InvalidSchemaPath."""
    at = 0
    while at < len(path):
        if path[at] == "[" and not brackets:
            raise InvalidSchemaPath("array notation is not allowed")
        found = _STEP.match(path, at)
        if found is None:
            raise InvalidSchemaPath(f"expected [ or . but got: {path[at:]}")
        yield found["name"] or _unquote(found["quoted"])
        at = found.end()


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", _unescape, text[1:-1])


def _unescape(found: re.Match[str]) -> str:
    if found[1] not in _ESCAPES:
        raise InvalidSchemaPath(f"invalid string literal: invalid escape char {found[0]}")
    return _ESCAPES[found[1]]


def normalize_path(path: str, schema: Schema) -> str:
    """Return the path as messages write it, or "" if it is invalid."""
    try:
        return follow(path.strip(), schema)[0]
    except InvalidSchemaPath:
        return ""
