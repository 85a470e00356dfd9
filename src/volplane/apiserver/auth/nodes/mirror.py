"""Checks of mirror pods, which show a node's static pods: owned by the node, without references."""

from __future__ import annotations

from volplane.api.annotations import MIRROR_POD_ANNOTATION
from volplane.api.core import Pod, Volume, VolumeProjection
from volplane.apiserver.auth.nodes import references

_VOLUME_REFERENCES = {  # volumes that make a kubelet read API objects, and which objects
    "config_map": "configmaps (via configmap volumes)",
    "secret": "secrets (via secret volumes)",
    "csi": "csidrivers (via CSI volumes)",
    "glusterfs": "endpoints (via glusterFS volumes)",
    "persistent_volume_claim": "persistentvolumeclaims",
    "ephemeral": "persistentvolumeclaims (via ephemeral volumes)",
    "azure_file": "secrets (via azureFile volumes)",
}
_PROJECTION_REFERENCES = {
    "config_map": "configmaps (via projected volumes)",
    "secret": "secrets (via projected volumes)",
    "service_account_token": "serviceaccounts (via projected volumes)",
    "cluster_trust_bundle": "clustertrustbundles",
    "pod_certificate": "podcertificates",
}


def mirror_pod_error(pod: Pod, node: str) -> str:
    """Return why a node may not create this pod, or "". `restriction` has the checks that read objects."""
    subject = f'node "{node}"'
    if MIRROR_POD_ANNOTATION not in pod.metadata.annotations:
        return (
            f'pod does not have "{MIRROR_POD_ANNOTATION}" annotation, {subject} can only create mirror pods'
        )
    if pod.spec.node_name != node:
        return f"{subject} can only create pods with spec.nodeName set to itself"
    owners = pod.metadata.owner_references
    if len(owners) > 1:
        return f"{subject} can only create pods with a single owner reference set to itself"
    if not owners or (owners[0].api_version, owners[0].kind, owners[0].name) != ("v1", "Node", node):
        return f"{subject} can only create pods with an owner reference set to itself"
    if not owners[0].controller:
        return f"{subject} can only create pods with a controller owner reference set to itself"
    if owners[0].block_owner_deletion:
        return f"{subject} must not set blockOwnerDeletion on an owner reference"
    return ""


def first_reference(pod: Pod) -> str:
    """Return the first kind of objects that the pod references, as the error message names it."""
    if pod.spec.service_account_name:
        return "serviceaccounts"
    if any(references.secrets(pod)):
        return "secrets"
    if any(references.config_maps(pod)):
        return "configmaps"
    if pod.spec.resource_claims:
        return "resourceclaims"
    return next((what for what in map(_by_volume, pod.spec.volumes) if what), "")


def _by_volume(volume: Volume) -> str:
    for field, what in _VOLUME_REFERENCES.items():
        if getattr(volume, field) is not None:
            return what
    sources = volume.projected.sources if volume.projected is not None else ()
    return next((what for what in map(_by_source, sources) if what), "")


def _by_source(source: VolumeProjection) -> str:
    return next(
        (what for field, what in _PROJECTION_REFERENCES.items() if getattr(source, field) is not None), ""
    )
