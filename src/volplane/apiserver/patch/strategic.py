"""Strategic merge patch: lists merge by key where the type's schema says so.

Directives in the patch: `$patch` (delete, replace) in a map or list element,
`$deleteFromPrimitiveList/<list>`, `$setElementOrder/<list>`, `$retainKeys`. Order of a merged list: items in
the patch have the patch's order; an item that only the server has goes before the first patch item that
followed it on the server.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import json

from volplane.api.merge_patch import without_nulls
from volplane.api.object import Field, Object, schema
from volplane.apiserver.patch.jsonpatch import equal_as_json

DIRECTIVE = "$patch"
DELETE_FROM = "$deleteFromPrimitiveList"
ORDER = "$setElementOrder"
RETAIN = "$retainKeys"

Map = dict[str, Any]
FieldLookup = Callable[[str], Field | None]


class InvalidStrategicPatch(Exception):
    """An invalid patch. `unprocessable`: its format is valid, but it cannot be applied to the object."""

    def __init__(self, message: str, *, unprocessable: bool = False) -> None:
        super().__init__(message)
        self.unprocessable = unprocessable


def apply(of: type[Object], target: Map, patch: Map) -> Map:
    """Merge the patch into a copy of the target (wire form of an `of`; lists may be tuples)."""
    return _merge_map(target, patch, schema(of).get)


def _nothing(_: str) -> None:
    """Look up a field of free-form data: nothing is known, so its lists are replaced."""


def _inside(field: Field | None) -> FieldLookup:
    """Return the lookup function for the fields of an object, or the values of a map."""
    if field is not None and field.type is not None:
        return schema(field.type).get
    if field is not None and field.shape == "map":
        return lambda _: field.item
    return _nothing


# Maps


def _merge_map(target: Map, patch: Map, look: FieldLookup) -> Map:
    if DIRECTIVE in patch:
        return _apply_directive(patch)
    out, rest = _retain_keys(target, patch)
    rest = _ordered_lists(out, rest, look)
    for key, value in rest.items():
        if key.startswith(DELETE_FROM):
            _delete_from(out, _list_named(key, DELETE_FROM, "primitive list"), value)
        elif value is None:
            out.pop(key, None)
        else:
            _merge_member(out, key, value, look(key))
    return out


def _apply_directive(patch: Map) -> Map:
    match patch[DIRECTIVE]:
        case "replace":
            return {k: v for k, v in patch.items() if k != DIRECTIVE}
        case "delete":
            return {}
        case other:
            raise InvalidStrategicPatch(f"unknown patch type: {other} in map: {go_text(patch)}")


def _retain_keys(target: Map, patch: Map) -> tuple[Map, Map]:
    """Return the target without keys that `$retainKeys` does not list, and the rest of the patch."""
    if RETAIN not in patch:
        return dict(target), patch
    keys = patch[RETAIN]
    rest = {k: v for k, v in patch.items() if k != RETAIN}
    given = {k for k, v in rest.items() if v is not None and not k.startswith((DELETE_FROM, ORDER))}
    listed = {k for k in keys if isinstance(k, str)} if isinstance(keys, list) else set()
    if not isinstance(keys, list) or not given <= listed:
        raise InvalidStrategicPatch("invalid patch format of retainKeys")
    return {k: v for k, v in target.items() if k in listed}, rest


def _merge_member(out: Map, key: str, value: Any, field: Field | None) -> None:
    held = out.get(key)
    if isinstance(held, dict) and isinstance(value, dict):
        replaced = field is not None and field.is_replaced
        out[key] = value if replaced else _merge_map(held, value, _inside(field))
    elif isinstance(held, list | tuple) and isinstance(value, list):
        out[key] = _merge_list(list(held), value, field)
    elif isinstance(value, dict) and DIRECTIVE in value:
        # A directive for a missing member: nothing to delete or replace.
        out.pop(key, None)
    else:
        out[key] = _without_directives(without_nulls(value))


def _without_directives(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_directives(v) for k, v in value.items() if not _is_directed(v)}
    if isinstance(value, list):
        return [_without_directives(v) for v in value if not _is_directed(v)]
    return value


def _is_directed(value: Any) -> bool:
    return isinstance(value, dict) and DIRECTIVE in value


# Lists


def _delete_from(out: Map, key: str, values: Any) -> None:
    held = out.get(key)
    if isinstance(held, list | tuple) and isinstance(values, list):
        gone = {_token(value) for value in values}
        out[key] = [item for item in held if _token(item) not in gone]
    elif values is None:
        out.pop(key, None)


def _list_named(key: str, prefix: str, what: str) -> str:
    head, slash, name = key.partition("/")
    if head != prefix or not slash:
        raise InvalidStrategicPatch(f"invalid patch format of {what}")
    return name


def _merge_list(held: list[Any], patch: list[Any], field: Field | None) -> list[Any]:
    if field is None or field.merge_key is None:
        return patch
    if not held and not patch:
        return held
    if not _elements_are_maps(held, patch):
        return _arrange(_distinct([*held, *patch]), order=patch, server=held, key="")
    base, plain = _special_elements(held, patch, field.merge_key)
    merged = _merge_elements(base, plain, field)
    return _arrange(merged, order=plain, server=base, key=field.merge_key)


def _elements_are_maps(*lists: list[Any]) -> bool:
    types = {type(item) for items in lists for item in items}
    if list in types:
        raise InvalidStrategicPatch("lists of lists are not supported", unprocessable=True)
    if len(types) > 1:
        raise InvalidStrategicPatch(f"list element types are not identical: {go_text(list(lists))}")
    return dict in types


def _special_elements(held: list[Map], patch: list[Map], key: str) -> tuple[list[Map], list[Map]]:
    """Apply `$patch` elements; return the remaining held elements and the patch's other elements."""
    plain = [element for element in patch if DIRECTIVE not in element]
    gone: set[str | bytes] = set()
    for element in (e for e in patch if DIRECTIVE in e):
        match element[DIRECTIVE]:
            case "delete":
                gone.add(_token(_key_of(element, key)))
            case "replace":
                pass
            case "merge":
                raise InvalidStrategicPatch("merging lists cannot yet be specified in the patch")
            case other:
                raise InvalidStrategicPatch(f"unknown patch type: {other} in map: {go_text(element)}")
    if any(e.get(DIRECTIVE) == "replace" for e in patch):
        return plain, []
    return [e for e in held if _token(e.get(key)) not in gone] if gone else held, plain


