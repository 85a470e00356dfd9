"""How the verbs read and change objects: frozen Structs for built-in kinds, dicts for custom resources.

The stored form is the same JSON for both (without kind, apiVersion and resourceVersion), so reading and
watching pass bytes through without decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, reduce
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import structs

from volplane.api import codec
from volplane.api.kinds import Kind
from volplane.api.meta import ObjectMeta, Resource
from volplane.api.object import Object, schema
from volplane.store import StoreRecord

O = TypeVar("O")  # noqa: E741
Plain = dict[str, Any]

OPENING = b'{"metadata":{'  # the stored form starts after this


class ObjectAccess(Protocol[O]):
    @property
    def attributes(self) -> Mapping[str, str]:
        """Wire name → attribute, of the top-level fields."""
        ...

    def load(self, value: bytes, revision: int) -> O: ...

    def encode_stored(self, obj: O) -> bytes: ...

    def to_wire(self, value: bytes, revision: int) -> bytes:
        """The stored bytes as a client gets them; revision 0: not stored (a dry run)."""
        ...

    def to_list_items(self, records: Sequence[StoreRecord]) -> list[bytes]:
        """As items of a list: built-in kinds have no kind and apiVersion there."""
        ...

    def metadata(self, obj: O) -> ObjectMeta: ...

    def with_metadata(self, obj: O, metadata: ObjectMeta) -> O: ...

    def without_status(self, obj: O) -> O: ...

    def with_status_of(self, obj: O, other: O) -> O: ...

    def only_status_of(self, new: O, old: O, *, metadata: bool) -> O:
        """`old` with the status and managedFields of `new`, and with its metadata if /status may write it."""
        ...

    def differs(self, old: O, new: O, *, except_for: Iterable[str]) -> bool:
        """Do the two differ in a top-level field other than these (wire names)?"""
        ...


class StructAccess:
    """Built-in kinds."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._head = codec.wire_prefix(kind)  # hashing a Kind for the codec costs more than the concatenation

    # Computed on first use: most kinds are only listed and watched, which needs no type.

    @cached_property
    def type(self) -> type[Resource]:
        assert self.kind.type is not None
        return self.kind.type

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        return {f.encode_name: f.name for f in structs.fields(self.type)}

    @cached_property
    def _status(self) -> Any:
        return next((_default(f) for f in structs.fields(self.type) if f.encode_name == "status"), None)

    def load(self, value: bytes, revision: int) -> Any:
        return codec.load(self.type, value, revision)

    def encode_stored(self, obj: Any) -> bytes:
        return codec.encode_stored(obj)

    def to_wire(self, value: bytes, revision: int) -> bytes:
        return _wire(self._head, value, revision)

    def to_list_items(self, records: Sequence[StoreRecord]) -> list[bytes]:
        start = OPENING + b'"resourceVersion":"'  # as in `_wire`, without a call for each
        return [b'%b%d",%b' % (start, record.revision, record.value) for record in records]

    def without_head(self, wire: bytes) -> bytes:
        """The wire form without kind and apiVersion."""
        return OPENING + wire.removeprefix(self._head)

    def metadata(self, obj: Any) -> ObjectMeta:
        metadata: ObjectMeta = obj.metadata
        return metadata

    def with_metadata(self, obj: Any, metadata: ObjectMeta) -> Any:
        return structs.replace(obj, metadata=metadata)

    def without_status(self, obj: Any) -> Any:
        return structs.replace(obj, status=self._status)

    def with_status_of(self, obj: Any, other: Any) -> Any:
        return structs.replace(obj, status=other.status)

    def only_status_of(self, new: Any, old: Any, *, metadata: bool) -> Any:
        kept = new.metadata
        if not metadata:
            kept = structs.replace(old.metadata, managed_fields=kept.managed_fields)
        return structs.replace(old, status=new.status, metadata=kept)

    def differs(self, old: Any, new: Any, *, except_for: Iterable[str]) -> bool:
        left_out = set(except_for)
        return any(
            getattr(old, attribute) != getattr(new, attribute)
            for name, attribute in self.attributes.items()
            if name not in left_out
        )


def _wire(head: bytes, value: bytes, revision: int) -> bytes:
    return b'%b"resourceVersion":"%d",%b' % (head, revision, value) if revision else head + value


def _default(info: structs.FieldInfo) -> Any:
    return info.default if info.default is not msgspec.NODEFAULT else info.default_factory()


class DictAccess:
    """Custom resources. Metadata is converted to ObjectMeta, which drops unknown fields."""

    attributes: Mapping[str, str] = {}

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._head = codec.wire_prefix(kind)

    def load(self, value: bytes, revision: int) -> Plain:
        return codec.load_custom(self.kind, value, revision)

    def encode_stored(self, obj: Plain) -> bytes:
        return codec.encode_stored_custom(obj)

    def to_wire(self, value: bytes, revision: int) -> bytes:
        return _wire(self._head, value, revision)

    def to_list_items(self, records: Sequence[StoreRecord]) -> list[bytes]:
        return [self.to_wire(record.value, record.revision) for record in records]

    def metadata(self, obj: Plain) -> ObjectMeta:
        return msgspec.convert(codec.encode_raw_metadata(obj.get("metadata") or {}), ObjectMeta)

    def with_metadata(self, obj: Plain, metadata: ObjectMeta) -> Plain:
        return {**obj, "metadata": msgspec.to_builtins(metadata, enc_hook=codec.decode_raw)}

    def without_status(self, obj: Plain) -> Plain:
        return {k: v for k, v in obj.items() if k != "status"}

    def with_status_of(self, obj: Plain, other: Plain) -> Plain:
        kept = {"status": other["status"]} if "status" in other else {}
        return {**self.without_status(obj), **kept}

    def only_status_of(self, new: Plain, old: Plain, *, metadata: bool) -> Plain:
        result = self.with_status_of(old, new)
        return {**result, "metadata": new["metadata"]} if metadata else result

    def differs(self, old: Plain, new: Plain, *, except_for: Iterable[str]) -> bool:
        left_out = {"apiVersion", "kind", *except_for}
        names = (old.keys() | new.keys()) - left_out
        return any(old.get(name) != new.get(name) for name in names)


@cache
def path_reader(type: type[Object] | None, path: str) -> Callable[[Any], Any]:
    """Reads the value at a path of wire names (`spec.selector`), None if a part is absent. "": the object."""
    if not path:
        return lambda obj: obj
    if type is None:
        steps = path.split(".")
        return lambda obj: reduce(_member, steps, obj)
    get = attrgetter(".".join(_attributes(type, path.split("."))))

    def read(obj: Any) -> Any:
        try:
            return get(obj)
        except AttributeError:
            return None

    return read


def _attributes(type: type[Object] | None, steps: list[str]) -> Iterator[str]:
    for step in steps:
        assert type is not None
        field = schema(type)[step]
        yield field.attribute
        type = field.type


def _member(obj: Any, name: str) -> Any:
    return obj.get(name) if isinstance(obj, dict) else None


def access_for(kind: Kind) -> Any:
    return DictAccess(kind) if kind.is_custom else StructAccess(kind)
