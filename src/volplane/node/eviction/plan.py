"""Which pod is evicted from a node whose disk is nearly full, and with which message. Pure.

First pods that use more of the disk than they requested, then by priority, then by usage over their request.
Critical pods stay: without the drivers' pods no volume could be unmounted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from volplane.api import quantity
from volplane.api.annotations import MIRROR_POD_ANNOTATION
from volplane.api.core import Pod, Volume
from volplane.node.admission import Rejection
from volplane.node.eviction.thresholds import AVAILABLE, RESOURCES, CrossedThreshold
from volplane.rules import pods as rules
from volplane.rules import resources

REASON = "Evicted"
CRITICAL = 2_000_000_000  # the priority of system-cluster-critical


class DiskAmount(Struct, frozen=True):
    """Bytes and inodes on the disk."""

    size: int = 0
    inodes: int = 0

    def __add__(self, other: DiskAmount) -> DiskAmount:
        return DiskAmount(self.size + other.size, self.inodes + other.inodes)

    def of(self, measure: str) -> int:
        return self.size if measure == AVAILABLE else self.inodes


class PodDiskUsage(Struct, frozen=True):
    """A pod's usage of the disk."""

    pod: Pod
    logs: Mapping[str, DiskAmount] = {}  # by container
    volumes: Mapping[str, DiskAmount] = {}  # its emptyDirs, by name

    @property
    def total(self) -> DiskAmount:
        return sum((*self.logs.values(), *self.volumes.values()), DiskAmount())


def is_critical(pod: Pod) -> bool:
    return MIRROR_POD_ANNOTATION in pod.metadata.annotations or (pod.spec.priority or 0) >= CRITICAL


def may_be_evicted(pod: Pod) -> bool:
    return not is_critical(pod) and not pod.is_deleting and not rules.has_ended(pod)


def rank(usages: Iterable[PodDiskUsage], measure: str) -> list[PodDiskUsage]:
    """The pods in the order in which they are evicted."""

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
    """The rejection of a pod by a node with disk pressure; None if it may start."""
    if not disk_pressure or is_critical(pod):
        return None
    return Rejection(REASON, "The node had condition: [DiskPressure]. ")


def limited_volumes(pod: Pod) -> list[Volume]:
    """emptyDirs on the disk with a sizeLimit; those in memory are limited by their tmpfs."""
    return [v for v in pod.spec.volumes if v.empty_dir and v.empty_dir.size_limit and not v.empty_dir.medium]


def over_limit(usage: PodDiskUsage) -> str:
    """The message for a pod with an emptyDir over its sizeLimit; "" if there is none."""
    for volume in limited_volumes(usage.pod):
        assert volume.empty_dir is not None
        limit = volume.empty_dir.size_limit or "0"
        if usage.volumes.get(volume.name, DiskAmount()).size > quantity.value(limit):
            return f'Usage of EmptyDir volume "{volume.name}" exceeds the limit "{limit}". '
    return ""
