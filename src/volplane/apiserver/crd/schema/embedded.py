"""Object metadata in custom resources: of the object itself, and of resources embedded in it.

Metadata is decoded as ObjectMeta, whatever the schema says. Fields that ObjectMeta does not know are pruned
and reported like other unknown fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from volplane.api import name_validation
from volplane.api.errors import Cause, invalid, required_value
from volplane.api.meta import ObjectMeta
from volplane.apiserver import metadata
from volplane.apiserver.crd.schema import EMBEDDED, Schema, child_path, children
from volplane.apiserver.decode import Undecodable
from volplane.apiserver.decode.canonicalize import TypeMismatch, walker
from volplane.apiserver.decode.go_errors import type_error


def clean(data: Any) -> tuple[dict[str, Any], list[str]]:
    """Return metadata pruned to ObjectMeta, and the paths of unknown fields. Raise Undecodable."""
    try:
        found = walker(ObjectMeta)(data) or []
        meta = msgspec.convert(data, ObjectMeta)
    except TypeMismatch as error:
        raise Undecodable(str(error)) from error
    except msgspec.ValidationError as error:
        raise Undecodable(type_error(ObjectMeta, error)) from error
    return plain(meta), found


def plain(meta: ObjectMeta) -> dict[str, Any]:
    """Convert to plain JSON data: lists, not tuples."""
    result: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(meta))
    return result


def coerce(value: Any, schema: Schema | None, path: str = "") -> list[str]:
    """Prune the metadata of embedded resources, in place; return the paths of unknown fields.

    Raise Undecodable if metadata is malformed.
    """
    if schema is None:
        return []
    found = _coerce_meta(value, path) if isinstance(value, dict) and schema.get(EMBEDDED) else []
    for inner, below, here in children(value, schema, path):
        found += coerce(inner, below, here)
    return found


def _coerce_meta(value: dict[str, Any], path: str) -> list[str]:
    for name in ("apiVersion", "kind"):
        if name in value and not isinstance(value[name], str):
            raise Undecodable(str(invalid(child_path(path, name), value[name], "must be a string")))
    if "metadata" not in value:
        return []
    here = child_path(path, "metadata")
    given = value["metadata"]
    if given is None:
        value["metadata"] = {}
        return []
    try:
        value["metadata"], found = clean(given)
    except Undecodable as error:
        raise Undecodable(str(invalid(here, given, str(error)))) from error
    return [f"{here}.{inner}" for inner in found]


def validate(value: Any, schema: Schema | None, path: str = "", *, root: bool = True) -> list[Cause]:
    """Validate embedded resources: they need apiVersion, kind and valid metadata."""
    if schema is None:
        return []
    embedded = isinstance(value, dict) and schema.get(EMBEDDED) and not root
    causes = list(_validate_meta(value, path)) if embedded else []
    for inner, below, here in children(value, schema, path):
        causes += validate(inner, below, here, root=False)
    return causes


def _validate_meta(value: dict[str, Any], path: str) -> Iterator[Cause]:
    for name in ("apiVersion", "kind"):
        here, given = child_path(path, name), value.get(name)
        if name not in value:
            yield required_value(here)
        elif not isinstance(given, str):
            yield invalid(here, given, "must be a string")
        elif not given:
            yield invalid(here, given, "must not be empty")
        elif name == "apiVersion" and given.count("/") > 1:
            yield invalid(here, given, f"unexpected GroupVersion string: {given}")
        elif name == "kind" and (problems := name_validation.dns_1035_problems(given.lower())):
            words = f"may have mixed case, but should otherwise match: {','.join(problems)}"
            yield invalid(here, given, words)
    if isinstance(value.get("metadata"), dict):
        yield from _validate_object_meta(value["metadata"], child_path(path, "metadata"))


def _validate_object_meta(data: dict[str, Any], path: str) -> list[Cause]:
    given = {name: value for name, value in data.items() if name != "managedFields"}  # not checked here
    try:
        meta = msgspec.convert(given, ObjectMeta)
    except msgspec.ValidationError as error:
        return [invalid(path, data, type_error(ObjectMeta, error))]
    found = metadata.validate_embedded(meta)
    return [Cause(c.reason, c.message, path + c.field.removeprefix("metadata")) for c in found]
