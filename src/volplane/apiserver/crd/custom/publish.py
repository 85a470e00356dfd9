"""Publish the schema of a custom kind in OpenAPI v3 and v2.

OpenAPI v3 takes it nearly unchanged. v2 has no anyOf and no null, and its readers (old kubectl) reject
undeclared fields, so parts that preserve unknown fields are published without a schema there.
"""

from __future__ import annotations

from typing import Any

from volplane.apiserver.crd.schema import EMBEDDED, INT_OR_STRING, PRESERVE, Schema, additional_of, items_of

Made = dict[str, Any]
_COMBINATORS = ("allOf", "oneOf", "anyOf", "not")
_TEXT = {"type": "string"}


def published_model(schema: Schema | None, meta: Made, *, v2: bool) -> Made:
    """Return the schema of a kind with the real metadata; `meta` is a reference to ObjectMeta."""
    if schema is None or (v2 and schema.get(PRESERVE)):
        return {"type": "object"}
    made = _v2(schema) if v2 else dict(schema)
    properties = {n: _publish_schema(s, meta, v2=v2) for n, s in made.get("properties", {}).items()}
    made["properties"] = {
        **properties,
        "apiVersion": dict(_TEXT),
        "kind": dict(_TEXT),
        "metadata": dict(meta),
    }
    return made


def _publish_schema(schema: Schema, meta: Made, *, v2: bool) -> Made:
    """Add the metadata of embedded resources."""
    made = dict(schema) if v2 else _spell_out_int_or_string(schema)
    if made.get("properties"):
        made["properties"] = {n: _publish_schema(s, meta, v2=v2) for n, s in made["properties"].items()}
    for key, inner in (("items", items_of(schema)), ("additionalProperties", additional_of(schema))):
        if inner is not None:
            made[key] = _publish_schema(inner, meta, v2=v2)
    if made.get(EMBEDDED) and not (v2 and made.get(PRESERVE)):
        known = made.get("properties", {})
        made["properties"] = {**known, "apiVersion": dict(_TEXT), "kind": dict(_TEXT), "metadata": dict(meta)}
        made["required"] = list(dict.fromkeys([*made.get("required", ()), "kind", "apiVersion"]))
    return made


def _v2(schema: Schema) -> Made:
    made = {key: value for key, value in schema.items() if key not in _COMBINATORS}
    if made.pop("nullable", False):
        made = _without_type(made)
    if made.get(PRESERVE):
        made = {k: v for k, v in made.items() if k not in ("items", "properties")}
        if made.get("type") == "object":
            made.pop("type")
    if made.get("type") == "array" and "items" not in made:
        made.pop("type")
    properties = made.get("properties")
    if properties:
        optional = {name for name, inner in properties.items() if inner.get("nullable")}
        made["properties"] = {name: _v2(inner) for name, inner in properties.items()}
        needed = [name for name in made.pop("required", ()) if name not in optional]
        made = {**made, "required": needed} if needed else made
    for key, inner in (("items", items_of(made)), ("additionalProperties", additional_of(made))):
        if inner is not None:
            made[key] = _v2(inner)
    return made


def _without_type(schema: Made) -> Made:
    return {k: v for k, v in schema.items() if k not in ("type", "items", "properties")}


def _spell_out_int_or_string(schema: Schema) -> Made:
    """Spell out int-or-string as anyOf, for v3 readers that do not know the extension."""
    made = dict(schema)
    if made.get(INT_OR_STRING) and "anyOf" not in made and "allOf" not in made:
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return made
