"""An object that is being deleted and stays: who still holds it, by the finalizers that are on it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from volplane.api.meta import Resource
from volplane.explain.result import ExplanationStep, waiting_step

_KNOWN = {
    "kubernetes.io/pvc-protection": ("claim protection", "it goes when no pod uses the claim"),
    "kubernetes.io/pv-protection": ("volume protection", "it goes when the volume is not bound"),
    "external-provisioner.volume.kubernetes.io/finalizer": (
        "csi-provisioner",
        "it goes when the driver has deleted the disk",
    ),
    "kubernetes.io/pv-controller": ("persistent volume binder", "it goes when the disk is deleted"),
    "snapshot.storage.kubernetes.io/pvc-as-source-protection": (
        "snapshot controller",
        "a snapshot of it is being taken",
    ),
    "provisioner.storage.kubernetes.io/cloning-protection": (
        "csi-provisioner",
        "a clone of it is being made",
    ),
    "volplane.dev/provisioning": ("csi-provisioner", "whether its disk was made is not known yet"),
    "foregroundDeletion": ("garbage collector", "what it owns is deleted first"),
    "orphan": ("garbage collector", "what it owns is set free first"),
    "batch.kubernetes.io/job-tracking": ("job controller", "the job has to count the pod first"),
}
_BEGINNINGS = {
    "external-attacher/": ("csi-attacher", "it goes when the disk is detached"),
    "snapshot.storage.kubernetes.io/": ("snapshot controller", "the snapshot is not settled"),
}


def finalizer_steps(
    obj: Resource, since: datetime | None, handled: Sequence[str] = ()
) -> list[ExplanationStep]:
    """One for each finalizer that nobody has spoken of yet."""
    return [_step(name, since) for name in obj.metadata.finalizers if name not in handled]


def _step(finalizer: str, since: datetime | None) -> ExplanationStep:
    known = _KNOWN.get(finalizer) or next(
        (text for start, text in _BEGINNINGS.items() if finalizer.startswith(start)), None
    )
    who, what = known or ("whoever put it there", "nothing here knows when it goes")
    return waiting_step("be deleted", who, f"finalizer {finalizer}: {what}", since=since)
