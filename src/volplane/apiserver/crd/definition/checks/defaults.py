"""Validate defaults: each must be valid under its own schema."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from volplane.api.errors import Cause, invalid
from volplane.apiserver.crd.cel_rules import InvalidRule, RuleCheck, compile_rules
from volplane.apiserver.crd.schema import EMBEDDED, TYPE_META, Schema, embedded, items_of, json_equal
from volplane.apiserver.crd.schema.prune import prune
from volplane.apiserver.crd.schema.values import ROOT_PATH
from volplane.apiserver.crd.schema.values import validate as validate_value
from volplane.apiserver.decode import Undecodable


def validate(schema: Schema, path: str, *, root: bool = True, meta: bool = False) -> Iterator[Cause]:
    """`root`: the schema of a resource; `meta`: inside its metadata, which is validated elsewhere."""
    default = schema.get("default")
    if default is not None and not meta:
        yield from _default(default, schema, f"{path}.default")
    item = items_of(schema)
    if item is not None:
        yield from validate(item, f"{path}.items", root=bool(item.get(EMBEDDED)), meta=meta)
    for name, inner in schema.get("properties", {}).items():
        below = meta or ((root or bool(schema.get(EMBEDDED))) and name in TYPE_META)
        here = f"{path}.properties[{name}]"
        yield from validate(inner, here, root=bool(inner.get(EMBEDDED)), meta=below)


def _default(default: Any, schema: Schema, path: str) -> list[Cause]:
    pruned = deepcopy(default)
    resource = bool(schema.get(EMBEDDED))
    prune(pruned, schema, root=resource)
    if not json_equal(pruned, default):
        return [invalid(path, default, "must not have unknown fields")]
    try:
        embedded.coerce(deepcopy(default), schema, path)
    except Undecodable as error:
        return [invalid(path, default, str(error))]
    found = embedded.validate(default, schema, path, root=False)
    found = found or [_with_path(cause, path) for cause in validate_value(default, schema, base=path)]
    return found or _rule_causes(default, schema, path, resource)


def _rule_causes(default: Any, schema: Schema, path: str, resource: bool) -> list[Cause]:
    try:
        node = compile_rules(schema, resource=resource)
    except InvalidRule:
        return []  # reported with the rule
    found = RuleCheck().run(node, default, default) or RuleCheck().run(node, default)
    return [_with_path(Cause(c.reason, c.message, _below(path, c.field)), path) for c in found]


def _below(path: str, field: str) -> str:
    if field == ROOT_PATH:
        return path
    return f"{path}{field}" if field.startswith("[") else f"{path}.{field}"


def _with_path(cause: Cause, path: str) -> Cause:
    return Cause(cause.reason, cause.message, path) if cause.field == ROOT_PATH else cause