def _merge_elements(base: list[Map], patch: list[Map], field: Field) -> list[Map]:
    key = field.merge_key or ""
    merged = list(base)
    places = _positions(base, key)
    for element in patch:
        token = _token(_key_of(element, key))
        at = places.get(token)
        if at is None:
            places[token] = len(merged)
            merged.append(element)
        else:
            merged[at] = _merge_map(merged[at], element, _inside(field.item))
    return merged


def _key_of(element: Map, key: str) -> Any:
    if key not in element:
        raise InvalidStrategicPatch(f"map: {go_text(element)} does not contain declared merge key: {key}")
    return element[key]


def _token(value: Any) -> str | bytes:
    """Return a hashable token that is equal exactly for values with equal JSON text."""
    return value if type(value) is str else json.encode(value, order="deterministic")


def _positions(elements: list[Any], key: str) -> dict[str | bytes, int]:
    """Return the position of the first element with each key, or of each value if there is no key."""
    places: dict[str | bytes, int] = {}
    for at, element in enumerate(elements):
        if not key:
            places.setdefault(_token(element), at)
        elif isinstance(element, dict) and key in element:
            places.setdefault(_token(element[key]), at)
    return places


def _distinct(items: list[Any]) -> list[Any]:
    return [items[at] for at in _positions(items, "").values()]


# Order


