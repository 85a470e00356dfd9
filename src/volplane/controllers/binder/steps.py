"""What the binder can do, one write each, and the patch that each one is.

Binding is four writes, each of which leaves the pair in a state from which the next plan goes on:

    Take        the volume's claimRef names the claim; from here on nobody else gets the volume
    Turn        the volume's phase becomes Bound
    Point       the claim names the volume and is marked as bound
    Settle      the claim's status says Bound, with what the volume offers

The subtle thing: `bound-by-controller` is left only on the side whose pointer was ours, because that is the
side which may be undone later without asking the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.rules.binding import (
    BETA_STORAGE_PROVISIONER,
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    MIGRATED_TO,
    PRE_RESIZE_CAPACITY,
    STORAGE_PROVISIONER,
    YES,
    take,
)
from volplane.rules.steps import Say, Wait

Patch = Mapping[str, Any]


class Take(Struct, frozen=True):
    volume: PersistentVolume
    claim: PersistentVolumeClaim

    @property
    def patch(self) -> Patch:
        return take(self.volume, self.claim)


class Turn(Struct, frozen=True):
    """The volume's phase changes."""

    volume: PersistentVolume
    phase: str
    message: str = ""

    @property
    def patch(self) -> Patch:
        return {"status": {"phase": self.phase, "message": self.message or None}}


class Point(Struct, frozen=True):
    volume: str
    claim: PersistentVolumeClaim

    @property
    def patch(self) -> Patch:
        marks = {BIND_COMPLETED: YES}
        if self.claim.spec.volume_name == self.volume:
            return {"metadata": {"annotations": marks}}
        marks[BOUND_BY_CONTROLLER] = YES
        return {"metadata": {"annotations": marks}, "spec": {"volumeName": self.volume}}


class Settle(Struct, frozen=True):
    """The claim's status changes: Bound to `volume`, or Pending or Lost without one."""

    claim: PersistentVolumeClaim
    phase: str
    volume: PersistentVolume | None = None

    @property
    def patch(self) -> Patch:
        if self.volume is None:
            gone = {"accessModes": None, "capacity": None, "currentVolumeAttributesClassName": None}
            return {"status": {"phase": self.phase, **gone}}
        status: dict[str, Any] = {"phase": self.phase, "accessModes": list(self.volume.spec.access_modes)}
        before = self.claim.status.phase
        # The size is told once. Later the volume may have grown while its file system has not yet.
        if before != self.phase:
            size = self.volume.metadata.annotations.get(PRE_RESIZE_CAPACITY)
            status["capacity"] = {**self.volume.spec.capacity, **({"storage": size} if size else {})}
        if before in ("", "Pending"):
            status["currentVolumeAttributesClassName"] = self.volume.spec.volume_attributes_class_name
        return {"status": status}


class Unbind(Struct, frozen=True):
    """Give the volume back: a pointer of ours goes, one that a user wrote only forgets the uid."""

    volume: PersistentVolume

    @property
    def patch(self) -> Patch:
        if BOUND_BY_CONTROLLER in self.volume.metadata.annotations:
            return {"metadata": {"annotations": {BOUND_BY_CONTROLLER: None}}, "spec": {"claimRef": None}}
        return {"spec": {"claimRef": {"uid": None}}}


class Adopt(Struct, frozen=True):
    """The claim gets a storage class: the default that was not there when the claim was made."""

    claim: PersistentVolumeClaim
    storage_class: str

    @property
    def patch(self) -> Patch:
        return {"spec": {"storageClassName": self.storage_class}}


class HandOff(Struct, frozen=True):
    """The claim asks an external provisioner to act."""

    claim: PersistentVolumeClaim
    driver: str
    migrated: bool = False  # the class named an in-tree plugin

    @property
    def patch(self) -> Patch:
        asked = {STORAGE_PROVISIONER: self.driver, BETA_STORAGE_PROVISIONER: self.driver}
        if self.migrated:
            asked[MIGRATED_TO] = self.driver
        return {"metadata": {"annotations": asked}}


class Amend(Struct, frozen=True):
    """Marks that have to be right before anything else: `migrated-to`, and a volume's finalizers."""

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


class Scrub(Struct, frozen=True):
    """A pod deletes the volume's files."""

    pod: Pod


class Sweep(Struct, frozen=True):
    """The pod that did so has ended, and goes."""

    pod: Pod


class Recheck(Struct, frozen=True):
    """The caches say that the volume's claim is gone: ask the server before believing it."""

    claim: str  # namespace/name


class Wake(Struct, frozen=True):
    """The claim of this volume may be bound now."""

    claim: str


def together(steps: Sequence[ClaimStep]) -> Iterator[Sequence[ClaimStep]]:
    """The steps in the order in which they are acted out, those that may share a commit as one.

    The volume's phase and the claim's pointer are of different objects, and whichever of them a crash leaves
    out, the next plan writes.
    """
    at = 0
    while at < len(steps):
        size = 2 if isinstance(steps[at], Turn) and isinstance(_after(steps, at), Point) else 1
        yield steps[at : at + size]
        at += size


def _after(steps: Sequence[ClaimStep], at: int) -> ClaimStep | None:
    return steps[at + 1] if at + 1 < len(steps) else None


ClaimStep = Take | Turn | Point | Settle | Adopt | HandOff | Amend | Say | Wait
VolumeStep = Turn | Unbind | Amend | Scrub | Sweep | Recheck | Wake | Say | Wait
