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

Entries = tuple[ManagedFieldsEntry, ...]


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
    gone = fields.union(changed, removed)
    parts = [f'"{part}"'.encode() for part in gone]
    out: list[ManagedFieldsEntry] = []
    writer_entry: ManagedFieldsEntry | None = None
    for entry in live:
        if _is_owned_by(entry, owner):
            writer_entry = entry
        elif (left := _remove_fields(entry, gone, parts)) is not None:
            out.append(left)
    own = _writer_entry(writer_entry, owner, now, changed, removed)
    if own is not None:
        out.append(own)
    return tuple(sorted(_cap_updates(out), key=_order))


def _is_owned_by(entry: ManagedFieldsEntry, owner: FieldOwner) -> bool:
    return (
        entry.manager == owner.manager
        and entry.operation == owner.operation
        and entry.subresource == owner.subresource
        and entry.api_version == owner.version
    )


def _remove_fields(entry: ManagedFieldsEntry, gone: Fields, parts: list[bytes]) -> ManagedFieldsEntry | None:
    """Remove these fields from an entry. Most entries have none, which is checked without decoding."""
    data = bytes(entry.fields_v1)
    if not any(part in data for part in parts):
        return entry
    was = fields.read(data)
    left = fields.difference(was, gone)
    if left == was:
        return entry
    return structs.replace(entry, fields_v1=fields.write(left)) if left else None


def _writer_entry(
    writer_entry: ManagedFieldsEntry | None,
    owner: FieldOwner,
    now: datetime,
    changed: Fields,
    removed: Fields,
) -> ManagedFieldsEntry | None:
    """Return the writer's entry: its remaining fields and the changed ones."""
    if writer_entry is None:
        return _new(owner, now, fields.write(changed)) if changed else None
    was = fields.read(writer_entry.fields_v1)
    time = clock.stamp(now) if changed else writer_entry.time
    if not removed and fields.is_subset(changed, was):  # the common case: the same fields are written again
        return structs.replace(writer_entry, time=time)
    owned = fields.union(fields.difference(was, removed), changed)
    return structs.replace(writer_entry, fields_v1=fields.write(owned), time=time) if owned else None


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
