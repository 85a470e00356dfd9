"""Two states of a built-in object, and the fields in which they differ; compiled per type from its schema.

This runs with every write of an object whose fields have owners, so parts that are equal are left at once
(Structs compare in C) and only what differs is taken apart.

The subtle thing is what counts as being there: an object that Go holds by value is always there, if empty; a
scalar, list or map by value is there unless it is zero; a pointer when it is set; a time or an amount by
value always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from volplane.api.meta import ObjectMeta, Resource
from volplane.api.object import Field, Object, schema
from volplane.apiserver.apply import fields
from volplane.apiserver.apply.fields import SELF, Fields
from volplane.apiserver.apply.types import is_leaf, is_whole, key_default

Whole = Callable[[Any], Fields]  # all there is below a part that appears or vanishes
Differ = Callable[[Any, Any], tuple[Fields, Fields]]  # changed or added, and gone

_WHEN_SET, _WHEN_NOT_NONE, _ALWAYS = range(3)
_VALUES = frozenset({"date-time", "micro-time", "quantity", "int-or-string"})  # structs in Go
_LISTS = frozenset({("PodSpec", "containers"), ("CSINodeSpec", "drivers")})  # there even when empty
# Never owned by anybody: who an object is, and what the server writes into it.
UNOWNED = frozenset(
    {
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "generation",
        "managedFields",
        "resourceVersion",
    }
)


class Ways(NamedTuple):
    """How to take a value apart; None: it is owned whole."""

    whole: Whole
    differ: Differ


class Member(NamedTuple):
    attribute: str
    key: str
    there: int
    ways: Ways | None


@cache
def of_type(of: type[Resource]) -> Ways:
    """The ways of a whole object; the result of `differ` never names what nobody can own."""
    return _struct(_members(of, root=True))


@cache
def _of_struct(of: type[Object]) -> Ways:
    members: list[Member] = []
    made = _struct(members)
    _COMPILED[of] = made
    members += _members(of)
    return made


_COMPILED: dict[type[Object], Ways] = {}  # also those whose members are still being compiled


def _inner(of: type[Object]) -> Ways:
    return _COMPILED.get(of) or _of_struct(of)


def _members(of: type[Object], *, root: bool = False) -> list[Member]:
    made = []
    for name, info in sorted(schema(of).items()):
        ways = _ways(of.__name__, info)
        if root and info.type is ObjectMeta:
            owned = [m for m in _members(ObjectMeta) if m.key[2:] not in UNOWNED]
            ways = _struct(owned)
        made.append(Member(info.attribute, f"f:{name}", _there(of.__name__, info), ways))
    return made


def _there(owner: str, info: Field) -> int:
    if info.pointer:
        return _WHEN_NOT_NONE
    if info.shape == "object" or info.always or (owner, info.name) in _LISTS:
        return _ALWAYS
    return _ALWAYS if info.format in _VALUES and info.name != "creationTimestamp" else _WHEN_SET


def _ways(owner: str, info: Field) -> Ways | None:
    if is_leaf(owner, info):
        return None
    if info.shape == "object":
        assert info.type is not None
        return _inner(info.type)
    assert info.item is not None
    if info.shape == "map":
        return _map(_ways("", info.item))
    if info.list_type == "set":
        return _items(lambda item: fields.value(item), None)
    assert info.item.type is not None
    of = info.item.type
    return _items(_item_key(of, info.list_keys), None if is_whole(of) else _inner(of))


def _item_key(of: type[Object], names: Iterable[str]) -> Callable[[Any], str]:
    known = schema(of)
    keys = [(name, known[name].attribute, key_default(known[name])) for name in sorted(names)]

    def key(item: Any) -> str:
        found = {name: getattr(item, attribute) or default for name, attribute, default in keys}
        return fields.item({name: value for name, value in found.items() if value is not None})

    return key


# Objects


def _struct(members: Sequence[Member]) -> Ways:
    def whole(value: Any) -> Fields:
        out: Fields = {}
        for attribute, key, there, ways in members:
            part = getattr(value, attribute)
            if part or (part is not None if there == _WHEN_NOT_NONE else there == _ALWAYS):
                out[key] = ways.whole(part) if ways is not None else {}
        return {SELF: {}, **out} if out else out

    def differ(old: Any, new: Any) -> tuple[Fields, Fields]:
        changed: Fields = {}
        removed: Fields = {}
        for attribute, key, there, ways in members:
            was, now = getattr(old, attribute), getattr(new, attribute)
            if was is now or was == now:
                continue
            before = bool(was) or (was is not None if there == _WHEN_NOT_NONE else there == _ALWAYS)
            after = bool(now) or (now is not None if there == _WHEN_NOT_NONE else there == _ALWAYS)
            _sort_out(key, ways, was if before else None, now if after else None, changed, removed)
        return changed, removed

    return Ways(whole, differ)


def _sort_out(key: str, ways: Ways | None, was: Any, now: Any, changed: Fields, removed: Fields) -> None:
    """Put the difference of one part (None: not there) where it belongs."""
    if was is None:
        if now is not None:
            changed[key] = ways.whole(now) if ways is not None else {}
    elif now is None:
        removed[key] = ways.whole(was) if ways is not None else {}
    elif ways is None:
        changed[key] = {}
    else:
        more, less = ways.differ(was, now)
        if more:
            changed[key] = more
        if less:
            removed[key] = less


# Maps and lists


def _map(ways: Ways | None) -> Ways:
    def whole(value: Any) -> Fields:
        if not value:
            return {}
        inner = {f"f:{k}": ways.whole(value[k]) if ways is not None else {} for k in sorted(value)}
        return {SELF: {}, **inner}

    def differ(old: Any, new: Any) -> tuple[Fields, Fields]:
        changed: Fields = {}
        removed: Fields = {}
        for name in sorted(old.keys() | new.keys()):
            was, now = old.get(name), new.get(name)
            if was != now:
                _sort_out(f"f:{name}", ways, was, now, changed, removed)
        return changed, removed

    return Ways(whole, differ)


def _items(key_of: Callable[[Any], str], ways: Ways | None) -> Ways:
    """A list whose items have keys. One that comes twice cannot be taken apart: it is owned whole."""

    def indexed(value: Any) -> dict[str, list[Any]]:
        out: dict[str, list[Any]] = {}
        for item in value:
            out.setdefault(key_of(item), []).append(item)
        return out

    def whole(value: Any) -> Fields:
        if not value:
            return {}
        inner = {
            key: ways.whole(items[0]) if ways is not None and len(items) == 1 else {}
            for key, items in sorted(indexed(value).items())
        }
        return {SELF: {}, **inner}

    def differ(old: Any, new: Any) -> tuple[Fields, Fields]:
        changed: Fields = {}
        removed: Fields = {}
        before, after = indexed(old), indexed(new)
        for key in sorted(before.keys() | after.keys()):
            was, now = before.get(key, ()), after.get(key, ())
            if was == now:
                continue
            one, other = was[0] if len(was) == 1 else None, now[0] if len(now) == 1 else None
            if len(was) > 1 and len(now) > 1:
                changed[key] = {}
                continue
            _sort_out(key, ways, one, other, changed, removed)
            if len(was) > 1:
                removed[key] = {}
            elif len(now) > 1:
                changed[key] = {}
        return changed, removed

    return Ways(whole, differ)