def _ordered_lists(out: Map, patch: Map, look: FieldLookup) -> Map:
    """Merge and order the lists that have a `$setElementOrder`; return the rest of the patch."""
    orders = [key for key in patch if key.startswith(ORDER)]
    if not orders:
        return patch
    rest = {k: v for k, v in patch.items() if k not in orders}
    for key in orders:
        name = _list_named(key, ORDER, "setElementOrder list")
        if not isinstance(patch[key], list):
            raise InvalidStrategicPatch("invalid patch format of setElementOrder list")
        _order_list(out, rest, name, patch[key], look(name))
    return rest


def _order_list(out: Map, rest: Map, name: str, order: list[Any], field: Field | None) -> None:
    if field is None or field.shape != "list":
        raise InvalidStrategicPatch(f'unable to find api field in struct for the json field "{name}"')
    held, patch = out.get(name), rest.get(name)
    held = list(held) if isinstance(held, tuple) else held
    if not isinstance(held, list | None) or not isinstance(patch, list | None):
        raise InvalidStrategicPatch("invalid patch format of setElementOrder list")
    key = field.merge_key or ""
    _check_order(patch or [], order, key)
    if held is None and patch is None:
        return
    if held is None:
        merged = _without_directives(patch)
    elif patch is None:
        merged = held
    else:
        merged = _merge_list(held, patch, field)
    out[name] = _arrange(merged, order=order, server=held or [], key=key)
    rest.pop(name, None)


def _check_order(patch: list[Any], order: list[Any], key: str) -> None:
    """Check that the elements of the patch occur in the order list, in the same order."""
    if not order:
        return
    places = iter(order)
    for element in patch:
        if isinstance(element, dict) and DIRECTIVE in element:
            continue
        wanted = _key_of(_as_map(element), key) if key else element
        if not any(equal_as_json(_key_of(_as_map(o), key) if key else o, wanted) for o in places):
            raise InvalidStrategicPatch(
                f"The order in patch list:\n{go_text(patch)}\n"
                f" doesn't match {ORDER} list:\n{go_text(order)}\n"
            )


def _as_map(element: Any) -> Map:
    if not isinstance(element, dict):
        raise InvalidStrategicPatch(
            f"expected a map[string]interface {{}}, but received a {go_type(element)}"
        )
    return element


def _arrange(merged: list[Any], *, order: list[Any], server: list[Any], key: str) -> list[Any]:
    if key:
        for element in (*merged, *order):
            _key_of(_as_map(element), key)
    places = _positions(order, key)
    ranks = [places.get(_token(e[key] if key else e), -1) for e in merged]
    named = [e for _, e in sorted(((r, e) for r, e in zip(ranks, merged, strict=True) if r >= 0), key=_first)]
    alone = [e for r, e in zip(ranks, merged, strict=True) if r < 0]
    if not alone or not named:
        return named or alone
    return _interleave(alone, named, server, key)


def _first(pair: tuple[int, Any]) -> int:
    return pair[0]


def _interleave(alone: list[Any], named: list[Any], server: list[Any], key: str) -> list[Any]:
    """Interleave both lists; an element of `alone` goes before one of `named` if it did on the server."""

    places = _positions(server, key)

    def place(element: Any) -> int:
        return places.get(_token(element[key] if key else element), -1)

    out: list[Any] = []
    left, right = deque(alone), deque(named)
    while left and right:
        mine, other = place(left[0]), place(right[0])
        out.append((left if 0 <= mine < other else right).popleft())
    return [*out, *left, *right]


# Messages


def go_text(value: Any) -> str:
    """Format a value as Go prints it."""
    if isinstance(value, Mapping):
        return "map[" + " ".join(f"{k}:{go_text(v)}" for k, v in sorted(value.items())) + "]"
    if isinstance(value, (list, tuple)):
        return "[" + " ".join(map(go_text, value)) + "]"
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def go_type(value: Any) -> str:
    return {str: "string", bool: "bool", int: "int64", float: "float64", list: "[]interface {}"}.get(
        type(value), "nil"
    )
