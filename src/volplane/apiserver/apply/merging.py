"""Server-side apply: merge an applied configuration into the live object and update the owners.

Fields in the configuration are set. Fields that the same manager applied before and now omits are removed,
unless another manager owns them. Changing a field of another owner is a conflict: refused, or with `force`
the field is taken over. Setting a field to its current value adds an owner and is no conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from volplane.api.errors import Conflict
from volplane.apiserver.apply import document, fields, managed
from volplane.apiserver.apply.fields import Fields
from volplane.apiserver.apply.managed import FieldOwner, Managed
from volplane.apiserver.apply.ownership import Ownership, without_identity
from volplane.apiserver.apply.types import ApplyType
from volplane.base import clock

Map = dict[str, Any]
ToTyped = Callable[[Map], Any]  # converts plain data to an object of the kind


class ApplyRequest(Struct, frozen=True):
    """One apply request."""

    config: Map
    owner: FieldOwner
    version: str
    now: datetime
    force: bool = False


class ApplyResult(Struct):
    document: Map  # without managedFields
    obj: Any  # the same, typed
    managed: Managed


class ApplyConflict(Exception):
    """The configuration would change fields that others own."""

    def __init__(self, found: Mapping[FieldOwner, Fields]) -> None:
        super().__init__("apply conflict")
        self.found = dict(found)

    def without_fields(self, allowed: Fields) -> ApplyConflict:
        left = {owner: fields.difference(owned, allowed) for owner, owned in self.found.items()}
        return ApplyConflict({owner: owned for owner, owned in left.items() if owned})

    def to_conflict(self) -> Conflict:
        owners = sorted(self.found, key=lambda owner: owner.sort_key)
        conflicts = [
            (owner.describe(), path) for owner in owners for path in fields.member_paths(self.found[owner])
        ]
        causes = [
            {"reason": "FieldManagerConflict", "message": f"conflict with {owner_text}", "field": path}
            for owner_text, path in conflicts
        ]
        if len(conflicts) == 1:
            owner_text, path = conflicts[0]
            message = f"Apply failed with 1 conflict: conflict with {owner_text}: {path}"
        else:
            message = f"Apply failed with {len(conflicts)} conflicts: {_format_conflicts(conflicts)}"
        return Conflict(message, details={"causes": causes})


def _format_conflicts(conflicts: list[tuple[str, str]]) -> str:
    lines = []
    for at, (owner_text, path) in enumerate(conflicts):
        if at == 0 or conflicts[at - 1][0] != owner_text:
            lines.append(f"conflicts with {owner_text}:")
        lines.append(f"- {path}")
    return "\n".join(lines)


def apply(
    kind: Ownership, typed: ToTyped, live: Map, live_obj: Any, managed_fields: Managed, request: ApplyRequest
) -> ApplyResult:
    """Raise ApplyConflict. `live` and `live_obj` are one object, plain and typed, without managedFields."""
    below = request.owner.subresource
    given = kind.filter_ownable(document.collect(kind.type, request.config), below)
    owned = without_identity(given)
    merged = document.merge(kind.type, live, request.config)
    others = {o: h for o, h in managed_fields.items() if o != request.owner and h.version == request.version}
    last = managed_fields.get(request.owner)
    if last is not None:
        merged = prune_removed(kind.type, merged, last.fields(), given, others)
    obj = typed(merged)
    changed, removed = (kind.filter_ownable(found, below) for found in kind.differ(live_obj, obj))
    # A field applied with its zero value is not removed, although a Struct cannot show the difference.
    zeroed = fields.intersection(removed, owned)
    changed, removed = fields.union(changed, zeroed), fields.difference(removed, zeroed)
    clashes = _find_conflicts(others, changed)
    if clashes and not request.force:
        raise ApplyConflict(clashes)
    out = managed.remove_from_owners(others, fields.union(changed, removed))
    if owned:
        time = clock.stamp(request.now) if obj != live_obj else last.time if last else None
        out[request.owner] = managed.owned_fields(request.version, time, owned)
    return ApplyResult(merged, obj, out)


def _find_conflicts(others: Managed, changed: Fields) -> dict[FieldOwner, Fields]:
    found = {
        owner: fields.intersection(managed_fields.fields(), changed)
        for owner, managed_fields in others.items()
        if managed_fields.may_touch(changed)
    }
    return {owner: both for owner, both in found.items() if both}


def prune_removed(of: ApplyType, merged: Map, last: Fields, given: Fields, others: Managed) -> Map:
    """Remove the fields that this manager no longer applies and no other manager owns."""
    last = document.with_declared_members(of, last)
    if fields.is_subset(last, document.with_declared_members(of, given)):
        return merged
    kept = given
    for managed_fields in others.values():
        kept = fields.union(kept, managed_fields.fields())
    everything = document.with_declared_members(of, document.collect(of, merged))
    left = document.with_declared_members(
        of, document.collect(of, document.remove_from_object(of, merged, last))
    )
    # Owned fields below a removed one come back, together with their parents.
    back = fields.union(left, document.with_declared_members(of, kept))
    smaller = document.remove_from_object(of, merged, fields.difference(everything, back))
    remains = document.with_declared_members(of, document.collect(of, smaller))
    # Only fields that were applied before are removed; fields without owner stay.
    return document.remove_from_object(
        of, merged, fields.intersection(fields.difference(everything, remains), last)
    )
