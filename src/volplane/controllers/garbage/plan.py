"""What happens to one object because of its owners and its dependents.

The subtle thing: an owner is a uid. An object of the same name that was made later is a stranger, so "absent"
is judged by uid, and before anything is deleted on a cache's word the caller asks the server itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from msgspec import Struct

from volplane.api.meta import OwnerReference, Resource

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


class Owner(Enum):
    """How an owner looks from its dependent."""

    PRESENT = "present"
    WAITING = "waiting"  # in foreground deletion: it stays until its dependents are gone
    ABSENT = "absent"


class Dependent(Struct, frozen=True):
    object: Resource
    reference: OwnerReference


class Delete(Struct, frozen=True):
    object: Resource
    propagation: str
    absent: tuple[OwnerReference, ...] = ()  # to be confirmed by live reads first


class Disown(Struct, frozen=True):
    """Take these owners off an object."""

    object: Resource
    uids: tuple[str, ...]


class Release(Struct, frozen=True):
    """The owner has waited long enough: its finalizer goes."""

    object: Resource
    finalizer: str


Step = Delete | Disown | Release


def plan(obj: Resource, owners: Mapping[str, Owner], dependents: Sequence[Dependent]) -> Iterator[Step]:
    """`owners` by uid as the caches show them, `dependents` that name this object's uid."""
    if obj.is_deleting:
        yield from _as_owner(obj, dependents)
    else:
        yield from _as_dependent(obj, owners)


def _as_owner(obj: Resource, dependents: Sequence[Dependent]) -> Iterator[Step]:
    finalizers = obj.metadata.finalizers
    if ORPHAN in finalizers:
        yield from (Disown(d.object, (obj.uid,)) for d in dependents)
        if not dependents:
            yield Release(obj, ORPHAN)
    elif FOREGROUND in finalizers:
        yield from (Delete(d.object, "Foreground") for d in dependents if not d.object.is_deleting)
        if not any(d.reference.block_owner_deletion for d in dependents):
            yield Release(obj, FOREGROUND)


def _as_dependent(obj: Resource, owners: Mapping[str, Owner]) -> Iterator[Step]:
    references = obj.metadata.owner_references
    if not references:
        return
    absent = tuple(r for r in references if owners[r.uid] is Owner.ABSENT)
    waiting = [r for r in references if owners[r.uid] is Owner.WAITING]
    if len(absent) + len(waiting) < len(references):
        # Somebody still wants it: only the dead are taken off.
        if absent:
            yield Disown(obj, tuple(r.uid for r in absent))
    elif waiting:
        yield Delete(obj, "Foreground")
    else:
        yield Delete(obj, "Background", absent)
