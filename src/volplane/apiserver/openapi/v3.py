"""OpenAPI v3: one document per group version, with the operations that clients look up.

kubectl reads the `patch` operations (which parameters and patch types a kind takes) and the schemas
(explain).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from volplane.api.kinds import Kind
from volplane.api.meta import DeleteOptions, Status
from volplane.apiserver import patch
from volplane.apiserver.openapi.schemas import (
    INT_OR_STRING,
    PATCH,
    Custom,
    definitions,
    gvk,
    list_name,
    model_name,
    name_of,
)

JSON = "application/json"
YAML = "application/yaml"
_PREFIX = "#/components/schemas/"
_INT_OR_STRING = {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}


def document(served: Iterable[Kind], custom: Custom) -> dict[str, Any]:
    kinds = list(served)
    schemas = {**definitions(kinds, custom), INT_OR_STRING: _INT_OR_STRING}
    paths: dict[str, Any] = {}
    for kind in kinds:
        paths |= _paths(kind)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.35.8"},
        "paths": paths,
        "components": {"schemas": {name: _schema(body) for name, body in schemas.items()}},
    }


def _schema(plain: dict[str, Any]) -> dict[str, Any]:
    """In v3 a $ref has no siblings: a description goes around it, with allOf."""
    body: dict[str, Any] = prefix_refs(plain, _PREFIX)
    properties = body.get("properties")
    if not properties:
        return body
    return {**body, "properties": {name: _wrap_ref(value) for name, value in properties.items()}}


def _wrap_ref(value: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in value or "description" not in value:
        return value
    rest = {k: v for k, v in value.items() if k != "$ref"}
    return {**rest, "allOf": [{"$ref": value["$ref"]}]}


def prefix_refs(value: Any, prefix: str) -> Any:
    """Add the prefix of the document's version to all references."""
    if isinstance(value, Mapping):
        # The schema of JSONSchemaProps has a property named "$ref", which is no reference.
        return {
            k: prefix + v if k == "$ref" and isinstance(v, str) else prefix_refs(v, prefix)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [prefix_refs(v, prefix) for v in value]
    return value


def item_path(kind: Kind) -> str:
    return f"{collection_path(kind)}/{{name}}"


def collection_path(kind: Kind) -> str:
    place = "/namespaces/{namespace}" if kind.namespaced else ""
    return f"{kind.base_path}{place}/{kind.plural}"


def _paths(kind: Kind) -> dict[str, Any]:
    everything = {"list": ("get", _read(kind, "list", list_name(kind)))}
    collection = everything | {
        "create": ("post", _write(kind, "post")),
        "deletecollection": ("delete", _delete(kind, "deletecollection")),
    }
    item = {
        "get": ("get", _read(kind, "get", model_name(kind))),
        "update": ("put", _write(kind, "put")),
        "patch": ("patch", _patch(kind)),
        "delete": ("delete", _delete(kind, "delete")),
    }
    paths = {
        collection_path(kind): _operations(kind, collection),
        item_path(kind): _operations(kind, item, named=True),
    }
    if kind.namespaced and "list" in kind.verbs:
        everywhere = f"{kind.base_path}/{kind.plural}"
        paths[everywhere] = {"get": _read(kind, "list", list_name(kind))}
    for below in kind.subresources:
        if not below.kind and "patch" in below.verbs:
            part = {"get": item["get"], "update": item["update"], "patch": item["patch"]}
            paths[f"{item_path(kind)}/{below.name}"] = _operations(kind, part, named=True)
    return {path: operations for path, operations in paths.items() if operations}


def _operations(kind: Kind, offered: Mapping[str, tuple[str, Any]], *, named: bool = False) -> dict[str, Any]:
    made = {method: body for verb, (method, body) in offered.items() if verb in kind.verbs}
    if not made:
        return {}
    parameters = [_in_path("name")] if named else []
    parameters += [_in_path("namespace")] if kind.namespaced else []
    return {**made, "parameters": parameters} if parameters else made


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query(*names: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "schema": dict(_QUERY.get(name, {"type": "string"}))} for name in names
    ]


_QUERY: Mapping[str, Mapping[str, str]] = {
    "limit": {"type": "integer"},
    "timeoutSeconds": {"type": "integer"},
    "gracePeriodSeconds": {"type": "integer"},
    "watch": {"type": "boolean"},
    "allowWatchBookmarks": {"type": "boolean"},
    "sendInitialEvents": {"type": "boolean"},
    "force": {"type": "boolean"},
    "orphanDependents": {"type": "boolean"},
}
_WRITE_QUERY = ("dryRun", "fieldManager", "fieldValidation")
_LIST_QUERY = (
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
)


def _operation(
    kind: Kind, action: str, answer: str, query: Iterable[str], code: str = "200"
) -> dict[str, Any]:
    body = {"schema": {"$ref": f"{_PREFIX}{answer}"}}
    parameters = _query(*query)
    return {
        "operationId": operation_id(kind, action),
        **({"parameters": parameters} if parameters else {}),
        "responses": {code: {"description": "OK", "content": {JSON: body, YAML: body}}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": gvk(kind),
    }


def operation_id(kind: Kind, action: str) -> str:
    group = "".join(part.capitalize() for part in (kind.group.partition(".")[0] or "core").split("-"))
    place = "Namespaced" if kind.namespaced else ""
    return f"{action}{group}{kind.version.capitalize()}{place}{kind.kind}"


def _read(kind: Kind, action: str, answer: str) -> dict[str, Any]:
    return _operation(kind, action, answer, _LIST_QUERY if action == "list" else ())


def _write(kind: Kind, action: str) -> dict[str, Any]:
    made = _operation(kind, action, model_name(kind), _WRITE_QUERY, "201" if action == "post" else "200")
    body = {"schema": {"$ref": f"{_PREFIX}{model_name(kind)}"}}
    return {**made, "requestBody": {"required": True, "content": {JSON: body, YAML: body}}}


def _patch(kind: Kind) -> dict[str, Any]:
    made = _operation(kind, "patch", model_name(kind), (*_WRITE_QUERY, "force"))
    body = {"schema": {"$ref": f"{_PREFIX}{PATCH}"}}
    content = {media: body for media in patch.accepted_media_types(kind)}
    return {**made, "requestBody": {"required": True, "content": content}}


def _delete(kind: Kind, action: str) -> dict[str, Any]:
    query = ("dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy")
    made = _operation(kind, action, name_of(Status), query)
    body = {"schema": {"$ref": f"{_PREFIX}{name_of(DeleteOptions)}"}}
    return {**made, "requestBody": {"content": {JSON: body}}}
