"""The schemas of a definition as plain JSON, with their paths for error messages.

`items` and `additionalProperties` are unions that decoding leaves untyped. They are cleaned here: unknown
keys and nulls are removed, wrong types are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import structs

from volplane.api.apiextensions import CustomResourceDefinition as Definition
from volplane.api.apiextensions import CustomResourceDefinitionVersion as Version
from volplane.api.apiextensions import CustomResourceValidation, JSONSchemaProps
from volplane.api.errors import BadRequest
from volplane.apiserver.crd.schema import Schema
from volplane.apiserver.decode import Undecodable, convert_struct

MAX_DEPTH = 64  # schemas inside each other
_UNIONS = ("items", "additionalProperties", "additionalItems")
_NESTED = ("not",)
_LISTS = ("allOf", "anyOf", "oneOf")
_MAPS = ("properties", "patternProperties", "definitions")


def schema_of(version: Version) -> Schema | None:
    """Return the schema of a version as plain JSON."""
    props = version.schema.open_apiv3_schema if version.schema is not None else None
    return None if props is None else msgspec.json.decode(msgspec.json.encode(props))


def schemas_with_paths(definition: Definition) -> Iterator[tuple[str, Version, Schema | None]]:
    """Yield each schema with its path in messages; a schema that all versions share is yielded once."""
    versions = definition.spec.versions
    if versions and all(v.schema is not None and v.schema == versions[0].schema for v in versions):
        yield "spec.validation", versions[0], schema_of(versions[0])
        return
    for at, version in enumerate(versions):
        yield f"spec.versions[{at}].schema", version, schema_of(version)


def is_same_in_all_versions(definition: Definition, field: str) -> bool:
    """Return whether the field is set and the same in all versions; messages then use the path `spec`."""
    values = [getattr(v, field) for v in definition.spec.versions]
    return bool(values) and all(value and value == values[0] for value in values)


def normalize_schemas(definition: Definition) -> Definition:
    """Return the definition with cleaned schemas. Raise BadRequest."""
    if any(_depth(schema_of(version)) > MAX_DEPTH for version in definition.spec.versions):
        raise BadRequest("exceeded max depth")
    versions = tuple(_normal(version) for version in definition.spec.versions)
    if versions == definition.spec.versions:
        return definition
    return structs.replace(definition, spec=structs.replace(definition.spec, versions=versions))


def _depth(schema: Schema | None) -> int:
    """Return the nesting depth; computed level by level, so that deep schemas do not exhaust the stack."""
    level, depth = [schema] if schema is not None else [], 0
    while level and depth <= MAX_DEPTH:
        level = [inner for outer in level for inner in subschemas(outer)]
        depth += 1
    return depth


def _normal(version: Version) -> Version:
    schema = schema_of(version)
    if schema is None:
        return version
    try:
        props, _ = convert_struct(JSONSchemaProps, _clean(dict(schema)))
    except Undecodable as error:
        kind = "CustomResourceDefinition"
        raise BadRequest(f'{kind} in version "v1" cannot be handled as a {kind}: {error}') from error
    return structs.replace(version, schema=CustomResourceValidation(open_apiv3_schema=props))


def _clean(schema: dict[str, Any]) -> dict[str, Any]:
    """Decode the schemas in unions, at every level."""
    for key in ("maximum", "minimum", "multipleOf"):
        if isinstance(limit := schema.get(key), float) and limit.is_integer():
            schema = {**schema, key: int(limit)}  # protobuf carries them as floats
    return map_schemas(schema, _clean, _clean_typed)


def _clean_typed(schema: dict[str, Any]) -> dict[str, Any]:
    props, _ = convert_struct(JSONSchemaProps, _clean(schema))
    result: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(props))
    return result


Edit = Callable[[dict[str, Any]], dict[str, Any]]


def map_schemas(schema: dict[str, Any], edit: Edit, edit_union: Edit | None = None) -> dict[str, Any]:
    """Return a copy in which every direct subschema is edited."""
    of_union = edit_union or edit
    result = dict(schema)
    for key in _UNIONS:
        if isinstance(result.get(key), dict):
            result[key] = of_union(result[key])
    for key in _NESTED:
        if isinstance(result.get(key), dict):
            result[key] = edit(result[key])
    for key in _LISTS:
        if isinstance(result.get(key), list):
            result[key] = [edit(inner) if isinstance(inner, dict) else inner for inner in result[key]]
    for key in _MAPS:
        if isinstance(result.get(key), dict):
            result[key] = {n: edit(s) if isinstance(s, dict) else s for n, s in result[key].items()}
    return result


def subschemas(schema: Schema) -> Iterator[Schema]:
    """Yield the direct subschemas."""
    found: list[Any] = [schema.get(key) for key in (*_UNIONS, *_NESTED)]
    for key in _LISTS:
        found += schema.get(key) or ()
    for key in _MAPS:
        found += (schema.get(key) or {}).values()
    return (inner for inner in found if isinstance(inner, dict))


def walk_schemas(schema: Schema | None) -> Iterator[Schema]:
    """Yield a schema and all schemas inside it."""
    if schema is not None:
        yield schema
        for inner in subschemas(schema):
            yield from walk_schemas(inner)
