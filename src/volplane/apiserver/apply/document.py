"""Plain data with its type: which fields it has, how an applied configuration is merged, what is pruned.

Nothing here modifies its arguments; results share the unchanged parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from volplane.apiserver.apply import fields
from volplane.apiserver.apply.fields import SELF, Fields
from volplane.apiserver.apply.types import FIELDS, ITEMS, LEAF, MAP, SET, ApplyType

ABSENT: Any = object()


class UntypableItem(ValueError):
    """A list item without the keys that identify it."""


def split_parts(of: ApplyType, value: Any) -> list[tuple[str, Any]] | None:
    """Return the parts of a value with their keys, or None for an atomic value."""
    if of.form in (FIELDS, MAP):
        return [(f"f:{k}", v) for k, v in value.items()] if isinstance(value, dict) else None
    if of.form == SET and isinstance(value, list | tuple):
        return [(fields.value_key(v), v) for v in value]
    if of.form == ITEMS and isinstance(value, list | tuple):
        return [(_item_key(of, v), v) for v in value]
    return None


def _item_key(of: ApplyType, value: Any) -> str:
    if not isinstance(value, dict):
        raise UntypableItem("associative list with keys may not have non-map elements")
    keys = {name: value.get(name, default) for name, default in of.keys.items()}
    keys = {name: found for name, found in keys.items() if found is not None}
    if not keys:
        named = " ".join(f'"{name}"' for name in of.keys)
        raise UntypableItem(
            f"associative list with keys has an element that omits all key fields [{named}] "
            "(and doesn't have default values for any key fields)"
        )
    return fields.item_key(keys)


def index_parts(given: Iterable[tuple[str, Any]]) -> tuple[dict[str, Any], set[str]]:
    """Return the parts by key, and the keys that occur more than once."""
    found: dict[str, Any] = {}
    duplicates: set[str] = set()
    for key, value in given:
        if key in found:
            duplicates.add(key)
        found[key] = value
    return found, duplicates


# Sets


def collect(of: ApplyType, value: Any) -> Fields:
    """Return the fields of an applied value: its leaves, list items and map entries."""
    found = split_parts(of, value)
    if found is None:
        return {}
    single, duplicates = index_parts(found)
    out: Fields = {}
    for key in sorted(single):
        inner, part = of.inner(key), single[key]
        below = {} if key in duplicates else collect(inner, part)
        leaf = inner.form == LEAF or part == {} or split_parts(inner, part) is None
        if leaf or not below:
            if leaf or key in duplicates or of.form in (ITEMS, SET, MAP):
                out[key] = {}
        elif of.declares(key):
            out[key] = below
        else:
            out[key] = {SELF: {}, **below}
    return out


def with_declared_members(of: ApplyType, given: Fields) -> Fields:
    """Add every declared field on the way to a member as a member itself."""
    out: Fields = {}
    for key, below in given.items():
        if key == SELF or not below:
            out[key] = below
            continue
        inner = with_declared_members(of.inner(key), {k: v for k, v in below.items() if k != SELF})
        out[key] = {SELF: {}, **inner} if SELF in below or of.declares(key) else inner
    return out


def differ(of: ApplyType, old: Any, new: Any) -> tuple[Fields, Fields]:
    """Return what was added or changed, and what was removed, between two values."""
    before, after = split_parts(of, old), split_parts(of, new)
    changed: Fields = {}
    removed: Fields = {}
    if before is None or after is None:
        return changed, removed
    (was, were_twice), (now, are_twice) = index_parts(before), index_parts(after)
    for key in sorted(was.keys() | now.keys()):
        if key in were_twice or key in are_twice:
            if before != after:
                changed[key] = {}
        elif key not in was:
            changed[key] = collect_all(of.inner(key), now[key])
        elif key not in now:
            removed[key] = collect_all(of.inner(key), was[key])
        elif was[key] != now[key]:
            inner = of.inner(key)
            if split_parts(inner, was[key]) is None or split_parts(inner, now[key]) is None:
                changed[key] = {}
                continue
            more, less = differ(inner, was[key], now[key])
            if more:
                changed[key] = more
            if less:
                removed[key] = less
    return changed, removed


def collect_all(of: ApplyType, value: Any) -> Fields:
    """Return all fields of a value that appears or disappears, including itself."""
    found = split_parts(of, value)
    if not found:
        return {}
    single, duplicates = index_parts(found)
    inner = {
        key: {} if key in duplicates else collect_all(of.inner(key), single[key]) for key in sorted(single)
    }
    return {SELF: {}, **inner}


# Merging


def merge(of: ApplyType, live: Any, applied: Any) -> Any:
    """Merge the applied value into the live one."""
    if of.form in (FIELDS, MAP) and isinstance(live, dict) and isinstance(applied, dict):
        out = dict(live)
        for name, value in applied.items():
            out[name] = merge(of.inner(f"f:{name}"), live.get(name, ABSENT), value)
        return out
    if of.form in (ITEMS, SET) and isinstance(live, list | tuple) and isinstance(applied, list):
        return _merge_items(of, live, applied)
    return applied


def _merge_items(of: ApplyType, live: Any, applied: list[Any]) -> list[Any]:
    """Merge lists: applied items keep their order; a live item stays before the item that followed it."""
    live_items, given = split_parts(of, live) or [], split_parts(of, applied) or []
    live_parts, duplicates = index_parts(live_items)
    applied_keys = {key for key, _ in given}
    shared = [key for key, _ in given if key in live_parts]
    done: set[str] = set()
    out: list[Any] = []
    at = 0

    def take_live(until: str) -> None:
        nonlocal at
        while at < len(live_items):
            key, value = live_items[at]
            if key not in applied_keys:
                out.append(value)
            elif key == until or (key not in done and shared and shared[0] == key):
                return
            at += 1

    for key, value in given:
        take_live(key)
        if at < len(live_items) and live_items[at][0] == key:
            at += 1
        before = ABSENT if key in duplicates else live_parts.get(key, ABSENT)
        out.append(merge(of.inner(key), before, value))
        done.add(key)
        if shared and shared[0] == key:
            shared.pop(0)
    take_live("")
    return out


def remove_fields(of: ApplyType, value: Any, gone: Fields) -> Any:
    """Remove the members of a set from a value. A container that becomes empty is removed, too (ABSENT)."""
    value_parts = split_parts(of, value)
    if value_parts is None:
        return ABSENT if isinstance(value, dict | list | tuple) else value
    left = []
    for key, part in value_parts:
        below = gone.get(key)
        if below is None:
            left.append((key, part))
        elif not fields.is_member(below):
            rest = remove_fields(of.inner(key), part, below)
            if rest is not ABSENT:
                left.append((key, rest))
    if not left:
        return ABSENT
    return {key[2:]: part for key, part in left} if isinstance(value, dict) else [part for _, part in left]


def remove_from_object(of: ApplyType, value: dict[str, Any], gone: Fields) -> dict[str, Any]:
    """Remove the members of a set from an object; an empty object remains if nothing else does."""
    left = remove_fields(of, value, gone)
    return {} if left is ABSENT else left


def find_faults(of: ApplyType, value: Any, path: str = "") -> list[str]:
    """Return the paths of undeclared fields and of list items without unique keys."""
    try:
        found = split_parts(of, value)
    except UntypableItem as error:
        return [f"{path}: {error}"]
    out: list[str] = []
    seen: set[str] = set()
    for key, part in found or ():
        step = fields.format_step(key)
        if key in seen:
            out.append(f"{path}: duplicate entries for key {step}")
        elif of.form == FIELDS and not of.declares(key) and not of.open:
            out.append(f"{path}{step}: field not declared in schema")
        else:
            out += find_faults(of.inner(key), part, path + step)
        seen.add(key)
    return out
