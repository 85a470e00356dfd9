"""Who owns which fields: `metadata.managedFields`, and how a write moves fields between its entries.

An entry belongs to a manager, by what it did (Apply, or Update for every other write), in which version, on
which subresource. Fields that a write adds or changes leave every other entry and go to the writer's; fields
it removes leave all entries. A write that changes nothing leaves everything as it is, times included.

The subtle thing: an object without entries is not tracked, and an update does not begin it. Tracking begins
when an object is created over the wire, or with the first apply, for which all that was there until then
belongs to `before-first-apply`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec
from msgspec import Raw, Struct

from volplane.api.meta import ManagedFieldsEntry
from volplane.apiserver.apply import fields
from volplane.apiserver.apply.fields import Fields, Unreadable
from volplane.base import clock

APPLY, UPDATE = "Apply", "Update"
LIMIT = 10  # entries of updates; the oldest are put together
BEFORE_FIRST_APPLY = "before-first-apply"
ANCIENT = "ancient-changes"
UNKNOWN = "unknown"
MANAGER_LENGTH = 128

Entries = tuple[ManagedFieldsEntry, ...]


class Owner(Struct, frozen=True, rename={"version": "apiVersion"}, omit_defaults=True):
    """What tells entries apart. Appliers are the same in all versions."""

    manager: str
    operation: str
    version: str = ""  # none for appliers
    subresource: str = ""

    @property
    def order(self) -> bytes:
        """Owners are told in the order of their JSON."""
        return msgspec.json.encode(self)

    def shown(self) -> str:
        """As conflicts name it."""
        text = f'"{self.manager}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.version}" if self.operation == UPDATE else text


class Holding(Struct, frozen=True):
    """What an owner has. Read when somebody needs to know: most entries are of no concern to a write."""

    version: str
    time: str | None
    raw: Raw
    known: Fields | None = None

    def fields(self) -> Fields:
        return fields.read(self.raw) if self.known is None else self.known

    def may_touch(self, parts: Iterable[str]) -> bool:
        """Does it have anything below one of these top-level keys? May say yes too often."""
        if self.known is not None:
            return any(part in self.known for part in parts)
        data = bytes(self.raw)
        return any(f'"{part}"'.encode() in data for part in parts)


Managed = dict[Owner, Holding]


def holding(version: str, time: str | None, of: Fields) -> Holding:
    return Holding(version, time, Raw(), of)


def updater(manager: str, version: str, subresource: str = "") -> Owner:
    return Owner(manager or UNKNOWN, UPDATE, version, subresource)


def applier(manager: str, subresource: str = "") -> Owner:
    return Owner(manager, APPLY, subresource=subresource)


# Entries


def read(entries: Sequence[ManagedFieldsEntry]) -> Managed:
    """The entries of a stored object, which are ours."""
    return {_owner(e): Holding(e.api_version, e.time, e.fields_v1) for e in entries}


def _owner(entry: ManagedFieldsEntry) -> Owner:
    version = "" if entry.operation == APPLY else entry.api_version
    return Owner(entry.manager, entry.operation, version, entry.subresource)


def read_foreign(entries: Sequence[ManagedFieldsEntry]) -> Managed:
    """The entries that a client sent. Raises Unreadable."""
    made: Managed = {}
    for entry in entries:
        if entry.operation not in (APPLY, UPDATE) or not entry.api_version or entry.fields_type != "FieldsV1":
            raise Unreadable("an entry needs an operation, an apiVersion and the type of its fields")
        owned = fields.read_foreign(entry.fields_v1)
        made[_owner(entry)] = holding(entry.api_version, entry.time, owned)
    return made


def is_reset(entries: Sequence[ManagedFieldsEntry]) -> bool:
    """One empty entry is how a client asks to forget all owners."""
    return len(entries) == 1 and entries[0] == ManagedFieldsEntry()


def write(managed: Managed, live: Entries = ()) -> Entries:
    """The entries in their order; those that are as they were before are the same objects as before."""
    same = {_owner(e): e for e in live}
    made = [_entry(owner, held, same.get(owner)) for owner, held in managed.items()]
    return tuple(sorted(made, key=_order))


def _entry(owner: Owner, held: Holding, before: ManagedFieldsEntry | None) -> ManagedFieldsEntry:
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


def created(owner: Owner, now: datetime, owned: Fields) -> Entries:
    """The first entry of a new object."""
    return write({owner: holding(owner.version, clock.stamp(now), owned)}) if owned else ()


def updated(managed: Managed, owner: Owner, now: datetime, changed: Fields, removed: Fields) -> Managed:
    """The owners after a write that changed and removed these fields."""
    if not changed and not removed:
        return managed
    out = lost(managed, fields.union(changed, removed))
    if changed:
        before = out.get(owner)
        owned = fields.union(before.fields(), changed) if before else changed
        out[owner] = holding(owner.version, clock.stamp(now), owned)
    return capped(out)


def lost(managed: Managed, gone: Fields, *, besides: Owner | None = None) -> Managed:
    """The owners without these fields; who has none left is no owner any more."""
    out: Managed = {}
    for owner, held in managed.items():
        if owner == besides or not held.may_touch(gone):
            out[owner] = held
            continue
        was = held.fields()
        left = fields.difference(was, gone)
        if left:
            out[owner] = held if left == was else holding(held.version, held.time, left)
    return out


def capped(managed: Managed) -> Managed:
    """At most so many entries of updates: the oldest of a version become one."""
    updates = sorted(
        (o for o in managed if o.operation == UPDATE), key=lambda o: (managed[o].time or "", o.order)
    )
    excess = len(updates) - LIMIT
    if excess <= 0:
        return managed
    out = dict(managed)
    first: dict[str, Owner] = {}
    for owner in updates:
        if excess <= 0:
            break
        held = out[owner]
        bucket = Owner(ANCIENT, UPDATE, held.version)
        if held.version not in first:
            first[held.version] = owner
            continue
        if owner == bucket:
            continue
        if bucket not in out:
            out[bucket] = out.pop(first[held.version])
        both = fields.union(held.fields(), out[bucket].fields())
        del out[owner]
        out[bucket] = holding(held.version, held.time, both)
        excess -= 1
    return out
