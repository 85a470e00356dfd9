"""Apply the schema of a version to objects that are sent and to objects that are stored.

A request is pruned and defaulted with the schema of its version. Objects are stored in the storage version;
when they are read in another version, fields unknown to that version are pruned. Conversion changes only
apiVersion, so the stored bytes serve every version.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from volplane.apiserver.crd.schema import Schema, embedded, json_equal, may_contain_key
from volplane.apiserver.crd.schema.defaults import drop_nulls, fill, has_defaults
from volplane.apiserver.crd.schema.prune import prune
from volplane.apiserver.decode import Undecodable

Plain = dict[str, Any]
MAX_DEPTH = 128  # levels of an object
_INT64 = 1 << 63


class Coercion:
    def __init__(self, api_version: str, kind: str, schema: Schema | None, storage: Schema | None) -> None:
        self.schema = schema
        self.storage = storage
        self.converts = schema is not storage and not json_equal(schema, storage)
        self._defaults = may_contain_key(schema, "default") and has_defaults(schema)
        self._type = {"apiVersion": api_version, "kind": kind}

    def clean(self, data: Plain) -> list[str]:
        """Prune fields that the version does not know from a sent object; return their paths.

        Raise Undecodable if the metadata is malformed.
        """
        _normalize_numbers(data, 0)
        given = data.get("metadata")
        meta, unknown = embedded.clean(given if given is not None else {})
        data.update(self._type)
        found = [f"metadata.{path}" for path in unknown]
        found += self._prune(data, self.schema)
        found += embedded.coerce(data, self.schema)
        data["metadata"] = meta
        return found

    def fill(self, obj: Plain) -> Plain:
        """Return the object with the version's defaults."""
        if not self._defaults:
            return obj
        result = deepcopy(obj)
        fill(result, self.schema)
        return result

    def to_storage(self, obj: Plain) -> Plain:
        """Return the object without fields that the storage version does not know."""
        if not self.converts:
            return obj
        result = deepcopy(obj)
        self._prune(result, self.storage)
        return result

    def from_storage(self, data: Plain) -> None:
        """Convert a stored object to this version, in place."""
        self._prune(data, self.storage)
        fill(data, self.storage)
        if self.converts:
            self._prune(data, self.schema)

    @staticmethod
    def _prune(data: Plain, schema: Schema | None) -> list[str]:
        found = prune(data, schema, root=True)
        drop_nulls(data, schema)
        return found


def _normalize_numbers(value: Any, depth: int) -> None:
    """Normalize numbers as Go does, in place, and limit the nesting depth."""
    if depth > MAX_DEPTH:
        raise Undecodable("exceeded max depth")
    if type(value) is dict:
        for name, inner in value.items():
            value[name] = _normalize_value(inner, depth)
    elif type(value) is list:
        for at, inner in enumerate(value):
            value[at] = _normalize_value(inner, depth)


def _normalize_value(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is dict or kind is list:
        _normalize_numbers(value, depth + 1)
    elif kind is float:
        if value != value or value in (float("inf"), float("-inf")):
            raise Undecodable("json: unsupported value: NaN or infinity")
        return int(value) if value.is_integer() and abs(value) < _INT64 else value
    elif kind is int and not -_INT64 <= value < _INT64:
        return float(value)
    return value
