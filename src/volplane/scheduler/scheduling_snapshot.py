"""What filters may read: the node cache and lookups into the caches.

Lookups include what this scheduler has decided and the caches do not show yet (a volume reserved for a claim,
a selected node).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.policy import PodDisruptionBudget
from volplane.api.storage import CSIDriver, CSINode, CSIStorageCapacity, StorageClass
from volplane.scheduler.node_cache import NodeCache


class SchedulingSnapshot(Struct, frozen=True):
    node_cache: NodeCache
    claim: Callable[[str], PersistentVolumeClaim | None]  # by namespace/name
    volume: Callable[[str], PersistentVolume | None]
    unclaimed: Callable[[str], Iterable[PersistentVolume]]  # by class: neither claimed nor assumed
    reserved: Callable[[str], Iterable[PersistentVolume]]  # by namespace/name of the claim in their claimRef
    storage_class: Callable[[str], StorageClass | None]
    driver: Callable[[str], CSIDriver | None]
    csi_node: Callable[[str], CSINode | None]
    capacities: Callable[[str], Iterable[CSIStorageCapacity]]  # by class
    attached: Callable[[str], Iterable[str]]  # by node: names of volumes with a VolumeAttachment
    budgets: Callable[[str], Iterable[PodDisruptionBudget]] = lambda namespace: ()
