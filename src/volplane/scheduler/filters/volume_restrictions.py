"""VolumeRestrictions: a ReadWriteOncePod claim is one pod's, in the whole cluster."""

from __future__ import annotations

from volplane.api.core import PersistentVolumeClaim, Pod
from volplane.rules import access, pods
from volplane.scheduler.filters.base import Check, Filter, No, Unfit
from volplane.scheduler.world import World

REASON = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by "
    "another pod"
)
IN_USE = No((REASON,), final=False)


def prepare(pod: Pod, world: World) -> Check | Unfit | None:
    taken = False
    for use in pods.uses(pod):
        claim = world.claim(f"{pod.namespace}/{use.claim}")
        if claim is None:
            if use.ephemeral:
                continue  # VolumeBinding says it better
            return Unfit(f'persistentvolumeclaim "{use.claim}" not found')
        taken |= access.is_for_one_pod(claim) and world.ledger.is_claim_used(claim.key)
    return (lambda info: IN_USE) if taken else None


FILTER = Filter("VolumeRestrictions", prepare, frozenset({Pod, PersistentVolumeClaim}))
