"""Which claims have to be created for a pod's ephemeral volumes.

Garbage collection deletes them: each is owned by its pod. A claim of that name with another owner is never
taken over, since its data is not the pod's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from volplane.api import names
from volplane.api.core import PersistentVolumeClaim, PersistentVolumeClaimTemplate, Pod
from volplane.api.meta import ObjectMeta
from volplane.rules.pods import ephemeral_conflict, owns
from volplane.rules.workloads import owner_reference


class CreateEphemeralClaim(Struct, frozen=True):
    volume: str
    claim: PersistentVolumeClaim


class ReportClaimConflict(Struct, frozen=True):
    volume: str
    why: str


Step = CreateEphemeralClaim | ReportClaimConflict


def plan(pod: Pod, claims: Mapping[str, PersistentVolumeClaim]) -> Iterator[Step]:
    """Steps for a pod and the claims of its namespace, by name."""
    if pod.is_deleting:
        return
    for volume in pod.spec.volumes:
        template = volume.ephemeral and volume.ephemeral.volume_claim_template
        if not template:
            continue
        held = claims.get(names.ephemeral_claim_name(pod.name, volume.name))
        if held is None:
            yield CreateEphemeralClaim(volume.name, claim_for(pod, volume.name, template))
        elif not owns(pod, held):
            yield ReportClaimConflict(volume.name, ephemeral_conflict(pod, held))


def claim_for(pod: Pod, volume: str, template: PersistentVolumeClaimTemplate) -> PersistentVolumeClaim:
    metadata = ObjectMeta(
        name=names.ephemeral_claim_name(pod.name, volume),
        namespace=pod.namespace,
        labels=template.metadata.labels,
        annotations=template.metadata.annotations,
        owner_references=(owner_reference(pod),),
    )
    return PersistentVolumeClaim(metadata=metadata, spec=template.spec)
