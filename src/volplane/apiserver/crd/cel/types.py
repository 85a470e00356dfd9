"""CEL types, and which types are compatible.

`dyn` is compatible with everything: a type known only at run time (int-or-string) is checked then. Single
capitals are type variables of a signature: in `_==_(A, A)` both sides must have the same type.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class CelType(Struct, frozen=True):
    name: str
    inner: tuple[CelType, ...] = ()
    fields: Mapping[str, CelType] | None = None  # of an object

    def __str__(self) -> str:
        if self.inner:
            return f"{self.name}({', '.join(map(str, self.inner))})"
        return self.name

    @property
    def is_variable(self) -> bool:
        return len(self.name) == 1


BOOL, INT, DOUBLE, STRING, BYTES = map(CelType, ("bool", "int", "double", "string", "bytes"))
NULL, DYN, TYPE = map(CelType, ("null", "dyn", "type"))
TIMESTAMP, DURATION = map(CelType, ("timestamp", "duration"))
NAMED: Mapping[str, CelType] = {
    t.name: t for t in (BOOL, INT, DOUBLE, STRING, BYTES, DYN, TYPE, TIMESTAMP, DURATION)
}  # fmt: skip


def list_of(item: CelType) -> CelType:
    return CelType("list", (item,))


def map_of(key: CelType, value: CelType) -> CelType:
    return CelType("map", (key, value))


def optional_of(inner: CelType) -> CelType:
    return inner if inner.name == "optional_type" else CelType("optional_type", (inner,))


def object_of(fields: Mapping[str, CelType]) -> CelType:
    return CelType("object", fields=fields)


Bindings = dict[str, CelType]


def fits(wanted: CelType, given: CelType, bound: Bindings) -> bool:
    """Return whether a value of type `given` is valid where `wanted` is required; binds type variables."""
    if wanted.is_variable:
        known = bound.get(wanted.name)
        if known is None or known == DYN:
            bound[wanted.name] = given
            return True
        if given == NULL or known == NULL:
            bound[wanted.name] = given if known == NULL else known
            return _takes_null(known) or _takes_null(given)
        return fits(known, given, bound)
    if DYN in (wanted, given):
        return True
    if given == NULL or wanted == NULL:
        return wanted == given or _takes_null(wanted)
    if wanted.name != given.name or len(wanted.inner) != len(given.inner):
        return False
    if wanted.fields is not None and wanted.fields is not given.fields and wanted.fields != given.fields:
        return False
    return all(fits(w, g, bound) for w, g in zip(wanted.inner, given.inner, strict=True))


def _takes_null(type: CelType) -> bool:
    return type.fields is not None or type in (NULL, DYN, TIMESTAMP, DURATION)


def bind(type: CelType, bound: Bindings) -> CelType:
    """Replace type variables; an unbound variable becomes dyn."""
    if type.is_variable:
        return bound.get(type.name, DYN)
    if not type.inner:
        return type
    return CelType(type.name, tuple(bind(inner, bound) for inner in type.inner))


def join(types: list[CelType]) -> CelType:
    """Return the common type of the elements of a literal."""
    first = types[0] if types else DYN
    return first if all(fits(first, t, {}) and t != DYN for t in types) else DYN
