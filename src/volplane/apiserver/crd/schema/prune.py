"""Pruning: remove members that the schema does not know, and return their paths.

`x-kubernetes-preserve-unknown-fields` keeps unknown members at its level and below, down to members that are
declared again. apiVersion, kind and metadata of the root and of embedded resources always stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from volplane.apiserver.crd.schema import EMBEDDED, PRESERVE, TYPE_META, Schema, items_of

_ABSENT: Any = object()


def prune(value: Any, schema: Schema | None, *, root: bool = False) -> list[str]:
    """Remove unknown members, in place; return their paths, sorted (`spec.list[0].color`)."""
    return sorted(_prune(value, schema, meta=root, top=root) or ())


def _prune(value: Any, schema: Schema | None, *, meta: bool = False, top: bool = False) -> list[str] | None:
    """`meta`: keep apiVersion, kind and metadata here; `top`: do not report them if they are removed."""
    if type(value) is dict:
        if schema is not None and schema.get(PRESERVE):
            return _known_members(value, schema, meta)
        return _members(value, schema, meta, top)
    if type(value) is list:
        if schema is not None and schema.get(PRESERVE):
            return _preserved_items(value, items_of(schema))
        return _each(value, items_of(schema))
    return None


def _members(value: dict[str, Any], schema: Schema | None, meta: bool, top: bool) -> list[str] | None:
    if schema is None:
        found = list(value)
        value.clear()
        return found
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties")
    meta = meta or bool(schema.get(EMBEDDED))
    found = []
    gone = []
    for name, inner in value.items():
        if meta and name in TYPE_META:
            continue
        known = properties.get(name, _ABSENT)
        if known is _ABSENT and others is None:
            gone.append(name)
            continue
        below = others if known is _ABSENT else known
        if type(inner) in (dict, list):
            found += _below(name, _prune(inner, below if isinstance(below, dict) else None))
    for name in gone:
        del value[name]
    found += [name for name in gone if not (top and name in TYPE_META)]
    return found


def _known_members(value: dict[str, Any], schema: Schema, meta: bool) -> list[str] | None:
    """Keep all members; prune inside declared ones."""
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties")
    meta = meta or bool(schema.get(EMBEDDED))
    found: list[str] = []
    for name, inner in value.items():
        if (meta and name in TYPE_META) or type(inner) not in (dict, list):
            continue
        if name in properties:
            found += _below(name, _prune(inner, properties[name]))
        elif others is not None:
            found += _below(name, _prune(inner, others if isinstance(others, dict) else None))
    return found


def _each(values: list[Any], schema: Schema | None) -> list[str] | None:
    found: list[str] = []
    for at, inner in enumerate(values):
        if type(inner) in (dict, list):
            found += _below(f"[{at}]", _prune(inner, schema))
    return found


def _preserved_items(values: list[Any], schema: Schema | None) -> list[str] | None:
    """Keep the unknown members of the items of a preserved list."""
    if schema is None:
        return None
    found: list[str] = []
    for at, inner in enumerate(values):
        if type(inner) is dict:
            found += _below(f"[{at}]", _known_members(inner, schema, False))
        elif type(inner) is list:
            found += _below(f"[{at}]", _preserved_items(inner, items_of(schema)))
    return found


def _below(step: str, found: Iterable[str] | None) -> list[str]:
    return [f"{step}{inner}" if inner.startswith("[") else f"{step}.{inner}" for inner in found or ()]
