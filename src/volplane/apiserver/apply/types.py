"""The types that apply works with: which parts of a value have owners of their own, and what identifies
items.

They are built from the Structs of built-in kinds or from the schema of a custom resource. A value is a leaf
(scalars, atomic lists and maps), an object with named fields, a map, a list whose items have keys, or a set
of scalars. Without a schema, maps are merged and lists are atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from volplane.api.meta import ObjectMeta
from volplane.api.object import Field, Object, schema

LEAF, FIELDS, MAP, ITEMS, SET = "leaf", "fields", "map", "items", "set"


def _atomic() -> ApplyType:
    return ATOMIC


class ApplyType(Struct):
    """The type of a value. Inner types come from functions, because schemas may be recursive."""

    form: str
    field: Callable[[str], ApplyType | None] = lambda name: None  # FIELDS: a named field
    item: Callable[[], ApplyType] = _atomic  # MAP, ITEMS: the type of the values
    keys: Mapping[str, Any] = {}  # ITEMS: the fields that identify an item, with their defaults (None: none)
    open: bool = False  # FIELDS: undeclared fields are allowed

    def inner(self, key: str) -> ApplyType:
        """Return the type of the part that a key of a field set names."""
        if self.form == FIELDS:
            return self.field(key[2:]) or (FREE if self.open else ATOMIC)
        return self.item() if self.form in (MAP, ITEMS) else ATOMIC

    def declares(self, key: str) -> bool:
        """Return whether the key names a declared field, not a map entry or list item."""
        return self.form == FIELDS and self.field(key[2:]) is not None


ATOMIC = ApplyType(LEAF)
_SET = ApplyType(SET)


def _free() -> ApplyType:
    return FREE


FREE = ApplyType(MAP, item=_free)  # without schema; applies only if the value is a map

# Exceptions in the published schema: atomic maps, and an object that is merged although its type is atomic
# elsewhere.
ATOMIC_MAPS = frozenset(
    {
        ("PodSpec", "nodeSelector"),
        ("ReplicationControllerSpec", "selector"),
        ("Scheduling", "nodeSelector"),
        ("ServiceSpec", "selector"),
    }
)
MERGED_OBJECTS = frozenset({("PersistentVolumeSpec", "claimRef")})
_KEY_DEFAULTS = {"protocol": "TCP"}


def is_leaf(owner: str, info: Field) -> bool:
    """Return whether the field is atomic."""
    match info.shape:
        case "list":
            return info.list_type == "atomic"
        case "map":
            return (owner, info.name) in ATOMIC_MAPS
        case "object":
            return is_atomic(info.type) and (owner, info.name) not in MERGED_OBJECTS
    return True


def is_atomic(of: type[Object] | None) -> bool:
    """Return whether objects of this type are atomic."""
    return bool(getattr(of, "atomic", False))


def key_default(info: Field) -> Any:
    """Return the value of a key that an item omits; None: the key is left out of the item's identity."""
    if info.name in _KEY_DEFAULTS:
        return _KEY_DEFAULTS[info.name]
    if info.shape == "string":
        return "" if info.always_written or info.name == "name" else None
    return 0 if info.always_written else None


@cache
def of_struct(of: type[Object]) -> ApplyType:
    known = schema(of)

    def look(name: str) -> ApplyType | None:
        info = known.get(name)
        return None if info is None else _of_field(of.__name__, info)

    return ApplyType(FIELDS, field=cache(look))


def _of_field(owner: str, info: Field) -> ApplyType:
    if is_leaf(owner, info):
        return ATOMIC
    match info.shape:
        case "object":
            assert info.type is not None
            return of_struct(info.type)
        case "map":
            assert info.item is not None
            return ApplyType(MAP, item=_constant(_of_field("", info.item)))
    if info.list_type == "set":
        return _SET
    assert info.item is not None
    assert info.item.type is not None
    inner = info.item.type
    keys = {name: key_default(schema(inner)[name]) for name in sorted(info.list_keys)}
    return ApplyType(
        ITEMS, item=_constant(ATOMIC) if is_atomic(inner) else lambda: of_struct(inner), keys=keys
    )


def _constant(type: ApplyType) -> Callable[[], ApplyType]:
    return lambda: type


# Custom resources


def of_openapi(given: Mapping[str, Any]) -> ApplyType:
    """Build the type from the structural schema of a custom resource's version."""
    kind = given.get("type")
    if given.get("x-kubernetes-int-or-string"):
        return ATOMIC
    if kind == "array":
        return _of_array(given)
    if kind == "object" or "properties" in given or given.get("x-kubernetes-preserve-unknown-fields"):
        return _of_object(given)
    return ATOMIC


def _of_object(given: Mapping[str, Any]) -> ApplyType:
    if given.get("x-kubernetes-map-type") == "atomic":
        return ATOMIC
    properties: Mapping[str, Any] = given.get("properties") or {}
    extra = given.get("additionalProperties")
    loose = bool(given.get("x-kubernetes-preserve-unknown-fields"))
    if not properties:
        if isinstance(extra, Mapping):
            return ApplyType(MAP, item=cache(lambda: of_openapi(extra)))
        return FREE if loose or extra is True else ApplyType(FIELDS)

    def look(name: str) -> ApplyType | None:
        inner = properties.get(name)
        return None if inner is None else of_openapi(inner)

    return ApplyType(FIELDS, field=cache(look), open=loose)


def _of_array(given: Mapping[str, Any]) -> ApplyType:
    inner = given.get("items") or {}
    match given.get("x-kubernetes-list-type"):
        case "set":
            return _SET
        case "map":
            properties = inner.get("properties") or {}
            names = sorted(given.get("x-kubernetes-list-map-keys") or ())
            keys = {name: (properties.get(name) or {}).get("default") for name in names}
            return ApplyType(ITEMS, item=cache(lambda: of_openapi(inner)), keys=keys)
    return ATOMIC


def of_custom(given: Mapping[str, Any] | None) -> ApplyType:
    """Build the type of a custom resource: its schema (or none) and the metadata that all objects have."""
    inner = FREE if given is None else of_openapi(given)

    def look(name: str) -> ApplyType | None:
        if name == "metadata":
            return of_struct(ObjectMeta)
        if name in ("apiVersion", "kind"):
            return ATOMIC
        return inner.field(name) if inner.form == FIELDS else FREE

    return ApplyType(FIELDS, field=cache(look), open=inner.form != FIELDS or inner.open)
