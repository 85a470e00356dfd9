"""Match new values with their old ones, for ratcheting and `oldSelf`.

Members match by name, list items by key if the list type is `map`; items of other lists do not match. A value
without an old value never counts as unchanged.
"""

from __future__ import annotations

from typing import Any

from volplane.apiserver.crd.schema import LIST_KEYS, LIST_TYPE, Schema, json_equal

_ABSENT: Any = object()
_SCALARS = (bool, int, float, str)


class ValuePair:
    """A new value with its old one."""

    __slots__ = ("_items", "_unchanged", "new", "old")

    def __init__(self, new: Any, old: Any) -> None:
        self.new = new
        self.old = old
        self._unchanged: bool | None = None
        self._items: dict[Any, Any] | None = None

    @property
    def is_unchanged(self) -> bool:
        if self._unchanged is None:
            self._unchanged = json_equal(self.new, self.old)
        return self._unchanged

    def member(self, name: str) -> ValuePair | None:
        if not isinstance(self.new, dict) or not isinstance(self.old, dict):
            return None
        new, old = self.new.get(name, _ABSENT), self.old.get(name, _ABSENT)
        return None if new is _ABSENT or old is _ABSENT else ValuePair(new, old)

    def item(self, at: int, schema: Schema) -> ValuePair | None:
        if not isinstance(self.new, list) or not isinstance(self.old, list):
            return None
        if self._items is None:
            self._items = index_by_key(self.old, schema)
        old = self._items.get(key_of(self.new[at], schema), _ABSENT)
        return None if old is _ABSENT else ValuePair(self.new[at], old)


def index_by_key(items: list[Any], schema: Schema) -> dict[Any, Any]:
    """Return the items of a list by key; the first of several wins. Empty unless the list type is `map`."""
    if schema.get(LIST_TYPE) != "map" or not schema.get(LIST_KEYS):
        return {}
    found: dict[Any, Any] = {}
    for item in items:
        key = key_of(item, schema)
        if key is not None:
            found.setdefault(key, item)
    return found


def key_of(item: Any, schema: Schema) -> Any:
    """Return the key of an item of a map list, or None if a part is missing."""
    if not isinstance(item, dict):
        return None
    values = [item.get(name) for name in schema.get(LIST_KEYS, ())]
    if not values or not all(isinstance(v, _SCALARS) for v in values):
        return None
    return tuple((isinstance(v, bool), v) for v in values)
