"""How the verbs access a custom resource: a dict in the form of its version.

A stored object may be older than the schema. The conversion is computed once per stored value. Nearly all
values come out unchanged; only their hash is cached, and their bytes are served as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from volplane.api import codec
from volplane.api.kind import Kind, SelectableValue
from volplane.api.meta import ObjectMeta
from volplane.apiserver.crd.custom import jsonpath
from volplane.apiserver.crd.custom.coercion import Coercion, Plain
from volplane.apiserver.crd.schema import json_equal
from volplane.apiserver.crd.schema.embedded import plain
from volplane.apiserver.object_access import OPENING, DictAccess
from volplane.apiserver.selectors import SelectorReader, Values, as_text

CACHED = 1 << 14  # stored values that are known to be unchanged

_encoder = msgspec.json.Encoder()


class CustomObjectAccess(DictAccess):
    def __init__(self, kind: Kind, coercion: Coercion) -> None:
        super().__init__(kind)
        self._coercion = coercion
        self._unchanged: set[int] = (
            set()
        )  # hashes of values: 64 bits with a random key, so collisions are negligible
        self._changed: dict[bytes, bytes] = {}

    def load(self, value: bytes, revision: int) -> Plain:
        loaded: Plain = msgspec.json.decode(self.to_wire(value, revision))
        return loaded

    def encode_stored(self, obj: Plain) -> bytes:
        return codec.encode_stored_custom(self._coercion.to_storage(obj))

    def to_wire(self, value: bytes, revision: int) -> bytes:
        return super().to_wire(self.to_served_version(value), revision)

    def to_served_version(self, value: bytes) -> bytes:
        """Convert a stored value to this version."""
        key = hash(value)
        if key in self._unchanged:
            return value
        result = self._changed.get(value)
        if result is None:
            result = self._convert(value)
            self._remember(value, key, result)
        return result

    def _convert(self, value: bytes) -> bytes:
        data = msgspec.json.decode(OPENING + value)
        self._coercion.from_storage(data)
        return _encoder.encode(data)[len(OPENING) :]

    def _remember(self, value: bytes, key: int, converted: bytes) -> None:
        if converted == value:
            if len(self._unchanged) >= CACHED:
                self._unchanged.clear()
            self._unchanged.add(key)
        else:
            if len(self._changed) >= CACHED >> 4:
                self._changed.clear()
            self._changed[value] = converted

    def with_metadata(self, obj: Plain, metadata: ObjectMeta) -> Plain:
        return {**obj, "metadata": plain(metadata)}

    def differs(self, old: Plain, new: Plain, *, except_for: Iterable[str]) -> bool:
        names = (old.keys() | new.keys()) - {"apiVersion", "kind", *except_for}
        return any(not json_equal(old.get(name), new.get(name)) for name in names)


class CustomSelectorReader(SelectorReader):
    """Reads the selectable fields of an object in its version, including defaults."""

    def __init__(self, fields: Mapping[str, SelectableValue], access: CustomObjectAccess) -> None:
        self._access = access
        self._paths = [(label, field.path.split(".")) for label, field in fields.items()]

    def read(self, value: bytes) -> Values:
        data: Any = msgspec.json.decode(OPENING + self._access.to_served_version(value))
        fields = {label: as_text(jsonpath.get(data, path)) for label, path in self._paths}
        return data["metadata"].get("labels") or {}, fields
