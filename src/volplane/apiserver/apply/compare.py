"""The fields in which two states of a built-in object differ; compiled per type from its schema.

This runs on every write of an object whose fields have owners. Equal parts are skipped at once (Structs
compare in C), and parts that appear or disappear are walked as plain data, which contains only fields that
are set.

Which fields count as present follows Go: a struct by value always, even if empty; a scalar, list or map by
value unless it is zero; a pointer if it is set; a time or quantity by value always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import msgspec

from volplane.api import codec
from volplane.api.meta import ObjectMeta, Resource
from volplane.api.object import Field, Object, schema
from volplane.apiserver.apply import fields
from volplane.apiserver.apply.fields import SELF, Fields
from volplane.apiserver.apply.types import is_atomic, is_leaf, key_default

FieldCollector = Callable[[Any], Fields]  # all fields of a part, given as plain data
Differ = Callable[[Any, Any], tuple[Fields, Fields]]  # changed or added, and gone, between two Structs

_WHEN_SET, _WHEN_NOT_NONE, _ALWAYS = range(3)
_VALUES = frozenset({"date-time", "micro-time", "quantity", "int-or-string"})  # structs in Go
_LISTS = frozenset({("PodSpec", "containers"), ("CSINodeSpec", "drivers")})  # present even when empty
# Fields without owners: the identity of an object, and what the server sets.
UNOWNED_METADATA = frozenset({
    "name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "managedFields",
    "resourceVersion",
})  # fmt: skip


LEAF: Fields = {}  # shared: sets are never modified
_NOT_A_MEMBER = ("", False, None)  # for names that are not members


class FieldComparer(NamedTuple):
    """How to compare values of a type part by part; None stands for an atomic value."""

    collect_all: FieldCollector
    collect_new: FieldCollector  # the fields that a value has in addition to an empty one
    differ: Differ


class StructMember(NamedTuple):
    attribute: str
    name: str
    key: str
    presence: int
    comparer: FieldComparer | None


@cache
def comparer_of(of: type[Resource]) -> FieldComparer:
    """Return the comparer of a kind; its sets never contain fields without owners."""
    return _struct(partial(_members, of, root=True))


def fields_of_new_object(comparer: FieldComparer, obj: Resource) -> Fields:
    """Return the fields of a new object: like comparing with an empty one, in a third of the time."""
    return comparer.collect_new(_plain(obj))


@cache
def _of_struct(of: type[Object]) -> FieldComparer:
    return _struct(partial(_members, of))


def _members(of: type[Object], *, root: bool = False) -> list[StructMember]:
    members = []
    for name, info in sorted(schema(of).items()):
        comparer = _comparer_of_field(of.__name__, info)
        if root and info.type is ObjectMeta:
            comparer = _struct(_owned_metadata)
        members.append(
            StructMember(info.attribute, name, f"f:{name}", _presence(of.__name__, info), comparer)
        )
    return members


def _owned_metadata() -> list[StructMember]:
    return [m for m in _members(ObjectMeta) if m.name not in UNOWNED_METADATA]


def _presence(owner: str, info: Field) -> int:
    if info.pointer:
        return _WHEN_NOT_NONE
    if info.shape == "object" or info.always_written or (owner, info.name) in _LISTS:
        return _ALWAYS
    return _ALWAYS if info.format in _VALUES and info.name != "creationTimestamp" else _WHEN_SET


def _comparer_of_field(owner: str, info: Field) -> FieldComparer | None:
    if is_leaf(owner, info):
        return None
    if info.shape == "object":
        assert info.type is not None
        return _of_struct(info.type)
    assert info.item is not None
    if info.shape == "map":
        return _map(_comparer_of_field("", info.item))
    if info.list_type == "set":
        return _items(fields.value_key, fields.value_key, None)
    assert info.item.type is not None
    of = info.item.type
    typed, plain = _item_keys(of, info.list_keys)
    return _items(typed, plain, None if is_atomic(of) else _of_struct(of))


def _item_keys(of: type[Object], names: Iterable[str]) -> tuple[Callable[[Any], str], Callable[[Any], str]]:
    """Return two key functions: for an item that is a Struct, and for one that is plain data."""
    known = schema(of)
    keys = [(name, known[name].attribute, key_default(known[name])) for name in sorted(names)]
    if len(keys) == 1:
        name, attribute, default = keys[0]
        return (
            lambda item: _key((name,), (getattr(item, attribute) or default,)),
            lambda item: _key((name,), (item.get(name) or default,)),
        )
    all_names = tuple(name for name, _, _ in keys)
    return (
        lambda item: _key(all_names, tuple([getattr(item, a) or d for _, a, d in keys])),
        lambda item: _key(all_names, tuple([item.get(n) or d for n, _, d in keys])),
    )


@lru_cache(maxsize=512)  # the names of containers, ports and conditions repeat
def _key(names: tuple[str, ...], values: tuple[Any, ...]) -> str:
    return fields.item_key({n: value for n, value in zip(names, values, strict=True) if value is not None})


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=codec.decode_raw)


# Objects


def _struct(load_members: Callable[[], list[StructMember]]) -> FieldComparer:
    """The members are loaded at first use, because types may be recursive."""
    members: list[StructMember] = []
    known: dict[str, tuple[str, bool, FieldComparer | None]] = {}
    always: Fields = {SELF: LEAF}

    def load() -> None:
        members[:] = load_members()
        always.update({m.key: LEAF for m in members if m.presence == _ALWAYS})
        known.update({m.name: (m.key, m.presence == _ALWAYS, m.comparer) for m in members})

    def collect_all(data: Mapping[str, Any]) -> Fields:
        if not known:
            load()
        out = always.copy()
        for name, part in data.items():
            key, _, comparer = known[name]
            out[key] = LEAF if comparer is None else comparer.collect_all(part)
        return out if len(out) > 1 else LEAF

    def collect_new(data: Mapping[str, Any]) -> Fields:
        if not known:
            load()
        out: Fields = {}
        for name, part in data.items():
            key, stays, comparer = known.get(name, _NOT_A_MEMBER)
            if comparer is None:
                if part or not stays:
                    out[key] = LEAF
            elif not stays:
                out[key] = comparer.collect_all(part)
            elif inner := comparer.collect_new(part):
                out[key] = inner
        out.pop("", None)
        return out

    def differ(old: Any, new: Any) -> tuple[Fields, Fields]:
        if not known:
            load()
        changed: Fields = {}
        removed: Fields = {}
        for attribute, _, key, presence, comparer in members:
            was, now = getattr(old, attribute), getattr(new, attribute)
            if was is now or was == now:
                continue
            before = was or (was is not None if presence == _WHEN_NOT_NONE else presence == _ALWAYS)
            after = now or (now is not None if presence == _WHEN_NOT_NONE else presence == _ALWAYS)
            _add_difference(key, comparer, was if before else None, now if after else None, changed, removed)
        return changed, removed

    return FieldComparer(collect_all, collect_new, differ)


def _add_difference(
    key: str, comparer: FieldComparer | None, was: Any, now: Any, changed: Fields, removed: Fields
) -> None:
    """Add the difference of one part (None: not present) to `changed` or `removed`."""
    if was is None:
        if now is not None:
            changed[key] = comparer.collect_all(_plain(now)) if comparer is not None else {}
    elif now is None:
        removed[key] = comparer.collect_all(_plain(was)) if comparer is not None else {}
    elif comparer is None:
        changed[key] = {}
    else:
        more, less = comparer.differ(was, now)
        if more:
            changed[key] = more
        if less:
            removed[key] = less


# Maps and lists


def _map(comparer: FieldComparer | None) -> FieldComparer:
    def collect_all(data: Mapping[str, Any]) -> Fields:
        if not data:
            return LEAF
        out: Fields = {SELF: LEAF}
        for name in sorted(data):
            out[f"f:{name}"] = LEAF if comparer is None else comparer.collect_all(data[name])
        return out

    def differ(old: Any, new: Any) -> tuple[Fields, Fields]:
        changed: Fields = {}
        removed: Fields = {}
        for name in sorted(old.keys() | new.keys()):
            was, now = old.get(name), new.get(name)
            if was != now:
                _add_difference(f"f:{name}", comparer, was, now, changed, removed)
        return changed, removed

    return FieldComparer(collect_all, lambda data: _without_self(collect_all(data)), differ)


def _items(
    typed: Callable[[Any], str], plain: Callable[[Any], str], comparer: FieldComparer | None
) -> FieldComparer:
    """Compare lists whose items have keys. Duplicate keys are compared as one atomic value."""

    def collect_all(data: Sequence[Any]) -> Fields:
        if not data:
            return LEAF
        out: Fields = {SELF: LEAF}
        for item in data:
            key = plain(item)
            out[key] = LEAF if comparer is None or key in out else comparer.collect_all(item)
        return out

    def differ(old: Any, new: Any) -> tuple[Fields, Fields]:
        changed: Fields = {}
        removed: Fields = {}
        before, after = _index_items(typed, old), _index_items(typed, new)
        for key in sorted(before.keys() | after.keys()):
            was, now = before.get(key, ()), after.get(key, ())
            if was == now:
                continue
            if len(was) > 1 and len(now) > 1:
                changed[key] = {}
                continue
            one, other = was[0] if len(was) == 1 else None, now[0] if len(now) == 1 else None
            _add_difference(key, comparer, one, other, changed, removed)
            if len(was) > 1:
                removed[key] = {}
            elif len(now) > 1:
                changed[key] = {}
        return changed, removed

    return FieldComparer(collect_all, lambda data: _without_self(collect_all(data)), differ)


def _without_self(found: Fields) -> Fields:
    return {key: below for key, below in found.items() if key != SELF}


def _index_items(key_of: Callable[[Any], str], items: Sequence[Any]) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {}
    for item in items:
        out.setdefault(key_of(item), []).append(item)
    return out
