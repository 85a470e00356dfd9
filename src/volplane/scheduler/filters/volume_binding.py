"""VolumeBinding: each claim of the pod has a volume that the node reaches, or can get one there."""

from __future__ import annotations

from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import CSIDriver, CSINode, CSIStorageCapacity, StorageClass
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal, PodRefusal
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot
from volplane.scheduler.volumes import bindings_on, sort_claims


def prepare(pod: Pod, snapshot: SchedulingSnapshot) -> NodeCheck | PodRefusal | None:
    claims = sort_claims(pod, snapshot)
    if isinstance(claims, str):
        return PodRefusal(claims)
    if not claims.bound and not claims.delayed:
        return None

    def check(info: NodeInfo) -> NodeRefusal | None:
        found = bindings_on(info, claims)
        return None if not found.conflicts else NodeRefusal(found.conflicts)

    return check


FILTER = Filter(
    "VolumeBinding",
    prepare,
    frozenset(
        {
            Node,
            PersistentVolumeClaim,
            PersistentVolume,
            StorageClass,
            CSINode,
            CSIDriver,
            CSIStorageCapacity,
        }
    ),
)
