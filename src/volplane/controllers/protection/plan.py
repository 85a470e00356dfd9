"""When the protection finalizer is added, and when it may be removed.

Only scheduled pods protect a claim: a node refuses to start a pod whose claim is being deleted, so a pod
without a node cannot lose anything. A pod that has ended counts until it is deleted, because its node may not
have unmounted the volume yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.finalizers import (
    PV_PROTECTION_FINALIZER,
    PVC_PROTECTION_FINALIZER,
    VAC_PROTECTION_FINALIZER,
)
from volplane.api.storage import VolumeAttributesClass
from volplane.rules import pods
from volplane.rules.binding import claim_key
from volplane.rules.waits import Wait, WaitData, WaitReason


class ClaimProtectionView(Struct, frozen=True):
    claim: PersistentVolumeClaim
    users: Sequence[Pod]  # pods that name the claim
    proven: bool = False  # `users` were read from the server


class AttributesProtectionView(Struct, frozen=True):
    attributes: VolumeAttributesClass
    users: Sequence[str]  # claims and volumes that refer to the class
    proven: bool = False  # `users` were read from the server


class AddFinalizer(Struct, frozen=True):
    """Set the object's finalizers to these."""

    finalizers: tuple[str, ...]


class RemoveFinalizer(Struct, frozen=True):
    """Set the object's finalizers to these."""

    finalizers: tuple[str, ...]


class VerifyUnused(Struct, frozen=True):
    """The caches show no user: list users from the server before the finalizer is removed."""


Step = AddFinalizer | RemoveFinalizer | VerifyUnused


def is_protected(obj: PersistentVolume | PersistentVolumeClaim, finalizer: str) -> bool:
    """Whether it is protected and not being deleted: then nothing is to be done."""
    return not obj.is_deleting and finalizer in obj.metadata.finalizers


def plan_claim(
    claim: PersistentVolumeClaim, users: Sequence[Pod], *, proven: bool = False
) -> Iterator[Step | Wait]:
    """`users` are pods that name the claim; `proven`: they were read from the server."""
    have = claim.metadata.finalizers
    if not claim.is_deleting:
        if PVC_PROTECTION_FINALIZER not in have:
            yield AddFinalizer((*have, PVC_PROTECTION_FINALIZER))
    elif PVC_PROTECTION_FINALIZER in have:
        holders = tuple(sorted(pod.key for pod in users if uses_claim(pod, claim)))
        if holders:
            yield Wait(WaitReason.CLAIM_IN_USE, WaitData(pods=holders))
        elif not proven:
            yield VerifyUnused()
        else:
            yield RemoveFinalizer(_without(have, PVC_PROTECTION_FINALIZER))


def plan_volume(volume: PersistentVolume) -> Iterator[Step | Wait]:
    have = volume.metadata.finalizers
    if not volume.is_deleting:
        if PV_PROTECTION_FINALIZER not in have:
            yield AddFinalizer((*have, PV_PROTECTION_FINALIZER))
    elif PV_PROTECTION_FINALIZER in have:
        if volume.status.phase == "Bound":
            yield Wait(WaitReason.VOLUME_BOUND, WaitData(claim=claim_key(volume)))
        else:
            yield RemoveFinalizer(_without(have, PV_PROTECTION_FINALIZER))


def plan_attributes(
    attributes: VolumeAttributesClass, users: Sequence[str], *, proven: bool = False
) -> Iterator[Step | Wait]:
    """`users` are the claims and volumes that refer to the class; `proven`: as read from the server."""
    have = attributes.metadata.finalizers
    if not attributes.is_deleting:
        if VAC_PROTECTION_FINALIZER not in have:
            yield AddFinalizer((*have, VAC_PROTECTION_FINALIZER))
    elif VAC_PROTECTION_FINALIZER in have:
        if users:
            yield Wait(WaitReason.ATTRIBUTES_CLASS_IN_USE, WaitData(names=tuple(sorted(users))))
        elif not proven:
            yield VerifyUnused()
        else:
            yield RemoveFinalizer(_without(have, VAC_PROTECTION_FINALIZER))


def classes_of(obj: PersistentVolume | PersistentVolumeClaim) -> list[str]:
    """The VolumeAttributesClasses that a claim or volume refers to; an index function."""
    wanted = obj.spec.volume_attributes_class_name
    if not isinstance(obj, PersistentVolumeClaim):
        return [wanted] if wanted else []
    current, under_way = obj.status.current_volume_attributes_class_name, obj.status.modify_volume_status
    if not wanted and not current and under_way is None:
        return []
    target = under_way.target_volume_attributes_class_name if under_way is not None else None
    return [name for name in dict.fromkeys((wanted, current, target)) if name]


def uses_claim(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    if not pod.spec.node_name or pod.namespace != claim.namespace:
        return False
    return any(
        use.claim == claim.name and (not use.ephemeral or _protects_own_claim(pod, claim))
        for use in pods.claim_uses(pod)
    )


def _protects_own_claim(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    """Whether a pod protects the claim of its ephemeral volume: not if it is deleted without grace."""
    killed = pod.is_deleting and pod.metadata.deletion_grace_period_seconds == 0
    return not killed and pods.owns(pod, claim)


def _without(have: Sequence[str], finalizer: str) -> tuple[str, ...]:
    return tuple(f for f in have if f != finalizer)
