"""Claims and volumes: which belongs to which, and the marks that controllers leave on them.

The subtle thing: a volume names its claim by uid, and only a uid binds. A claimRef without one is a
reservation by hand; a claimRef with the uid of a claim that is gone never matches the new claim of the same
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volplane.api.core import PersistentVolume, PersistentVolumeClaim

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
BETA_STORAGE_PROVISIONER = "volume.beta.kubernetes.io/storage-provisioner"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
MIGRATED_TO = "pv.kubernetes.io/migrated-to"
BETA_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class"
PRE_RESIZE_CAPACITY = "volume.alpha.kubernetes.io/pre-resize-capacity"
YES = "yes"

CLAIM_PROTECTION = "kubernetes.io/pvc-protection"
VOLUME_PROTECTION = "kubernetes.io/pv-protection"
ATTRIBUTES_PROTECTION = "kubernetes.io/vac-protection"
IN_TREE_FINALIZER = "kubernetes.io/pv-controller"
EXTERNAL_FINALIZER = "external-provisioner.volume.kubernetes.io/finalizer"


def claim_class(claim: PersistentVolumeClaim) -> str | None:
    """The class a claim asks for; None when it leaves the choice to the default, "" when it wants none."""
    beta = claim.metadata.annotations.get(BETA_STORAGE_CLASS)
    return beta if beta is not None else claim.spec.storage_class_name


def volume_class(volume: PersistentVolume) -> str:
    beta = volume.metadata.annotations.get(BETA_STORAGE_CLASS)
    return beta if beta is not None else volume.spec.storage_class_name


def claim_key(volume: PersistentVolume) -> str:
    """`namespace/name` of the claim that the volume's claimRef names, or ""."""
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
    """The claim's first binding is finished: it names its volume, and the binder has said so."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def is_pair(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    """Bound, and both sides agree: what may be attached and mounted."""
    ref = volume.spec.claim_ref
    return (
        claim.status.phase == "Bound"
        and claim.spec.volume_name == volume.name
        and ref is not None
        and ref.uid == claim.uid
    )


def reference(claim: PersistentVolumeClaim) -> dict[str, str]:
    """How a volume names its claim."""
    return {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.uid,
        "resourceVersion": claim.metadata.resource_version,
    }


def claim_ref_patch(volume: PersistentVolume, claim: PersistentVolumeClaim) -> dict[str, Any]:
    """The patch that gives a volume to a claim, marked as ours unless the volume was meant for it before."""
    patch: dict[str, Any] = {"spec": {"claimRef": reference(claim)}}
    if not is_for(volume, claim):
        patch["metadata"] = {"annotations": {BOUND_BY_CONTROLLER: YES}}
    return patch


def requested_provisioner(annotations: Mapping[str, str]) -> str:
    """Who was asked to make the claim's volume; the beta spelling counts only where the other is absent."""
    asked = annotations.get(STORAGE_PROVISIONER)
    return asked if asked is not None else annotations.get(BETA_STORAGE_PROVISIONER, "")
