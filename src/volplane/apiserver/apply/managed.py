"""The entries of `metadata.managedFields`, and how a write moves fields between them.

An entry is identified by manager, operation (Apply, or Update for every other write), version and
subresource. Fields that a write adds or changes move from all other entries to the writer's; removed fields
leave all entries. A write that changes nothing keeps all entries, including their times.

An object without entries is not tracked, and an update does not start tracking. Tracking starts when an
object is created over HTTP, or with the first apply: all fields present before that belong to
`before-first-apply`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache

import msgspec
from msgspec import Raw, Struct, structs

from volplane.api.meta import ManagedFieldsEntry
from volplane.apiserver.apply import fields
from volplane.apiserver.apply.fields import Fields, InvalidFieldSet
from volplane.base import clock

APPLY, UPDATE = "Apply", "Update"
LIMIT = 10  # Update entries; the oldest are combined
BEFORE_FIRST_APPLY = "before-first-apply"
ANCIENT = "ancient-changes"
UNKNOWN = "unknown"
MANAGER_LENGTH = 128
MAX_CACHED = 1 << 16  # bytes of the field sets of a write whose result is cached

Entries = tuple[ManagedFieldsEntry, ...]

_encode = msgspec.json.Encoder().encode


class FieldOwner(Struct, frozen=True, rename={"version": "apiVersion"}, omit_defaults=True):
    """The identity of an entry. Apply entries do not depend on the version."""

    manager: str
    operation: str
    version: str = ""  # none for appliers
    subresource: str = ""

    @property
    def sort_key(self) -> bytes:
        """Conflicts list owners in the order of their JSON."""
        return msgspec.json.encode(self)

    def describe(self) -> str:
        """Describe the owner as conflict messages do."""
        text = f'"{self.manager}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.version}" if self.operation == UPDATE else text


class OwnedFields(Struct, frozen=True):
    """The fields of an owner, decoded on demand: most entries are not touched by a write."""

    version: str
    time: str | None
    raw: Raw
    known: Fields | None = None

    def fields(self) -> Fields:
        return fields.read(self.raw) if self.known is None else self.known

    def may_touch(self, parts: Iterable[str]) -> bool:
        """Return False only if it has nothing below these top-level keys; True may be a false positive."""
        if self.known is not None:
            return any(part in self.known for part in parts)
        data = bytes(self.raw)
        return any(f'"{part}"'.encode() in data for part in parts)


Managed = dict[FieldOwner, OwnedFields]


def owned_fields(version: str, time: str | None, of: Fields) -> OwnedFields:
    return OwnedFields(version, time, Raw(), of)


def updater(manager: str, version: str, subresource: str = "") -> FieldOwner:
    return FieldOwner(manager or UNKNOWN, UPDATE, version, subresource)


def applier(manager: str, subresource: str = "") -> FieldOwner:
    return FieldOwner(manager, APPLY, subresource=subresource)


# Entries


def read(entries: Sequence[ManagedFieldsEntry]) -> Managed:
    """Read the entries of a stored object."""
    return {_owner(e): OwnedFields(e.api_version, e.time, e.fields_v1) for e in entries}


def _owner(entry: ManagedFieldsEntry) -> FieldOwner:
    version = "" if entry.operation == APPLY else entry.api_version
    return FieldOwner(entry.manager, entry.operation, version, entry.subresource)


def read_foreign(entries: Sequence[ManagedFieldsEntry]) -> Entries:
    """Canonicalize the entries that a client sent, one per owner. Raise InvalidFieldSet."""
    result: dict[FieldOwner, ManagedFieldsEntry] = {}
    for entry in entries:
        if entry.operation not in (APPLY, UPDATE) or not entry.api_version or entry.fields_type != "FieldsV1":
            raise InvalidFieldSet("an entry needs an operation, an apiVersion and the type of its fields")
        owned = fields.read_foreign(entry.fields_v1)
        result[_owner(entry)] = structs.replace(entry, fields_v1=fields.write(owned))
    return tuple(sorted(result.values(), key=_order))


def is_reset(entries: Sequence[ManagedFieldsEntry]) -> bool:
    """Return whether a client asks to remove all owners, which it does with one empty entry."""
    return len(entries) == 1 and entries[0] == ManagedFieldsEntry()


def write(managed: Managed, live: Entries = ()) -> Entries:
    """Return the entries in order; unchanged entries are the same objects as before."""
    same = {_owner(e): e for e in live}
    result = [_entry(owner, held, same.get(owner)) for owner, held in managed.items()]
    return tuple(sorted(result, key=_order))


def _entry(owner: FieldOwner, held: OwnedFields, before: ManagedFieldsEntry | None) -> ManagedFieldsEntry:
    raw = held.raw if held.known is None else fields.write(held.known)
    if before is not None and (raw is before.fields_v1 or raw == before.fields_v1):
        if held.time == before.time and held.version == before.api_version:
            return before
        raw = before.fields_v1
    return ManagedFieldsEntry(
        manager=owner.manager,
        operation=owner.operation,
        api_version=held.version,
        time=held.time,
        fields_type="FieldsV1",
        fields_v1=raw,
        subresource=owner.subresource,
    )


def _order(entry: ManagedFieldsEntry) -> tuple[str, str, str, str, str]:
    return entry.operation, entry.time or "", entry.manager, entry.api_version, entry.subresource


# Writes


def first_entries(owner: FieldOwner, now: datetime, owned: Fields) -> Entries:
    """Return the first entry of a new object."""
    return (_new(owner, now, fields.write(owned)),) if owned else ()


def _new(owner: FieldOwner, now: datetime, raw: Raw) -> ManagedFieldsEntry:
    return ManagedFieldsEntry(
        manager=owner.manager,
        operation=owner.operation,
        api_version=owner.version,
        time=clock.stamp(now),
        fields_type="FieldsV1",
        fields_v1=raw,
        subresource=owner.subresource,
    )


def update_entries(
    live: Entries, owner: FieldOwner, now: datetime, changed: Fields, removed: Fields
) -> Entries:
    """Return the entries after a write that changed and removed these fields."""
    if not changed and not removed:
        return live
    writer_entry = next((entry for entry in live if _is_owned_by(entry, owner)), None)
    others = [entry for entry in live if entry is not writer_entry]
    held = tuple([bytes(entry.fields_v1) for entry in others])
    own = bytes(writer_entry.fields_v1) if writer_entry is not None else b""
    more, less = _encode(changed), _encode(removed)
    size = sum(map(len, held)) + len(own) + len(more) + len(less)
    move = _move_fields if size <= MAX_CACHED else _move_fields.__wrapped__
    left, owned = move(held, own, more, less)
    out: list[ManagedFieldsEntry] = []
    for entry, raw in zip(others, left, strict=True):
        if raw == entry.fields_v1:
            out.append(entry)
        elif raw is not None:
            out.append(structs.replace(entry, fields_v1=raw))
    if owned is not None:
        if writer_entry is None:
            out.append(_new(owner, now, owned))
        else:
            time = clock.stamp(now) if changed else writer_entry.time
            out.append(structs.replace(writer_entry, fields_v1=owned, time=time))
    return tuple(sorted(_cap_updates(out), key=_order))


def _is_owned_by(entry: ManagedFieldsEntry, owner: FieldOwner) -> bool:
    return (
        entry.manager == owner.manager
        and entry.operation == owner.operation
        and entry.subresource == owner.subresource
        and entry.api_version == owner.version
    )


@lru_cache(maxsize=128)  # controllers write the same fields of each object; the results are shared
def _move_fields(
    others: tuple[bytes, ...], own: bytes, changed: bytes, removed: bytes
) -> tuple[tuple[Raw | None, ...], Raw | None]:
    """Move fields to the writer: what the others have left, and what the writer owns (None: nothing)."""
    more, less = fields.read(changed), fields.read(removed)
    gone = fields.union(more, less)
    parts = [f'"{part}"'.encode() for part in gone]
    left = tuple([_remove_fields(data, gone, parts) for data in others])
    if not own:
        return left, Raw(changed) if more else None
    was = fields.read(own)
    if not less and fields.is_subset(more, was):  # the common case: the same fields are written again
        return left, Raw(own)
    owned = fields.union(fields.difference(was, less), more)
    return left, fields.write(owned) if owned else None


def _remove_fields(data: bytes, gone: Fields, parts: list[bytes]) -> Raw | None:
    """Remove these fields from a set. Most sets have none, which is checked without decoding."""
    if not any(part in data for part in parts):
        return Raw(data)
    was = fields.read(data)
    left = fields.difference(was, gone)
    if left == was:
        return Raw(data)
    return fields.write(left) if left else None


def remove_from_owners(managed: Managed, gone: Fields) -> Managed:
    """Remove these fields from all owners; an owner without fields is dropped."""
    out: Managed = {}
    for owner, held in managed.items():
        if not held.may_touch(gone):
            out[owner] = held
            continue
        was = held.fields()
        left = fields.difference(was, gone)
        if left:
            out[owner] = held if left == was else owned_fields(held.version, held.time, left)
    return out


def _cap_updates(entries: list[ManagedFieldsEntry]) -> list[ManagedFieldsEntry]:
    """Limit the number of Update entries: combine the oldest ones of each version."""
    if len(entries) <= LIMIT:
        return entries
    updates = sorted(
        (e for e in entries if e.operation == UPDATE), key=lambda e: (e.time or "", _owner(e).sort_key)
    )
    excess = len(updates) - LIMIT
    if excess <= 0:
        return entries
    kept = {_owner(e): e for e in entries}
    first: dict[str, FieldOwner] = {}
    for entry in updates:
        owner = _owner(entry)
        bucket = FieldOwner(ANCIENT, UPDATE, entry.api_version)
        if entry.api_version not in first:
            first[entry.api_version] = owner
            continue
        if excess <= 0 or owner == bucket:
            continue
        if bucket not in kept:
            kept[bucket] = structs.replace(
                kept.pop(first[entry.api_version]), manager=ANCIENT, subresource=""
            )
        both = fields.union(fields.read(entry.fields_v1), fields.read(kept[bucket].fields_v1))
        kept[bucket] = structs.replace(kept[bucket], fields_v1=fields.write(both), time=entry.time)
        del kept[owner]
        excess -= 1
    return list(kept.values())
