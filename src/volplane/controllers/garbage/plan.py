"""What to do about one object because of its owners and its dependents.

An owner is identified by its uid: an object of the same name that was created later is another one. Before
anything is deleted, or a reference removed, because a cache lacks owners, they are read from the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from msgspec import Struct

from volplane.api.meta import OwnerReference, Resource

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


class OwnerState(Enum):
    """The state of an owner, as its dependent sees it."""

    PRESENT = "present"
    WAITING = "waiting"  # in foreground deletion: it stays until its dependents are gone
    ABSENT = "absent"


class Dependent(Struct, frozen=True):
    object: Resource
    reference: OwnerReference


class DeleteObject(Struct, frozen=True):
    object: Resource
    propagation: str
    absent: tuple[OwnerReference, ...] = ()  # to be confirmed by live reads first


class RemoveOwnerRef(Struct, frozen=True):
    """Remove these owner references from an object."""

    object: Resource
    uids: tuple[str, ...]
    absent: tuple[OwnerReference, ...] = ()  # to be confirmed by live reads first


class UnblockOwners(Struct, frozen=True):
    """Let the owners of an object be removed before it: they may wait for each other in a circle."""

    object: Resource


class RemoveDeletionFinalizer(Struct, frozen=True):
    """Remove the finalizer of the owner: its dependents are deleted or orphaned."""

    object: Resource
    finalizer: str


Step = DeleteObject | RemoveOwnerRef | UnblockOwners | RemoveDeletionFinalizer


def plan(obj: Resource, owners: Mapping[str, OwnerState], dependents: Sequence[Dependent]) -> Iterator[Step]:
    """`owners` by uid as the caches show them, `dependents` that name this object's uid."""
    if obj.is_deleting:
        yield from _as_owner(obj, owners, dependents)
    else:
        yield from _as_dependent(obj, owners, dependents)


def _as_owner(
    obj: Resource, owners: Mapping[str, OwnerState], dependents: Sequence[Dependent]
) -> Iterator[Step]:
    finalizers = obj.metadata.finalizers
    if ORPHAN in finalizers:
        yield from (RemoveOwnerRef(d.object, (obj.uid,)) for d in dependents)
        if not dependents:
            yield RemoveDeletionFinalizer(obj, ORPHAN)
    elif FOREGROUND in finalizers:
        # What becomes of each dependent is its own plan: it may have another owner.
        others = [d for d in dependents if d.object.uid != obj.uid]
        if _blocks_waiting_owner(obj, owners) and any(_is_waiting(d.object) for d in others):
            yield UnblockOwners(obj)
        if not any(d.reference.block_owner_deletion for d in others):
            yield RemoveDeletionFinalizer(obj, FOREGROUND)


def _blocks_waiting_owner(obj: Resource, owners: Mapping[str, OwnerState]) -> bool:
    references = obj.metadata.owner_references
    return any(r.block_owner_deletion and owners[r.uid] is OwnerState.WAITING for r in references)


def _is_waiting(obj: Resource) -> bool:
    """Is it in foreground deletion?"""
    return obj.is_deleting and FOREGROUND in obj.metadata.finalizers


def _as_dependent(
    obj: Resource, owners: Mapping[str, OwnerState], dependents: Sequence[Dependent]
) -> Iterator[Step]:
    references = obj.metadata.owner_references
    if not references:
        return
    absent = tuple(r for r in references if owners[r.uid] is OwnerState.ABSENT)
    waiting = tuple(r for r in references if owners[r.uid] is OwnerState.WAITING)
    if len(absent) + len(waiting) < len(references):
        # It has another owner. A reference to a waiting owner is removed, too: it would block that owner.
        if leaving := absent + waiting:
            yield RemoveOwnerRef(obj, tuple(r.uid for r in leaving), absent)
    elif waiting and dependents:
        yield DeleteObject(obj, "Foreground", absent)
    else:
        yield DeleteObject(obj, _propagation(obj), absent)


def _propagation(obj: Resource) -> str:
    """What the object's finalizers ask for."""
    if ORPHAN in obj.metadata.finalizers:
        return "Orphan"
    return "Foreground" if FOREGROUND in obj.metadata.finalizers else "Background"
