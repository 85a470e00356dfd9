"""Types of kinds without a Struct: defined from the rows of the published schema when they are first needed.

The rows of these kinds (`published_schema.json`, written by `tools/data_kinds.py`) have the type of each
field after `=`:

    string bool int32 int64 double bytes Time MicroTime Quantity IntOrString any core.NodeSelector
    *string      held by pointer in Go: absent and zero differ
    []string     a list; `%name`: patches merge it by this key; `&name`: apply does; `&`: it is a set
    {}string     a map
    string~      written even if it is empty
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from keyword import iskeyword
from types import MappingProxyType, ModuleType
from typing import Annotated, Any

from msgspec import Meta, defstruct

from volplane.api.meta import Resource
from volplane.api.object import (
    IntOrString,
    MicroTime,
    Object,
    Quantity,
    Time,
    field,
    map_list,
    merge,
    no_omitempty,
    set_list,
)
from volplane.api.published_schema import PublishedField, list_fields

_SCALARS: Mapping[str, Any] = {
    "string": str,
    "bool": bool,
    "int32": int,
    "int64": int,
    "double": float,
    "bytes": bytes,
    "Time": Time,
    "MicroTime": MicroTime,
    "Quantity": Quantity,
    "IntOrString": IntOrString,
    "any": Any,
}
_ZEROS: Mapping[Any, Any] = {str: "", bool: False, int: 0, float: 0.0, bytes: b"", Time: "", MicroTime: ""}
_FORM = re.compile(r"(?P<type>[^~%&]+)(?P<written>~?)(?:%(?P<merge>\w*))?(?:(?P<listed>&)(?P<keys>[\w,]*))?")
_EMPTY: Mapping[str, Any] = MappingProxyType({})


@cache
def define_resource(row: str) -> type[Resource]:
    """The type of a top-level object."""
    made: type[Resource] = _define(row, Resource)
    return made


@cache
def find_type(row: str) -> type[Object]:
    """The type of a row: its Struct, or one that is defined here."""
    group, _, name = row.partition(".")
    found: type[Object] | None = getattr(_module(group), name, None)
    return found or _define(row, Object)


@cache
def _module(group: str) -> ModuleType | None:
    try:
        return import_module(f"volplane.api.{group}")
    except ModuleNotFoundError:
        return None


def _define(row: str, base: type[Object]) -> Any:
    group, _, name = row.partition(".")
    fields = [_define_field(f) for f in list_fields(row) if f.type]
    return defstruct(name, fields, bases=(base,), module=f"volplane.api.{group}")


def _define_field(known: PublishedField) -> tuple[str, Any, Any]:
    form = _FORM.fullmatch(known.type)
    assert form is not None, known
    hint, default = _hint(form["type"])
    if notes := _merging(form):
        hint = Annotated[hint, notes]
    attribute = "".join(f"_{c.lower()}" if c.isupper() else c for c in known.name)
    attribute += "_" if iskeyword(attribute) else ""
    if form["written"] and isinstance(default, str | bool | int | float | bytes):
        return attribute, hint, no_omitempty(factory=type(default), name=known.name)
    return attribute, hint, field(default=default, name=known.name)


def _hint(text: str) -> tuple[Any, Any]:
    """The annotation of a field and its value when it is absent."""
    if text.startswith("[]"):
        return tuple[_item_hint(text[2:]), ...], ()  # type: ignore[misc]
    if text.startswith("{}"):
        return Mapping[str, _item_hint(text[2:])], _EMPTY  # type: ignore[misc]
    hint = _item_hint(text.removeprefix("*"))
    if text.startswith("*") or hint not in _ZEROS:
        return hint if hint is Any else hint | None, None
    return hint, _ZEROS[hint]


def _item_hint(text: str) -> Any:
    return _SCALARS[text] if text in _SCALARS else find_type(text)


def _merging(form: re.Match[str]) -> Meta | None:
    keys = tuple(filter(None, (form["keys"] or "").split(",")))
    if form["merge"] is not None:
        return merge(form["merge"], keys=keys, applied="" if form["listed"] else "atomic")
    if form["listed"]:
        return map_list(*keys) if keys else set_list
    return None
