"""What containers use, from the runtime, in the form of the kubelet's Summary API (`/stats/summary`)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, Struct, UnsetType

from volplane.base import clock
from volplane.node.containers.cri import labels, v1
from volplane.node.containers.cri.client import CriClient, CriError


class CpuStats(Struct, frozen=True, rename="camel"):
    time: str
    usage_nano_cores: int | UnsetType = UNSET
    usage_core_nano_seconds: int | UnsetType = UNSET


class MemoryStats(Struct, frozen=True, rename="camel"):
    time: str
    usage_bytes: int | UnsetType = UNSET
    working_set_bytes: int | UnsetType = UNSET
    rss_bytes: int | UnsetType = UNSET


class RootfsUsage(Struct, frozen=True, rename="camel"):
    time: str
    used_bytes: int | UnsetType = UNSET
    inodes_used: int | UnsetType = UNSET


class ContainerUsage(Struct, frozen=True, rename="camel"):
    name: str
    cpu: CpuStats
    memory: MemoryStats
    rootfs: RootfsUsage


class PodReference(Struct, frozen=True):
    name: str
    namespace: str
    uid: str


class PodContainersUsage(Struct, frozen=True, rename="camel"):
    pod_ref: PodReference
    containers: tuple[ContainerUsage, ...]


class NodeReference(Struct, frozen=True, rename="camel"):
    node_name: str


class StatsSummary(Struct, frozen=True):
    node: NodeReference
    pods: tuple[PodContainersUsage, ...]


class RuntimeStats:
    def __init__(self, cri: CriClient, node: str, root: str) -> None:
        self._cri, self._node, self._root = cri, node, root

    async def read_summary(self) -> bytes:
        """The usage of the node's containers as JSON; no pods while the runtime does not answer."""
        try:
            found = await self._cri.list_stats(labels.node_labels(self._root))
        except CriError:
            found = []
        return msgspec.json.encode(StatsSummary(NodeReference(self._node), tuple(group_by_pod(found))))


def group_by_pod(stats: Iterable[v1.ContainerStats]) -> list[PodContainersUsage]:
    pods: dict[PodReference, list[ContainerUsage]] = {}
    for each in stats:
        own = each.attributes.labels
        pod = PodReference(own[labels.POD_NAME], own[labels.POD_NAMESPACE], own[labels.POD_UID])
        pods.setdefault(pod, []).append(_convert(each))
    return [PodContainersUsage(pod, tuple(containers)) for pod, containers in pods.items()]


def _convert(stats: v1.ContainerStats) -> ContainerUsage:
    cpu, memory, files = stats.cpu, stats.memory, stats.writable_layer
    return ContainerUsage(
        stats.attributes.metadata.name,
        CpuStats(
            _stamp(cpu.timestamp), _read(cpu, "usage_nano_cores"), _read(cpu, "usage_core_nano_seconds")
        ),
        MemoryStats(
            _stamp(memory.timestamp),
            _read(memory, "usage_bytes"),
            _read(memory, "working_set_bytes"),
            _read(memory, "rss_bytes"),
        ),
        RootfsUsage(_stamp(files.timestamp), _read(files, "used_bytes"), _read(files, "inodes_used")),
    )


def _read(usage: v1.CpuUsage | v1.MemoryUsage | v1.FilesystemUsage, name: str) -> int | UnsetType:
    """A value that the runtime may not tell."""
    return int(getattr(usage, name).value) if usage.HasField(name) else UNSET


def _stamp(nanoseconds: int) -> str:
    return clock.stamp(datetime.fromtimestamp(nanoseconds / 1e9, UTC))
