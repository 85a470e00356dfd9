"""Publish the schema of a custom kind in OpenAPI v3 and v2.

OpenAPI v3 takes it nearly unchanged. v2 has no anyOf and no null, and its readers (old kubectl) reject
undeclared fields, so parts that preserve unknown fields are published without a schema there.
"""

from __future__ import annotations

from typing import Any

from volplane.apiserver.crd.schema import EMBEDDED, INT_OR_STRING, PRESERVE, Schema, additional_of, items_of

Made = dict[str, Any]
_COMBINATORS = ("allOf", "oneOf", "anyOf", "not")


def published_model(schema: Schema | None, common: Made, *, v2: bool) -> Made:
    """Return the schema of a kind with the real metadata.

    `common`: the described schemas of apiVersion, kind and metadata, which is a reference to ObjectMeta.
    """
    if schema is None or (v2 and schema.get(PRESERVE)):
        return {"type": "object"}
    result = _v2(schema) if v2 else dict(schema)
    inside = {**common, "metadata": {"$ref": common["metadata"]["$ref"]}}
    properties = {n: _publish_schema(s, inside, v2=v2) for n, s in result.get("properties", {}).items()}
    return {**result, "properties": {**properties, **common}}


def _publish_schema(schema: Schema, common: Made, *, v2: bool) -> Made:
    """Add the metadata of embedded resources."""
    result = dict(schema) if v2 else _spell_out_int_or_string(schema)
    if result.get("properties"):
        result["properties"] = {n: _publish_schema(s, common, v2=v2) for n, s in result["properties"].items()}
    for key, inner in (("items", items_of(schema)), ("additionalProperties", additional_of(schema))):
        if inner is not None:
            result[key] = _publish_schema(inner, common, v2=v2)
    if result.get(EMBEDDED) and not (v2 and result.get(PRESERVE)):
        known = result.get("properties", {})
        result["properties"] = {**known, **common}
        result["required"] = list(dict.fromkeys([*result.get("required", ()), "kind", "apiVersion"]))
    return result


def _v2(schema: Schema) -> Made:
    result = {key: value for key, value in schema.items() if key not in _COMBINATORS}
    if result.pop("nullable", False):
        result = _without_type(result)
    if result.get(PRESERVE):
        result = {k: v for k, v in result.items() if k not in ("items", "properties")}
        if result.get("type") == "object":
            result.pop("type")
    if result.get("type") == "array" and "items" not in result:
        result.pop("type")
    properties = result.get("properties")
    if properties:
        optional = {name for name, inner in properties.items() if inner.get("nullable")}
        result["properties"] = {name: _v2(inner) for name, inner in properties.items()}
        needed = [name for name in result.pop("required", ()) if name not in optional]
        result = {**result, "required": needed} if needed else result
    for key, inner in (("items", items_of(result)), ("additionalProperties", additional_of(result))):
        if inner is not None:
            result[key] = _v2(inner)
    return result


def _without_type(schema: Made) -> Made:
    return {k: v for k, v in schema.items() if k not in ("type", "items", "properties")}


def _spell_out_int_or_string(schema: Schema) -> Made:
    """Spell out int-or-string as anyOf, for v3 readers that do not know the extension."""
    result = dict(schema)
    if result.get(INT_OR_STRING) and "anyOf" not in result and "allOf" not in result:
        result["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return result
