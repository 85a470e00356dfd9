"""Schemas of the API's types, derived from the Structs: what OpenAPI v2 and v3 have in common.

A definition is plain data in the common subset of both versions. References are written as `{"$ref": name}`
with the bare name; `v2` and `v3` add the prefix of their version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from volplane.api import kinds
from volplane.api.kinds import Kind
from volplane.api.meta import DeleteOptions, ListMeta, ObjectMeta, Resource, Status
from volplane.api.object import Field, Object, schema
from volplane.api.published_schema import integer_width, message_name, package_of, required_fields
from volplane.apiserver.openapi.descriptions import describe_field, describe_type

META = package_of("meta")
PATCH = f"{META}.Patch"
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"

_FORMATS = {
    "quantity": QUANTITY,
    "date-time": f"{META}.Time",
    "micro-time": f"{META}.MicroTime",
    "int-or-string": INT_OR_STRING,
}
_SCALARS: Mapping[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "boolean": {"type": "boolean"},
    "number": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
    "any": {"type": "object"},
}
# Types that are not objects on the wire.
LEAVES: Mapping[str, dict[str, Any]] = {
    QUANTITY: {"type": "string"},
    INT_OR_STRING: {"type": "string", "format": "int-or-string"},
    f"{META}.Time": {"type": "string", "format": "date-time"},
    f"{META}.MicroTime": {"type": "string", "format": "date-time"},
    PATCH: {"type": "object"},
}


Custom = Callable[[Kind], Mapping[str, Any]]  # the published schema of a custom kind


def package(of: type[Object]) -> str:
    """The prefix of a type's name, from the file of its group."""
    return package_of(message_name(of).partition(".")[0])


def name_of(of: type[Object]) -> str:
    return f"{package(of)}.{of.__name__}"


def list_name(kind: Kind) -> str:
    return (
        f"{name_of(kind.type)}List"
        if kind.type is not None
        else f"{_reversed_group_version(kind)}.{kind.list_kind}"
    )


def model_name(kind: Kind) -> str:
    """The definition of a kind; a custom one is named after its group, version and kind."""
    return name_of(kind.type) if kind.type is not None else f"{_reversed_group_version(kind)}.{kind.kind}"


def _reversed_group_version(kind: Kind) -> str:
    return f"{'.'.join(reversed(kind.group.split('.')))}.{kind.version}"


def gvk(kind: Kind) -> dict[str, str]:
    return {"group": kind.group, "kind": kind.kind, "version": kind.version}


def definitions(served: Iterable[Kind], custom: Custom) -> dict[str, dict[str, Any]]:
    """The definitions of these kinds, their lists, and all types that they use."""
    found: dict[str, dict[str, Any]] = {}
    for kind in served:
        if kind.type is not None:
            _collect(kind.type, found)
        else:
            found[model_name(kind)] = {**custom(kind), "x-kubernetes-group-version-kind": [gvk(kind)]}
            _collect(ObjectMeta, found)
        if "list" in kind.verbs:
            found[list_name(kind)] = _list(kind)
    for needed in (ListMeta, DeleteOptions, Status):
        _collect(needed, found)
    return dict(sorted({**found, **LEAVES}.items()))


def _collect(of: type[Object], found: dict[str, dict[str, Any]]) -> None:
    name = name_of(of)
    if name in found:
        return
    found[name] = definition(of)
    for inner in _inner_types(of):
        _collect(inner, found)


def _inner_types(of: type[Object]) -> Iterator[type[Object]]:
    for field in schema(of).values():
        while field.item is not None:
            field = field.item
        if field.type is not None:
            yield field.type


_TYPE_META = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
_WITH_TYPE_META = (DeleteOptions, Status)


@cache
def definition(of: type[Object]) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object"}
    if text := describe_type(_type_key(of)):
        made["description"] = text
    top = issubclass(of, Resource) or of in _WITH_TYPE_META
    properties = {name: _property(field, of) for name, field in schema(of).items()}
    together = sorted({**(_TYPE_META if top else {}), **properties}.items())
    if together:  # Go writes no empty ones
        made["properties"] = {name: _add_description(_type_key(of), name, body) for name, body in together}
    if needed := required_fields(of):
        made["required"] = needed
    if getattr(of, "atomic", False):
        made["x-kubernetes-map-type"] = "atomic"
    kind = kinds.find(of)
    if kind is not None:
        made["x-kubernetes-group-version-kind"] = [gvk(kind)]
    elif of in _WITH_TYPE_META:
        made["x-kubernetes-group-version-kind"] = [{"group": "", "kind": of.__name__, "version": "v1"}]
    return made


def _type_key(of: type[Object]) -> str:
    """The key of a type in `descriptions.yaml`."""
    return f"{package(of).split('.')[-2]}.{of.__name__}"


def _add_description(row: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
    text = describe_field(row, name)
    return {"description": text, **body} if text else body


def _property(field: Field, owner: type[Object]) -> dict[str, Any]:
    made = _shape(field, owner, field.name)
    if field.shape == "list":
        # Strategic merge patch and apply merge lists in different ways: both are published.
        made["x-kubernetes-list-type"] = field.list_type
        if field.list_type == "map":
            made["x-kubernetes-list-map-keys"] = list(field.list_keys)
    if strategy := _strategy(field):
        made["x-kubernetes-patch-strategy"] = strategy
        if field.merge_key:
            made["x-kubernetes-patch-merge-key"] = field.merge_key
    return made


def _strategy(field: Field) -> str:
    words = [
        ("merge", field.merge_key is not None),
        ("replace", field.is_replaced),
        ("retainKeys", field.retain_keys),
    ]
    return ",".join(word for word, holds in words if holds)


def _shape(field: Field, owner: type[Object], name: str) -> dict[str, Any]:
    if field.format in _FORMATS:
        return {"$ref": _FORMATS[field.format]}
    if field.type is not None:
        return {"$ref": name_of(field.type)}
    if field.shape == "integer":
        return {"type": "integer", "format": integer_width(owner, name)}
    if field.item is not None:
        inner = _shape(field.item, owner, name)
        if field.shape == "list":
            return {"type": "array", "items": inner}
        return {"type": "object", "additionalProperties": inner}
    return dict(_SCALARS[field.shape])


def _list(kind: Kind) -> dict[str, Any]:
    items = {"type": "array", "items": {"$ref": model_name(kind)}}
    return {
        "type": "object",
        "properties": {**_TYPE_META, "items": items, "metadata": {"$ref": name_of(ListMeta)}},
        "required": ["items"],
        "x-kubernetes-group-version-kind": [{**gvk(kind), "kind": kind.list_kind}],
    }
