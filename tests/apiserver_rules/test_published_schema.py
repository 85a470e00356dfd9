"""Our Structs against the published schema of v1.35: the same properties, merges, types, required."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tools import published_schema
from volplane.api import kinds
from volplane.api.meta import DeleteOptions, Resource
from volplane.api.object import Field, Object, schema
from volplane.apiserver.openapi.schemas import definition, name_of

FILE = "kubernetes-json-schema/v1.35.0-local/_definitions.json"


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    text = (Path(kubernetes_validate.__file__).parent / FILE).read_text()
    found: dict[str, Any] = json.loads(text)["$defs"]
    return found


def every_type() -> Iterator[type[Object]]:
    seen: set[type[Object]] = set()
    todo: list[type[Object]] = [k.type for k in (*kinds.ALL, *kinds.SUBRESOURCE_KINDS) if k.type is not None]
    while todo:
        of = todo.pop()
        if of in seen:
            continue
        seen.add(of)
        yield of
        for field in schema(of).values():
            inner: Field | None = field
            while inner is not None:
                if inner.type is not None:
                    todo.append(inner.type)
                inner = inner.item


TYPES = sorted(every_type(), key=name_of)


def properties(published: dict[str, Any], of: type[Object]) -> dict[str, Any]:
    assert name_of(of) in published
    found = dict(published[name_of(of)].get("properties", {}))
    if issubclass(of, (Resource, DeleteOptions)):
        found.pop("kind", None)
        found.pop("apiVersion", None)
    return found


def test_the_marks_of_fields_are_the_published_ones(published: dict[str, Any]) -> None:
    rows = json.loads(published_schema.FILE.read_text())
    assert published_schema.renew(rows, published) == rows


def test_every_type_is_published(published: dict[str, Any]) -> None:
    assert len(TYPES) > 300
    assert [name_of(t) for t in TYPES if name_of(t) not in published] == []


def test_every_property_is_known_to_us_and_no_other(published: dict[str, Any]) -> None:
    differing = {
        name_of(of): sorted(set(schema(of)) ^ set(properties(published, of)))
        for of in TYPES
        if set(schema(of)) != set(properties(published, of))
    }
    assert differing == {}


EXTENSIONS = (
    "x-kubernetes-patch-strategy",
    "x-kubernetes-patch-merge-key",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)


def extensions(of: dict[str, Any]) -> dict[str, Any]:
    found = {name: of[name] for name in EXTENSIONS if name in of}
    if "x-kubernetes-patch-strategy" in found:
        found["x-kubernetes-patch-strategy"] = set(found["x-kubernetes-patch-strategy"].split(","))
    if found.get("x-kubernetes-list-type") == "atomic":
        del found["x-kubernetes-list-type"]  # the default, not always written
    return found


def test_lists_merge_as_published(published: dict[str, Any]) -> None:
    differing = {}
    for of in TYPES:
        ours = definition(of).get("properties", {})
        for name, theirs in properties(published, of).items():
            if extensions(ours[name]) != extensions(theirs):
                differing[f"{name_of(of)}.{name}"] = (extensions(ours[name]), extensions(theirs))
    assert differing == {}


def shape_of(theirs: dict[str, Any]) -> tuple[str, str]:
    kind = theirs.get("type", "")
    word = next((t for t in kind if t != "null"), "") if isinstance(kind, list) else kind
    return (theirs.get("$ref", "").removeprefix("#/$defs/") or word), theirs.get("format", "")


def test_types_and_formats_are_the_published_ones(published: dict[str, Any]) -> None:
    differing = {}
    for of in TYPES:
        ours = definition(of).get("properties", {})
        for name, theirs in properties(published, of).items():
            wanted = shape_of(theirs)
            if wanted[0] == "" or _is_free(wanted[0]):
                continue  # free-form JSON
            if shape_of(ours[name]) != wanted:
                differing[f"{name_of(of)}.{name}"] = (shape_of(ours[name]), wanted)
    assert differing == {}


def _is_free(name: str) -> bool:
    return (
        name.endswith((".RawExtension", ".FieldsV1", ".JSON", ".JSONSchemaPropsOrArray"))
        or ".JSONSchemaProps" in name
    )


def test_required_properties_are_the_published_ones(published: dict[str, Any]) -> None:
    differing = {
        name_of(of): (definition(of).get("required", []), sorted(published[name_of(of)].get("required", ())))
        for of in TYPES
        if definition(of).get("required", []) != sorted(published[name_of(of)].get("required", ()))
    }
    assert differing == {}
