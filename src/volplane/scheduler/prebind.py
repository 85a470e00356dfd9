"""PreBind: the volumes of a pod have to be bound before the pod is bound to its node.

After the decision is written (claimRefs of volumes, selected nodes of claims), the binder and the provisioner
act. This module decides whether they have finished, are still working, or have given up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim
from volplane.rules import topology
from volplane.rules.binding import is_bound

FAILED = 'running PreBind plugin "VolumeBinding": binding volumes: {}'
TIMED_OUT = "context deadline exceeded"
NO_TERM = "no matching NodeSelectorTerms"


class BindingReady(Struct, frozen=True):
    """Every claim is bound."""


class BindingInProgress(Struct, frozen=True):
    claim: str  # the first one that is not bound yet


class BindingAborted(Struct, frozen=True):
    why: str


class ClaimBinding(Struct, frozen=True):
    """A claim of the pod as the cache shows it, and the volume that it names or that was chosen for it."""

    name: str
    claim: PersistentVolumeClaim | None
    volume: PersistentVolume | None = None
    assumed_volume: str = ""  # the volume that was chosen for it; "": one is to be provisioned


def check_binding(
    node: Node, pairs: Sequence[ClaimBinding]
) -> BindingReady | BindingInProgress | BindingAborted:
    name, labels = node.name, node.metadata.labels
    waits = ""
    for pair in pairs:
        trouble = _find_conflict(name, labels, pair)
        if trouble:
            return BindingAborted(trouble)
        if pair.claim is None or not is_bound(pair.claim) or pair.volume is None:
            waits = waits or pair.name
    if not waits:
        return BindingReady()
    return BindingInProgress(waits)


def _find_conflict(node: str, labels: Mapping[str, str], pair: ClaimBinding) -> str:
    claim, volume = pair.claim, pair.volume
    if claim is None:
        return f'persistentvolumeclaim "{pair.name}" not found'
    if pair.assumed_volume:
        ref = volume.spec.claim_ref if volume is not None else None
        if volume is None or ref is None or not ref.uid:
            return f'ClaimRef got reset for pv "{pair.assumed_volume}"'
    elif not claim.metadata.annotations:
        return f'selectedNode annotation reset for PVC "{pair.name}"'
    elif claim.metadata.annotations.get(SELECTED_NODE_ANNOTATION) != node:
        return f'provisioning failed for PVC "{pair.name}"'
    if volume is not None and not topology.is_reachable_from(volume, labels):
        return f'pv "{volume.name}" node affinity doesn\'t match node "{node}": {NO_TERM}'
    return ""
