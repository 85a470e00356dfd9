"""The base class of API objects, and annotations of their fields for patch and apply.

A field that is a pointer in Go is `X | None`: it is on the wire if it is set, even to zero. A field without
`omitempty` in Go (`attached: false`) is `no_omitempty` and always on the wire. All others are omitted if they
have their default.

`no_omitempty` relies on msgspec: `omit_defaults` never omits a value that a factory made, except an empty
list or dict.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar, Union, dataclass_transform, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, Raw, Struct
from msgspec import field as field

T = TypeVar("T")

Time = Annotated[str, Meta(extra={"format": "date-time"})]
MicroTime = Annotated[str, Meta(extra={"format": "micro-time"})]
Quantity = Annotated[str, Meta(extra={"format": "quantity"})]
IntOrString = Annotated[int | str, Meta(extra={"format": "int-or-string"})]
Number = int | float  # an integer stays an integer on the wire


def no_omitempty(*, factory: Callable[[], T], name: str | None = None) -> T:
    """A field that is on the wire even if it is empty."""
    made: T = field(default_factory=factory, name=name)
    return made


def merge(key: str = "", *, keys: tuple[str, ...] = (), applied: str = "", retain: bool = False) -> Meta:
    """A list that strategic merge patch merges: by `key`, or as a set of scalars.

    `keys`: the identity for server-side apply where it differs; `applied="atomic"`: apply replaces the list.
    """
    kind = applied or ("map" if key else "set")
    return Meta(extra={"merge": key, "retain": retain, "list": kind, "keys": keys or ((key,) if key else ())})


def map_list(*keys: str) -> Meta:
    """A list of objects that server-side apply identifies by `keys`; strategic merge patch replaces it."""
    return Meta(extra={"list": "map", "keys": keys})


set_list = Meta(extra={"list": "set"})
replace_on_patch = Meta(extra={"replace": True})
retain_keys = Meta(extra={"retain": True})


@dataclass_transform(frozen_default=True, field_specifiers=(field, no_omitempty))
class Object(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """An API object or a part of one. Frozen: use `msgspec.structs.replace`."""


class Field(Struct, frozen=True):
    """One property of an Object, as patches, decoding and OpenAPI need to know it."""

    attribute: str
    name: str  # on the wire
    shape: str  # string, integer, number, boolean, bytes, any, object, list, map
    format: str = ""  # date-time, micro-time, quantity, int-or-string
    item: Field | None = None  # of a list or map
    type: type[Object] | None = None  # of an object
    pointer: bool = False
    always_written: bool = False  # written even when empty
    merge_key: str | None = None  # None: not merged by strategic merge patch; "": a merged set of scalars
    retain_keys: bool = False
    is_replaced: bool = False  # strategic merge patch replaces the whole struct
    list_type: str = "atomic"
    list_keys: tuple[str, ...] = ()


_SCALARS: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    bytes: "bytes",
    Any: "any",
    Raw: "any",  # JSON that is not decoded
}


@cache
def schema(of: type[Object]) -> Mapping[str, Field]:
    """The properties of an Object type by their wire names."""
    return {
        f.encode_name: _field(f.name, f.encode_name, f.type, always=_has_no_omitempty(f))
        for f in msgspec.structs.fields(of)
    }


def _has_no_omitempty(info: msgspec.structs.FieldInfo) -> bool:
    return info.default_factory is not NODEFAULT and info.default_factory not in (list, dict, set)


def _field(attribute: str, name: str, hint: Any, *, always: bool = False) -> Field:
    notes: dict[str, Any] = {}
    while get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        for extra in extras:
            notes.update(extra.extra or {})
    if notes.get("format") != "int-or-string" and get_origin(hint) in (Union, types.UnionType):
        rest = [a for a in get_args(hint) if a is not type(None)]
        # `IntOrString | None` is flattened by typing into three members.
        alone = float if float in rest else rest[0] if len(rest) == 1 else IntOrString
        inner = _field(attribute, name, alone, always=always)
        return msgspec.structs.replace(inner, pointer=True, **_notes(notes))
    made = Field(attribute, name, *_shape(hint, notes), always_written=always)
    return msgspec.structs.replace(made, **_notes(notes))


def _notes(notes: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if "merge" in notes:
        out["merge_key"] = notes["merge"]
    if "list" in notes:
        out["list_type"] = notes["list"]
    if notes.get("keys"):
        out["list_keys"] = notes["keys"]
    if notes.get("retain"):
        out["retain_keys"] = True
    if notes.get("replace"):
        out["is_replaced"] = True
    return out


def _shape(hint: Any, notes: Mapping[str, Any]) -> tuple[str, str, Field | None, type[Object] | None]:
    kind = notes.get("format", "")
    if kind == "int-or-string":
        return "any", kind, None, None
    if hint in _SCALARS:
        return _SCALARS[hint], kind, None, None
    origin = get_origin(hint)
    if origin is tuple:
        return "list", "", _field("", "", get_args(hint)[0]), None
    if origin is not None and issubclass(origin, Mapping):
        return "map", "", _field("", "", get_args(hint)[1]), None
    if isinstance(hint, type) and issubclass(hint, Object):
        return "object", "", None, hint
    raise TypeError(f"no schema for {hint!r}")
