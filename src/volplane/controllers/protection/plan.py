"""When the finalizer goes on, and when it may come off.

The subtle thing: only scheduled pods hold a claim. A node refuses to start a pod whose claim is being
deleted, so a pod without a node cannot lose anything; and a pod that has ended still counts until it is
deleted, because the node may not have unmounted yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttributesClass
from volplane.rules import pods
from volplane.rules.binding import ATTRIBUTES_PROTECTION, CLAIM_PROTECTION, VOLUME_PROTECTION, claim_key
from volplane.rules.steps import UNTIL_CHANGED, Wait


class Protect(Struct, frozen=True):
    """The object's finalizers become these."""

    finalizers: tuple[str, ...]


class Release(Struct, frozen=True):
    finalizers: tuple[str, ...]


class Recheck(Struct, frozen=True):
    """The caches know nobody who uses it: ask the server before letting go."""


Step = Protect | Release | Recheck | Wait


def is_at_rest(obj: PersistentVolume | PersistentVolumeClaim, finalizer: str) -> bool:
    """Protected, and nobody deletes it: most changes are of such objects, and none of our business."""
    return not obj.is_deleting and finalizer in obj.metadata.finalizers


def plan_claim(claim: PersistentVolumeClaim, users: Sequence[Pod], *, proven: bool = False) -> Iterator[Step]:
    """`users` are pods that name the claim; `proven`: they were read from the server."""
    have = claim.metadata.finalizers
    if not claim.is_deleting:
        if CLAIM_PROTECTION not in have:
            yield Protect((*have, CLAIM_PROTECTION))
    elif CLAIM_PROTECTION in have:
        holders = [pod.key for pod in users if holds(pod, claim)]
        if holders:
            yield Wait(UNTIL_CHANGED, f"still used by pod {', '.join(sorted(holders))}")
        elif not proven:
            yield Recheck()
        else:
            yield Release(_without(have, CLAIM_PROTECTION))


def plan_volume(volume: PersistentVolume) -> Iterator[Step]:
    have = volume.metadata.finalizers
    if not volume.is_deleting:
        if VOLUME_PROTECTION not in have:
            yield Protect((*have, VOLUME_PROTECTION))
    elif VOLUME_PROTECTION in have:
        if volume.status.phase == "Bound":
            yield Wait(UNTIL_CHANGED, f"still bound to claim {claim_key(volume)}")
        else:
            yield Release(_without(have, VOLUME_PROTECTION))


def plan_attributes(
    attributes: VolumeAttributesClass, users: Sequence[str], *, proven: bool = False
) -> Iterator[Step]:
    """`users` are the claims and volumes that refer to the class; `proven`: as read from the server."""
    have = attributes.metadata.finalizers
    if not attributes.is_deleting:
        if ATTRIBUTES_PROTECTION not in have:
            yield Protect((*have, ATTRIBUTES_PROTECTION))
    elif ATTRIBUTES_PROTECTION in have:
        if users:
            yield Wait(UNTIL_CHANGED, f"still referred to by {', '.join(sorted(users))}")
        elif not proven:
            yield Recheck()
        else:
            yield Release(_without(have, ATTRIBUTES_PROTECTION))


def classes_of(obj: PersistentVolume | PersistentVolumeClaim) -> list[str]:
    """The VolumeAttributesClasses that a claim or volume refers to; an index function."""
    names = {obj.spec.volume_attributes_class_name}
    if isinstance(obj, PersistentVolumeClaim):
        names.add(obj.status.current_volume_attributes_class_name)
        if (under_way := obj.status.modify_volume_status) is not None:
            names.add(under_way.target_volume_attributes_class_name)
    return [name for name in names if name]


def holds(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    if not pod.spec.node_name or pod.namespace != claim.namespace:
        return False
    return any(
        use.claim == claim.name and (not use.ephemeral or _holds_own(pod, claim)) for use in pods.uses(pod)
    )


def _holds_own(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    """An ephemeral volume's claim goes with its pod, so a pod that was killed outright holds nothing."""
    killed = pod.is_deleting and pod.metadata.deletion_grace_period_seconds == 0
    return not killed and pods.owns(pod, claim)


def _without(have: Sequence[str], finalizer: str) -> tuple[str, ...]:
    return tuple(f for f in have if f != finalizer)
