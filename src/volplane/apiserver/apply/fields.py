"""Sets of fields in their wire form (FieldsV1), and operations on them.

A set is a tree of dicts. A key names a part of a value: `f:name` a field, `k:{"name":"x"}` a list item by its
keys, `v:"x"` an item of a set. A part is a member of the set if its dict is empty or contains the key `.`:

    {"f:spec": {"f:replicas": {}, "f:volumes": {'k:{"name":"a"}': {".": {}, "f:name": {}}}}}

Sets are never modified, so they may share branches.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

Fields = dict[str, Any]

SELF = "."
_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder().decode


class InvalidFieldSet(ValueError):
    """Invalid FieldsV1."""


def item_key(keys: dict[str, Any]) -> str:
    """Return the key of a list item that is identified by some of its fields."""
    return f"k:{_encode(keys).decode()}"


def value_key(of: Any) -> str:
    return f"v:{_encode(of).decode()}"


def is_member(below: Fields) -> bool:
    return not below or SELF in below


def _make_branch(member: bool, inner: Fields) -> Fields | None:
    """Return the branch below a part, or None if it is empty and not a member."""
    if not inner:
        return {} if member else None
    return {SELF: {}, **inner} if member else inner


def _inner(below: Fields) -> Fields:
    return {k: v for k, v in below.items() if k != SELF} if SELF in below else below


def union(one: Fields, other: Fields) -> Fields:
    """Return the members of either set."""
    if not other or one == other:
        return one
    if not one:
        return other
    out: Fields = {}
    for key in sorted(one.keys() | other.keys()):
        a, b = one.get(key), other.get(key)
        if a is None or b is None:
            out[key] = b if a is None else a
        elif a == b:
            out[key] = a
        else:
            inner = union(_inner(a), _inner(b))
            out[key] = _make_branch(is_member(a) or is_member(b), inner) or {}
    return out


def difference(one: Fields, other: Fields) -> Fields:
    """Return the members of `one` that are not members of `other`, at every level of the tree."""
    if not other:
        return one
    out: Fields = {}
    for key, a in one.items():
        b = other.get(key)
        if b is None:
            out[key] = a
            continue
        kept = _make_branch(is_member(a) and not is_member(b), difference(_inner(a), _inner(b)))
        if kept is not None:
            out[key] = kept
    return out


def intersection(one: Fields, other: Fields) -> Fields:
    out: Fields = {}
    for key, a in one.items():
        b = other.get(key)
        if b is None:
            continue
        kept = _make_branch(is_member(a) and is_member(b), intersection(_inner(a), _inner(b)))
        if kept is not None:
            out[key] = kept
    return out


def is_subset(one: Fields, other: Fields) -> bool:
    """Return whether every member of `one` is a member of `other`."""
    for key, a in one.items():
        b = other.get(key)
        if b is None or (is_member(a) and not is_member(b)):
            return False
        if a and not is_subset(_inner(a), _inner(b)):
            return False
    return True


# Paths


def member_paths(of: Fields, above: str = "") -> Iterator[str]:
    """Yield the members as text (`.spec.ports[port=80]`), each level before the levels below."""
    for key, below in of.items():
        if key != SELF and is_member(below):
            yield above + format_step(key)
    for key, below in of.items():
        if key != SELF and below:
            yield from member_paths(_inner(below), above + format_step(key))


def format_step(key: str) -> str:
    """Format one key."""
    kind, rest = key[:2], key[2:]
    if kind == "f:":
        return f".{rest}"
    if kind == "k:":
        keys = _decode(rest)
        return f"[{','.join(f'{name}={_format_value(keys[name])}' for name in sorted(keys))}]"
    return f"[={_format_value(_decode(rest))}]" if kind == "v:" else f"[{rest}]"


def _format_value(of: Any) -> str:
    return msgspec.json.encode(of).decode()


# The wire


def read(data: bytes | msgspec.Raw) -> Fields:
    """Decode a set that this server wrote."""
    return _decode_cached(bytes(data))


@lru_cache(maxsize=256)  # objects of one writer have the same sets
def _decode_cached(data: bytes) -> Fields:
    result: Fields = _decode(data)
    return result


def write(of: Fields) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(of))


def read_foreign(data: bytes | msgspec.Raw) -> Fields:
    """Decode a set that a client sent, in canonical spelling and order. Raise InvalidFieldSet."""
    try:
        result = _decode(data) if bytes(data) else {}
        return _canonicalize(result)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidFieldSet(str(error)) from error


def _canonicalize(given: Any) -> Fields:
    if not isinstance(given, dict):
        raise InvalidFieldSet("a set of fields is an object")
    out = {}
    for key, below in given.items():
        spelled = key if key == SELF else _key(key)
        if spelled:
            out[spelled] = _canonicalize(below)
    return dict(sorted(out.items()))


def _key(text: str) -> str:
    kind, rest = text[:2], text[2:]
    if len(text) < 2 or kind[1] != ":":
        raise InvalidFieldSet(f"missing colon: {text}")
    match kind:
        case "f:":
            return text
        case "k:":
            keys = _decode(rest)
            if not isinstance(keys, dict):
                raise InvalidFieldSet(f"the keys of an item are an object: {text}")
            return item_key(keys)
        case "v:":
            return value_key(_decode(rest))
        case "i:":
            return f"i:{int(rest)}" if rest.isdecimal() and len(rest) < 19 else ""
    return ""  # unknown to this version: dropped
