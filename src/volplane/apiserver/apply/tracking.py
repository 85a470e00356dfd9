"""Compute the managedFields of an object after a create, update or patch.

Objects created in process have no owners (`ApiCall.manager` is empty), because the built-in controllers do
not compete for fields. An object that was created over HTTP or applied is tracked from then on, for every
writer.
"""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import structs

from volplane.api.kinds import Kind
from volplane.apiserver.apply import managed
from volplane.apiserver.apply.fields import InvalidFieldSet
from volplane.apiserver.apply.managed import Entries
from volplane.apiserver.apply.ownership import Ownership
from volplane.apiserver.object_access import ObjectAccess
from volplane.apiserver.strategy import ApiCall


class TrackedResource(Protocol):
    """The part of a served resource that tracking needs."""

    kind: Kind
    access: ObjectAccess[Any]

    @property
    def ownership(self) -> Ownership: ...


def initial_owners(entry: TrackedResource, call: ApiCall, obj: Any) -> Entries:
    """Return the owners of a new object."""
    if not call.manager:
        return ()
    owned = entry.ownership.filter_ownable(entry.ownership.fields_of_new(obj))
    return managed.first_entries(managed.updater(call.manager, entry.kind.api_version), call.now, owned)


def updated_owners(entry: TrackedResource, call: ApiCall, old: Any, new: Any, sent: Entries) -> Entries:
    """Return the owners after a write; `sent`: the managedFields that the writer sent."""
    live = entry.access.metadata(old).managed_fields
    if not live and not sent:
        return live
    if managed.is_reset(sent) and not call.subresource:
        return ()
    held = _owners_before(call, live, sent)
    if not held:
        return ()
    kind = entry.ownership
    changed, removed = (kind.filter_ownable(found, call.subresource) for found in kind.differ(old, new))
    owner = managed.updater(call.manager, entry.kind.api_version, call.subresource)
    return managed.update_entries(held, owner, call.now, changed, removed)


def _owners_before(call: ApiCall, live: Entries, sent: Entries) -> Entries:
    """Return the owners before a write. A client may replace them; missing or invalid ones are ignored."""
    if sent and sent != live and not call.subresource:
        try:
            return managed.read_foreign(sent)
        except InvalidFieldSet:
            pass
    return live


def unchanged_owners(entry: TrackedResource, call: ApiCall, old: Any, new: Any, sent: Entries) -> Entries:
    """Keep the owners: for the server's own writes."""
    return entry.access.metadata(old).managed_fields


def given_owners(entry: TrackedResource, call: ApiCall, old: Any, new: Any, sent: Entries) -> Entries:
    """Use the owners that an apply has computed."""
    return sent


def drop_time_only_change(entry: TrackedResource, old: Any, new: Any) -> Any:
    """Return the old object if only times in managedFields differ, so that nothing is written."""
    was, now = entry.access.metadata(old), entry.access.metadata(new)
    before, after = was.managed_fields, now.managed_fields
    if before is after or len(before) != len(after) or before == after:
        return new
    if any(structs.replace(a, time=b.time) != b for a, b in zip(after, before, strict=True)):
        return new
    same = entry.access.with_metadata(new, structs.replace(now, managed_fields=before))
    return old if same == old else new
