"""An object that is being deleted and still exists: which component has to remove each finalizer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from volplane.api.finalizers import (
    CLONING_PROTECTION_FINALIZER,
    EXTERNAL_PROVISIONER_FINALIZER,
    FLEX_ATTACHMENT_FINALIZER,
    JOB_TRACKING_FINALIZER,
    PROVISIONING_INTENT_FINALIZER,
    PV_CONTROLLER_FINALIZER,
    PV_PROTECTION_FINALIZER,
    PVC_AS_SOURCE_FINALIZER,
    PVC_PROTECTION_FINALIZER,
)
from volplane.api.meta import Resource
from volplane.explain.result import ExplanationStep, waiting_step

_KNOWN = {
    PVC_PROTECTION_FINALIZER: ("claim protection", "removed when no pod uses the claim"),
    PV_PROTECTION_FINALIZER: ("volume protection", "removed when the volume is not bound"),
    EXTERNAL_PROVISIONER_FINALIZER: (
        "csi-provisioner",
        "removed when the driver has deleted the disk",
    ),
    PV_CONTROLLER_FINALIZER: ("persistent volume binder", "removed when the disk is deleted"),
    PVC_AS_SOURCE_FINALIZER: (
        "snapshot controller",
        "a snapshot of it is being taken",
    ),
    CLONING_PROTECTION_FINALIZER: (
        "csi-provisioner",
        "a clone of it is being created",
    ),
    PROVISIONING_INTENT_FINALIZER: (
        "csi-provisioner",
        "removed a moment after it is known whether the disk was created",
    ),
    FLEX_ATTACHMENT_FINALIZER: ("FlexVolume driver", "removed when the volume is detached"),
    "foregroundDeletion": ("garbage collector", "its dependents are deleted first"),
    "orphan": ("garbage collector", "its dependents are orphaned first"),
    JOB_TRACKING_FINALIZER: ("job controller", "the job has not counted the pod yet"),
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


def describe_finalizer(finalizer: str) -> tuple[str, str]:
    """Who removes it, and when."""
    known = _KNOWN.get(finalizer) or next(
        (text for prefix, text in _PREFIXES.items() if finalizer.startswith(prefix)), None
    )
    return known or ("the component that added it", "not a finalizer of Kubernetes or of this project")


def _step(finalizer: str, since: datetime | None) -> ExplanationStep:
    who, what = describe_finalizer(finalizer)
    return waiting_step("be deleted", who, f"finalizer {finalizer}: {what}", since=since)
