"""Field ownership of one kind: its type, how two objects differ, and which fields an endpoint's writers own.

Built-in objects are compared as Structs, custom resources as plain data. Writers own only what their endpoint
writes: everything but status on the main endpoint, only status (and metadata) on /status.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from volplane.api.kinds import Kind
from volplane.api.meta import Resource
from volplane.apiserver.apply import compare, document, types
from volplane.apiserver.apply.fields import SELF, Fields
from volplane.apiserver.apply.types import ApplyType

_STATUS, _METADATA = "f:status", "f:metadata"
_TYPE_META = frozenset({"f:apiVersion", "f:kind"})
_PARTS = {"ephemeralcontainers": frozenset({"f:spec"}), "finalize": frozenset({"f:spec"})}


class Ownership(ABC):
    def __init__(self, type: ApplyType, *, status: bool, status_metadata: bool) -> None:
        self.type = type
        self._status = status
        self._status_parts = frozenset({_STATUS, _METADATA} if status_metadata else {_STATUS})

    @abstractmethod
    def empty(self) -> Any:
        """Return the object that a new one is compared with."""

    @abstractmethod
    def fields_of_new(self, obj: Any) -> Fields:
        """Return the fields of a new object."""

    @abstractmethod
    def differ(self, old: Any, new: Any) -> tuple[Fields, Fields]:
        """Return the fields that were changed or added, and those that were removed."""

    def filter_ownable(self, given: Fields, subresource: str = "") -> Fields:
        """Return the fields that a writer of this endpoint can own."""
        if subresource == "status":
            parts = self._status_parts
        elif subresource in _PARTS:
            parts = _PARTS[subresource]
        elif self._status and _STATUS in given:
            parts = frozenset(given) - {_STATUS}
        else:
            return given
        return {key: below for key, below in given.items() if key in parts}


class StructOwnership(Ownership):
    """Built-in kinds."""

    def __init__(self, of: type[Resource], *, status: bool, status_metadata: bool) -> None:
        super().__init__(types.of_struct(of), status=status, status_metadata=status_metadata)
        self._of = of
        self._comparer = compare.comparer_of(of)

    def empty(self) -> Any:
        return self._of()

    def fields_of_new(self, obj: Any) -> Fields:
        return compare.fields_of_new_object(self._comparer, obj)

    def differ(self, old: Any, new: Any) -> tuple[Fields, Fields]:
        return self._comparer.differ(old, new)


class PlainOwnership(Ownership):
    """Custom resources, with the schema of their version."""

    def empty(self) -> Any:
        return {}

    def fields_of_new(self, obj: Any) -> Fields:
        return self.differ({}, obj)[0]

    def differ(self, old: Any, new: Any) -> tuple[Fields, Fields]:
        changed, removed = document.differ(self.type, old, new)
        return without_identity(changed), without_identity(removed)


def without_identity(given: Fields) -> Fields:
    """Remove fields without owners: apiVersion, kind, and the identity of the object."""
    out = {key: below for key, below in given.items() if key not in _TYPE_META}
    if _METADATA in out:
        owned = {
            key: below
            for key, below in out.pop(_METADATA).items()
            if key != SELF and key[2:] not in compare.UNOWNED_METADATA
        }
        if owned:
            out[_METADATA] = owned
    return dict(sorted(out.items()))


def ownership_of(
    kind: Kind, *, status: bool, status_metadata: bool, schema: Mapping[str, Any] | None = None
) -> Ownership:
    """`schema`: the structural schema of the version of a custom kind."""
    if kind.type is not None:
        return StructOwnership(kind.type, status=status, status_metadata=status_metadata)
    return PlainOwnership(types.of_custom(schema), status=status, status_metadata=status_metadata)
