"""Claims and volumes: which belongs to which, and the annotations that controllers write on them.

A volume refers to its claim by uid, and only a uid binds. A claimRef without a uid is a reservation by a
user; a claimRef with the uid of a deleted claim never matches a new claim of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volplane.api.annotations import (
    BETA_STORAGE_CLASS_ANNOTATION,
    BETA_STORAGE_PROVISIONER_ANNOTATION,
    BIND_COMPLETED_ANNOTATION,
    BOUND_BY_CONTROLLER_ANNOTATION,
    STORAGE_PROVISIONER_ANNOTATION,
)
from volplane.api.core import PersistentVolume, PersistentVolumeClaim

YES = "yes"


def claim_class(claim: PersistentVolumeClaim) -> str | None:
    """The class of a claim; None: the default class, "": no class."""
    beta = claim.metadata.annotations.get(BETA_STORAGE_CLASS_ANNOTATION)
    return beta if beta is not None else claim.spec.storage_class_name


def volume_class(volume: PersistentVolume) -> str:
    beta = volume.metadata.annotations.get(BETA_STORAGE_CLASS_ANNOTATION)
    return beta if beta is not None else volume.spec.storage_class_name


def claim_key(volume: PersistentVolume) -> str:
    """`namespace/name` of the claim in the volume's claimRef, or ""."""
    ref = volume.spec.claim_ref
    return f"{ref.namespace}/{ref.name}" if ref is not None else ""


def is_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """The volume's claimRef names this claim: by name, with its uid or with none."""
    ref = volume.spec.claim_ref
    return (
        ref is not None
        and ref.name == claim.name
        and ref.namespace == claim.namespace
        and ref.uid in ("", claim.uid)
    )


def is_free_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    return volume.spec.claim_ref is None or is_for(volume, claim)


def is_bound(claim: PersistentVolumeClaim) -> bool:
    """Whether the binding was completed once: the claim names its volume and has bind-completed."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED_ANNOTATION in claim.metadata.annotations


def is_pair(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    """Whether both are bound to each other: only then the volume may be attached and mounted."""
    ref = volume.spec.claim_ref
    return (
        claim.status.phase == "Bound"
        and claim.spec.volume_name == volume.name
        and ref is not None
        and ref.uid == claim.uid
    )


def reference(claim: PersistentVolumeClaim) -> dict[str, str]:
    """The claimRef for a claim."""
    return {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.uid,
        "resourceVersion": claim.metadata.resource_version,
    }


def claim_ref_patch(volume: PersistentVolume, claim: PersistentVolumeClaim) -> dict[str, Any]:
    """The patch that sets the claimRef, annotated as ours unless the volume was reserved for the claim."""
    patch: dict[str, Any] = {"spec": {"claimRef": reference(claim)}}
    if not is_for(volume, claim):
        patch["metadata"] = {"annotations": {BOUND_BY_CONTROLLER_ANNOTATION: YES}}
    return patch


def requested_provisioner(annotations: Mapping[str, str]) -> str:
    """The provisioner in the claim's annotations; the beta annotation counts only without the other."""
    asked = annotations.get(STORAGE_PROVISIONER_ANNOTATION)
    return asked if asked is not None else annotations.get(BETA_STORAGE_PROVISIONER_ANNOTATION, "")
