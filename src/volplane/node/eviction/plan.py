"""Which pod leaves a node whose disk is about to be full, and what it is told. Pure.

First those that use more of the disk than they asked for, then the less important, then whoever uses most
over what was asked for. Critical pods stay: without the drivers' own pods no volume could be unmounted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from volplane.api import quantity
from volplane.api.core import Pod, Volume
from volplane.node.admission import Rejection
from volplane.node.eviction.thresholds import AVAILABLE, RESOURCES, CrossedThreshold
from volplane.rules import pods as rules
from volplane.rules import resources

REASON = "Evicted"
MIRROR = "kubernetes.io/config.mirror"
CRITICAL = 2_000_000_000  # the least priority of system-cluster-critical


class DiskAmount(Struct, frozen=True):
    """What something takes of the disk."""

    size: int = 0
    inodes: int = 0

    def __add__(self, other: DiskAmount) -> DiskAmount:
        return DiskAmount(self.size + other.size, self.inodes + other.inodes)

    def of(self, measure: str) -> int:
        return self.size if measure == AVAILABLE else self.inodes


class PodDiskUsage(Struct, frozen=True):
    """What a pod takes of the disk."""

    pod: Pod
    logs: Mapping[str, DiskAmount] = {}  # by container
    volumes: Mapping[str, DiskAmount] = {}  # its emptyDirs, by name

    @property
    def total(self) -> DiskAmount:
        return sum((*self.logs.values(), *self.volumes.values()), DiskAmount())


def is_critical(pod: Pod) -> bool:
    return MIRROR in pod.metadata.annotations or (pod.spec.priority or 0) >= CRITICAL


def may_be_evicted(pod: Pod) -> bool:
    return not is_critical(pod) and not pod.is_deleting and not rules.has_ended(pod)


def rank(usages: Iterable[PodDiskUsage], measure: str) -> list[PodDiskUsage]:
    """Who leaves first comes first."""

    def key(usage: PodDiskUsage) -> tuple[bool, int, int, str]:
        over = usage.total.of(measure) - _storage_request(usage.pod, measure)
        return over <= 0, usage.pod.spec.priority or 0, -over, usage.pod.key

    return sorted(usages, key=key)


def _storage_request(pod: Pod, measure: str) -> int:
    return resources.requests(pod).get(resources.STORAGE, 0) if measure == AVAILABLE else 0


def eviction_message(usage: PodDiskUsage, crossed: CrossedThreshold) -> str:
    measure = crossed.threshold.measure
    resource = RESOURCES[measure]
    least, left = quantity.from_bytes(crossed.least), quantity.from_bytes(crossed.left)
    text = f"The node was low on resource: {resource}. Threshold quantity: {least}, available: {left}. "
    for container in usage.pod.spec.containers:
        asked = container.resources.requests.get(resources.STORAGE, "0") if measure == AVAILABLE else "0"
        used = usage.logs.get(container.name, DiskAmount()).of(measure)
        if used > quantity.value(asked):
            text += (
                f"Container {container.name} was using {quantity.from_bytes(used)}, request is {asked}, "
                f"has larger consumption of {resource}. "
            )
    return text


def check_disk_pressure(pod: Pod, *, disk_pressure: bool) -> Rejection | None:
    """Why a node under pressure does not start a pod."""
    if not disk_pressure or is_critical(pod):
        return None
    return Rejection(REASON, "The node had condition: [DiskPressure]. ")


def limited_volumes(pod: Pod) -> list[Volume]:
    """emptyDirs on the disk that may not grow without end; those in memory are bounded by their size."""
    return [v for v in pod.spec.volumes if v.empty_dir and v.empty_dir.size_limit and not v.empty_dir.medium]


def over_limit(usage: PodDiskUsage) -> str:
    """What a pod is told whose emptyDir is larger than its sizeLimit; "" if none is."""
    for volume in limited_volumes(usage.pod):
        assert volume.empty_dir is not None
        limit = volume.empty_dir.size_limit or "0"
        if usage.volumes.get(volume.name, DiskAmount()).size > quantity.value(limit):
            return f'Usage of EmptyDir volume "{volume.name}" exceeds the limit "{limit}". '
    return ""
