"""VolumeBinding: every claim of the pod has a volume that reaches the node, or can get one there."""

from __future__ import annotations

from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import CSIDriver, CSINode, CSIStorageCapacity, StorageClass
from volplane.scheduler.filters.base import Check, Filter, No, Unfit
from volplane.scheduler.ledger import Info
from volplane.scheduler.volumes import bindings_on, sort_claims
from volplane.scheduler.world import World


def prepare(pod: Pod, world: World) -> Check | Unfit | None:
    claims = sort_claims(pod, world)
    if isinstance(claims, str):
        return Unfit(claims)
    if not claims.bound and not claims.delayed:
        return None

    def check(info: Info) -> No | None:
        found = bindings_on(info, claims)
        return None if not found.conflicts else No(found.conflicts)

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
