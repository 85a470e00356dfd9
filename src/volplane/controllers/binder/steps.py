"""The binder's steps: one write each, with its patch.

Binding takes four writes. After each of them the next plan can go on from what was written:

    SetClaimRef      the volume's claimRef names the claim; no other claim can get the volume now
    SetVolumePhase   the volume's phase becomes Bound
    SetVolumeName    the claim names the volume and is marked as bound
    SetClaimStatus   the claim's status becomes Bound, with the volume's capacity and access modes

The annotation `bound-by-controller` is set only on the side whose reference the binder wrote: that side may
be undone later without asking the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from volplane.api.annotations import (
    BETA_STORAGE_PROVISIONER_ANNOTATION,
    BIND_COMPLETED_ANNOTATION,
    BOUND_BY_CONTROLLER_ANNOTATION,
    MIGRATED_TO_ANNOTATION,
    PRE_RESIZE_CAPACITY_ANNOTATION,
    STORAGE_PROVISIONER_ANNOTATION,
)
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.rules.binding import YES, claim_ref_patch
from volplane.rules.provisioning_intent import is_fulfilled_by, removal_patch

T = TypeVar("T")
Patch = Mapping[str, Any]


class SetClaimRef(Struct, frozen=True):
    volume: PersistentVolume
    claim: PersistentVolumeClaim

    @property
    def patch(self) -> Patch:
        return claim_ref_patch(self.volume, self.claim)


class SetVolumePhase(Struct, frozen=True):
    """Change the volume's phase."""

    volume: PersistentVolume
    phase: str
    message: str = ""

    @property
    def patch(self) -> Patch:
        return {"status": {"phase": self.phase, "message": self.message or None}}


class SetVolumeName(Struct, frozen=True):
    """The same write removes the provisioner's intent for this volume, which would be a write of its own."""

    volume: str
    claim: PersistentVolumeClaim

    @property
    def patch(self) -> Patch:
        marks: dict[str, str | None] = {BIND_COMPLETED_ANNOTATION: YES}
        metadata: dict[str, Any] = {}
        if is_fulfilled_by(self.claim, self.volume):
            metadata = removal_patch(self.claim)
            marks |= metadata["annotations"]
        if self.claim.spec.volume_name == self.volume:
            return {"metadata": {**metadata, "annotations": marks}}
        marks[BOUND_BY_CONTROLLER_ANNOTATION] = YES
        return {"metadata": {**metadata, "annotations": marks}, "spec": {"volumeName": self.volume}}


class SetClaimStatus(Struct, frozen=True):
    """Change the claim's status: Bound to `volume`, or Pending or Lost without one."""

    claim: PersistentVolumeClaim
    phase: str
    volume: PersistentVolume | None = None

    @property
    def patch(self) -> Patch:
        if self.volume is None:
            unset = {"accessModes": None, "capacity": None, "currentVolumeAttributesClassName": None}
            return {"status": {"phase": self.phase, **unset}}
        status: dict[str, Any] = {"phase": self.phase, "accessModes": list(self.volume.spec.access_modes)}
        before = self.claim.status.phase
        # The capacity is set once. Later the volume may have grown while its file system has not yet.
        if before != self.phase:
            size = self.volume.metadata.annotations.get(PRE_RESIZE_CAPACITY_ANNOTATION)
            status["capacity"] = {**self.volume.spec.capacity, **({"storage": size} if size else {})}
        if before in ("", "Pending"):
            status["currentVolumeAttributesClassName"] = self.volume.spec.volume_attributes_class_name
        return {"status": status}


class UnbindVolume(Struct, frozen=True):
    """Remove the claimRef if the binder wrote it; of a user's claimRef only the uid."""

    volume: PersistentVolume

    @property
    def patch(self) -> Patch:
        if BOUND_BY_CONTROLLER_ANNOTATION in self.volume.metadata.annotations:
            return {
                "metadata": {"annotations": {BOUND_BY_CONTROLLER_ANNOTATION: None}},
                "spec": {"claimRef": None},
            }
        return {"spec": {"claimRef": {"uid": None}}}


class SetDefaultClass(Struct, frozen=True):
    """Set the claim's storage class: a default class was created after the claim."""

    claim: PersistentVolumeClaim
    storage_class: str

    @property
    def patch(self) -> Patch:
        return {"spec": {"storageClassName": self.storage_class}}


class SetProvisioner(Struct, frozen=True):
    """Ask an external provisioner for a volume."""

    claim: PersistentVolumeClaim
    driver: str
    migrated: bool = False  # the class named an in-tree plugin

    @property
    def patch(self) -> Patch:
        annotations = {
            STORAGE_PROVISIONER_ANNOTATION: self.driver,
            BETA_STORAGE_PROVISIONER_ANNOTATION: self.driver,
        }
        if self.migrated:
            annotations[MIGRATED_TO_ANNOTATION] = self.driver
        return {"metadata": {"annotations": annotations}}


class FixMetadata(Struct, frozen=True):
    """Fix what must be right before anything else: `migrated-to`, and a volume's finalizers."""

    target: PersistentVolume | PersistentVolumeClaim
    annotations: Mapping[str, str | None] = {}
    finalizers: tuple[str, ...] | None = None

    @property
    def patch(self) -> Patch:
        metadata: dict[str, Any] = {}
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        if self.finalizers is not None:
            metadata["finalizers"] = list(self.finalizers)
        return {"metadata": metadata}


class CreateRecycler(Struct, frozen=True):
    """Create the pod that deletes the volume's files."""

    pod: Pod


class DeleteRecycler(Struct, frozen=True):
    """Delete the recycler pod, which has ended."""

    pod: Pod


class VerifyClaimDeleted(Struct, frozen=True):
    """The caches show that the volume's claim is gone: read it from the server first."""

    claim: str  # namespace/name


def group_steps(steps: Sequence[T]) -> Iterator[Sequence[T]]:
    """The steps in order; those that may be written concurrently, sharing a commit, are in one group.

    The volume's phase and the claim's volumeName are of different objects, and whichever of them a crash
    leaves out, the next plan writes.
    """
    at = 0
    while at < len(steps):
        pair = isinstance(steps[at], SetVolumePhase) and isinstance(_steps_after(steps, at), SetVolumeName)
        size = 2 if pair else 1
        yield steps[at : at + size]
        at += size


def _steps_after(steps: Sequence[T], at: int) -> T | None:
    return steps[at + 1] if at + 1 < len(steps) else None


ClaimStep = (
    SetClaimRef
    | SetVolumePhase
    | SetVolumeName
    | SetClaimStatus
    | SetDefaultClass
    | SetProvisioner
    | FixMetadata
)
VolumeStep = (
    SetVolumePhase | UnbindVolume | FixMetadata | CreateRecycler | DeleteRecycler | VerifyClaimDeleted
)
