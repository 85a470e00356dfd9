"""Label and field selectors over stored bytes, without decoding the whole object.

A `SelectorReader` decodes only the labels and the selectable fields of a kind; msgspec skips the rest, which
costs a fraction of a full decode. A missing value counts as the zero value of its type, as in Go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from volplane.api.errors import BadRequest
from volplane.api.kind import Kind, SelectableValue
from volplane.api.selectors import FieldMatcher, LabelMatcher
from volplane.apiserver.object_access import OPENING

OBJECTS_AT_ONCE = 500

Values = tuple[Mapping[str, str], Mapping[str, str]]  # labels, fields


class SelectorReader:
    """Reads the labels and selectable fields of stored objects of one kind."""

    def __init__(self, fields: Mapping[str, SelectableValue]) -> None:
        tree: dict[str, Any] = {}
        for path in ("metadata.labels", *(f.path for f in fields.values())):
            branch = tree
            for step in path.split("."):
                branch = branch.setdefault(step, {})
        self._decoder = msgspec.json.Decoder(_struct(tree))
        self._labels = _attribute_path(tree, "metadata.labels")
        self._fields = [(label, _attribute_path(tree, f.path), f.absent) for label, f in fields.items()]

    def read(self, value: bytes) -> Values:
        seen = self._decoder.decode(OPENING + value)
        fields = {label: as_text(_get_attribute(seen, way), absent) for label, way, absent in self._fields}
        return _get_attribute(seen, self._labels) or {}, fields


class Selection(Struct, frozen=True):
    """The selectors of a list or watch."""

    labels: LabelMatcher | None = None
    fields: FieldMatcher | None = None

    @property
    def selects_all(self) -> bool:
        return self.labels is None and self.fields is None

    @property
    def objects_per_turn(self) -> int:
        """How many objects to match in one turn of the event loop: fewer if the selectors are long."""
        cost = 10 + sum(1 + len(r.values) // 10 for r in (self.labels.requirements if self.labels else ()))
        return max(OBJECTS_AT_ONCE * 10 // (cost + len(self.fields.terms if self.fields else ())), 1)

    @property
    def name(self) -> str:
        """The name that the field selector requires, or ""."""
        return (self.fields.required_value("metadata.name") or "") if self.fields is not None else ""

    def matches(self, values: Values) -> bool:
        labels, fields = values
        if self.labels is not None and not self.labels.matches(labels):
            return False
        return self.fields is None or self.fields.matches(fields)


EVERYTHING = Selection()


def select(kind: Kind, labels: str, fields: str) -> Selection:
    """Parse both selectors of a request. Raise BadRequest."""
    if not labels and not fields:
        return EVERYTHING
    try:
        wanted = LabelMatcher.parse(labels) if labels else None
        chosen = FieldMatcher.parse(fields) if fields else None
    except ValueError as error:
        raise BadRequest(str(error)) from error
    for name in (term.field for term in chosen.terms) if chosen else ():
        if name not in kind.selectable:
            raise BadRequest(_unknown_field_message(kind, name))
    return Selection(wanted, chosen)


def _unknown_field_message(kind: Kind, name: str) -> str:
    if kind.legacy_field_errors:
        return f"field label not supported: {name}"
    return f'"{name}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def _struct(tree: Mapping[str, Any]) -> type[Struct]:
    """Define a Struct with only the fields of this tree; its attributes are f0, f1, … in order."""
    names = {f"f{i}": name for i, name in enumerate(tree)}
    fields = [
        (attribute, (_struct(tree[name]) | None) if tree[name] else Any, None)
        for attribute, name in names.items()
    ]
    return msgspec.defstruct("SelectableFields", fields, rename=names, gc=False)


def _attribute_path(tree: Mapping[str, Any], path: str) -> tuple[str, ...]:
    way = []
    for step in path.split("."):
        way.append(f"f{list(tree).index(step)}")
        tree = tree[step]
    return tuple(way)


def _get_attribute(seen: Any, way: tuple[str, ...]) -> Any:
    for attribute in way:
        if seen is None:
            return None
        seen = getattr(seen, attribute)
    return seen


def as_text(value: Any, absent: str = "") -> str:
    """Convert a value to the text that selectors compare."""
    match value:
        case None:
            return absent
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case list():
            return ",".join(
                str(next(iter(item.values()), "")) if isinstance(item, dict) else str(item) for item in value
            )
        case _:
            return str(value)
