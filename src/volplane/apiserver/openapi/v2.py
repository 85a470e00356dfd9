"""OpenAPI v2 for kubectl up to 1.28: all definitions, and of the operations only `patch`, which it reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from volplane.api.kinds import Kind
from volplane.apiserver import patch
from volplane.apiserver.openapi.schemas import Custom, definitions, gvk
from volplane.apiserver.openapi.v3 import item_path, operation_id, prefix_refs

_PREFIX = "#/definitions/"


def document(served: Iterable[Kind], custom: Custom) -> dict[str, Any]:
    kinds = list(served)
    return {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1.35.8"},
        "paths": {item_path(k): {"patch": _patch(k)} for k in kinds if "patch" in k.verbs},
        "definitions": {
            name: prefix_refs(body, _PREFIX) for name, body in definitions(kinds, custom).items()
        },
    }


def _patch(kind: Kind) -> dict[str, Any]:
    names = ("dryRun", "fieldManager", "fieldValidation", "force")
    return {
        "operationId": operation_id(kind, "patch"),
        "consumes": list(patch.accepted_media_types(kind)),
        "parameters": [{"in": "query", "name": name, "type": "string"} for name in names],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-group-version-kind": gvk(kind),
    }
