"""An object that is being deleted and still exists: which component holds it, by its finalizers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from volplane.api.meta import Resource
from volplane.explain.result import ExplanationStep, waiting_step

_KNOWN = {
    "kubernetes.io/pvc-protection": ("claim protection", "removed when no pod uses the claim"),
    "kubernetes.io/pv-protection": ("volume protection", "removed when the volume is not bound"),
    "external-provisioner.volume.kubernetes.io/finalizer": (
        "csi-provisioner",
        "removed when the driver has deleted the disk",
    ),
    "kubernetes.io/pv-controller": ("persistent volume binder", "removed when the disk is deleted"),
    "snapshot.storage.kubernetes.io/pvc-as-source-protection": (
        "snapshot controller",
        "a snapshot of it is being taken",
    ),
    "provisioner.storage.kubernetes.io/cloning-protection": (
        "csi-provisioner",
        "a clone of it is being created",
    ),
    "volplane.dev/provisioning": ("csi-provisioner", "it is not known yet whether its disk was created"),
    "foregroundDeletion": ("garbage collector", "its dependents are deleted first"),
    "orphan": ("garbage collector", "its dependents are orphaned first"),
    "batch.kubernetes.io/job-tracking": ("job controller", "the job has not counted the pod yet"),
}
ATTACHER_PREFIX = "external-attacher/"
_PREFIXES = {
    ATTACHER_PREFIX: ("csi-attacher", "removed when the disk is detached"),
    "snapshot.storage.kubernetes.io/": ("snapshot controller", "the snapshot is not finished"),
}


def finalizer_steps(
    obj: Resource, since: datetime | None, handled: Sequence[str] = ()
) -> list[ExplanationStep]:
    """A step for each finalizer that is not explained elsewhere."""
    return [_step(name, since) for name in obj.metadata.finalizers if name not in handled]


def _step(finalizer: str, since: datetime | None) -> ExplanationStep:
    known = _KNOWN.get(finalizer) or next(
        (text for prefix, text in _PREFIXES.items() if finalizer.startswith(prefix)), None
    )
    who, what = known or ("the component that added it", "not a finalizer of Kubernetes or of this project")
    return waiting_step("be deleted", who, f"finalizer {finalizer}: {what}", since=since)
