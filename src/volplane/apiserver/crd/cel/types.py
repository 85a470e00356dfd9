"""Types of expressions, and when one fits another.

`dyn` fits everything: what is known only when the expression runs (int-or-string) is checked then. Single
capitals are variables that a signature binds: in `_==_(A, A)` both sides must agree.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Type(Struct, frozen=True):
    name: str
    inner: tuple[Type, ...] = ()
    fields: Mapping[str, Type] | None = None  # of an object

    def __str__(self) -> str:
        if self.inner:
            return f"{self.name}({', '.join(map(str, self.inner))})"
        return self.name

    @property
    def is_variable(self) -> bool:
        return len(self.name) == 1


BOOL, INT, DOUBLE, STRING, BYTES = map(Type, ("bool", "int", "double", "string", "bytes"))
NULL, DYN, TYPE = map(Type, ("null", "dyn", "type"))
TIMESTAMP, DURATION = map(Type, ("timestamp", "duration"))
NAMED: Mapping[str, Type] = {
    t.name: t for t in (BOOL, INT, DOUBLE, STRING, BYTES, DYN, TYPE, TIMESTAMP, DURATION)
}  # fmt: skip


def list_of(item: Type) -> Type:
    return Type("list", (item,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", (key, value))


def optional_of(inner: Type) -> Type:
    return inner if inner.name == "optional_type" else Type("optional_type", (inner,))


def object_of(fields: Mapping[str, Type]) -> Type:
    return Type("object", fields=fields)


Bindings = dict[str, Type]


def fits(wanted: Type, given: Type, bound: Bindings) -> bool:
    """May a value of the given type stand where the other is wanted? Binds variables on the way."""
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


def _takes_null(type: Type) -> bool:
    return type.fields is not None or type in (NULL, DYN, TIMESTAMP, DURATION)


def bind(type: Type, bound: Bindings) -> Type:
    """A type with its variables replaced; one that nothing decided is dynamic."""
    if type.is_variable:
        return bound.get(type.name, DYN)
    if not type.inner:
        return type
    return Type(type.name, tuple(bind(inner, bound) for inner in type.inner))


def join(types: list[Type]) -> Type:
    """The type of elements that stand together in a literal."""
    first = types[0] if types else DYN
    return first if all(fits(first, t, {}) and t != DYN for t in types) else DYN
