"""VolumeRestrictions: a ReadWriteOncePod claim is used by one pod in the whole cluster."""

from __future__ import annotations

from volplane.api.core import PersistentVolumeClaim, Pod
from volplane.rules import access, pods
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal, PodRefusal
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

REASON = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by "
    "another pod"
)
IN_USE = NodeRefusal((REASON,), final=False)


def prepare(pod: Pod, snapshot: SchedulingSnapshot) -> NodeCheck | PodRefusal | None:
    taken = False
    for use in pods.claim_uses(pod):
        claim = snapshot.claim(f"{pod.namespace}/{use.claim}")
        if claim is None:
            if use.ephemeral:
                continue  # VolumeBinding has the better message
            return PodRefusal(f'persistentvolumeclaim "{use.claim}" not found')
        taken |= access.is_for_one_pod(claim) and snapshot.node_cache.is_claim_used(claim.key)
    return (lambda info: IN_USE) if taken else None


FILTER = Filter("VolumeRestrictions", prepare, frozenset({Pod, PersistentVolumeClaim}))
