"""Pods and their volumes: which claims a pod uses, and when it has released them.

A terminating pod uses its volumes while one of its containers may run. A pod that never reported a container
runs none.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from volplane.api import names
from volplane.api.core import Container, EphemeralContainer, PersistentVolumeClaim, Pod

ENDED = ("Succeeded", "Failed")


class PodClaimUse(Struct, frozen=True):
    """How a pod uses one claim."""

    volume: str  # the volume's name inside the pod
    claim: str
    ephemeral: bool = False  # created for this pod and owned by it
    read_only: bool = False


def claim_uses(pod: Pod) -> Iterator[PodClaimUse]:
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            source = volume.persistent_volume_claim
            yield PodClaimUse(volume.name, source.claim_name, read_only=source.read_only)
        elif volume.ephemeral is not None:
            yield PodClaimUse(volume.name, names.ephemeral_claim_name(pod.name, volume.name), ephemeral=True)


def containers(pod: Pod) -> Iterator[Container | EphemeralContainer]:
    """All containers, in the order in which they start."""
    yield from pod.spec.init_containers
    yield from pod.spec.containers
    yield from pod.spec.ephemeral_containers


def claim_keys(pod: Pod) -> list[str]:
    """`namespace/name` of every claim that the pod uses; also an index function."""
    return [f"{pod.namespace}/{use.claim}" for use in claim_uses(pod)]


def node_of(pod: Pod) -> list[str]:
    """The node that the pod is on; an index function."""
    return [pod.spec.node_name] if pod.spec.node_name else []


def has_ended(pod: Pod) -> bool:
    return pod.status.phase in ENDED


def has_released_volumes(pod: Pod) -> bool:
    """Whether the pod cannot use its volumes any more: it ended, or it terminates and no container runs."""
    return has_ended(pod) or (pod.is_deleting and not _may_run(pod))


def _may_run(pod: Pod) -> bool:
    status = pod.status
    everything = (
        *status.init_container_statuses,
        *status.container_statuses,
        *status.ephemeral_container_statuses,
    )
    # A state without members means waiting.
    return any(c.state.running is not None for c in everything)


def owns(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    return any(ref.controller and ref.uid == pod.uid for ref in claim.metadata.owner_references)


def ephemeral_conflict(pod: Pod, claim: PersistentVolumeClaim) -> str:
    """Upstream's message if the claim of an ephemeral volume was created for another owner."""
    return f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)"
