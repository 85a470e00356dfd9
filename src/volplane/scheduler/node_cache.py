"""The allocatable and requested resources of each node, updated pod by pod.

Adding up a node's pods for every decision would cost pods times nodes; here a decision reads sums. A pod is
added when its node is decided (assumed), and again when the caches show it, which replaces the first entry.
Pods may be known before their node is, and stay when it is deleted.

Pods for which others were evicted are nominated to their node: pods of lower or equal priority cannot use
what they need there. A decision that tries something out uses a `NodeCacheOverlay`; the cache itself does not
change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct, structs

from volplane.api.core import Node, Pod, Taint
from volplane.rules import pods, resources
from volplane.rules.csi_translation import find_csi_source, list_inline_volumes
from volplane.rules.host_ports import Port, host_ports
from volplane.scheduler.pod_affinity_index import (
    CombinedPodSelector,
    IndexedPod,
    NamespaceLabels,
    PodAffinityIndex,
    PodAffinityIndexOverlay,
    index_pod,
)

# The usage of a pod without requests, when nodes are compared.
DEFAULT_CPU_REQUEST = 100
DEFAULT_MEMORY_REQUEST = 200 << 20

X = TypeVar("X", bound=Hashable)
Disk = tuple[str, str]  # CSI driver, volume handle


class PodUsage(Struct, frozen=True):
    """The resources that one pod uses on its node."""

    indexed_pod: IndexedPod
    requests: Mapping[str, int]
    ports: tuple[Port, ...]
    claims: tuple[str, ...]  # namespace/name
    inline_disks: tuple[Disk, ...] = ()  # volumes without a claim that a CSI driver attaches

    @property
    def pod(self) -> Pod:
        return self.indexed_pod.pod

    @property
    def cpu(self) -> int:
        return self.requests.get(resources.CPU) or DEFAULT_CPU_REQUEST

    @property
    def memory(self) -> int:
        return self.requests.get(resources.MEMORY) or DEFAULT_MEMORY_REQUEST


def compute_pod_usage(pod: Pod) -> PodUsage:
    return PodUsage(
        index_pod(pod),
        resources.requests(pod),
        host_ports(pod),
        tuple(pods.claim_keys(pod)),
        inline_disks(pod),
    )


def inline_disks(pod: Pod) -> tuple[Disk, ...]:
    sources = (find_csi_source(volume) for volume in list_inline_volumes(pod))
    return tuple((source.driver, source.volume_handle) for source in sources if source is not None)


def priority_of(pod: Pod) -> int:
    return pod.spec.priority or 0


class NodeInfo:
    """A node as filters see it."""

    __slots__ = (
        "allocatable",
        "claims",
        "cpu",
        "inline_disks",
        "labels",
        "memory",
        "name",
        "node",
        "pods",
        "ports",
        "priorities",
        "requested",
        "taints",
        "unschedulable",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.node: Node | None = None
        self.labels: Mapping[str, str] = {}
        self.taints: tuple[Taint, ...] = ()
        self.unschedulable = False
        self.allocatable: Mapping[str, int] = {}
        self.pods: dict[str, PodUsage] = {}
        self.requested: Counter[str] = Counter()
        self.ports: Counter[Port] = Counter()
        self.claims: Counter[str] = Counter()
        self.inline_disks: Counter[Disk] = Counter()
        self.priorities: Counter[int] = Counter()
        self.cpu = self.memory = 0

    def set_node(self, node: Node | None) -> None:
        self.node = node
        self.labels = node.metadata.labels if node else {}
        self.taints = node.spec.taints if node else ()
        self.unschedulable = node.spec.unschedulable if node else False
        self.allocatable = resources.allocatable(node) if node else {}

    def copy(self) -> NodeInfo:
        made = NodeInfo(self.name)
        made.node, made.labels, made.taints = self.node, self.labels, self.taints
        made.unschedulable, made.allocatable = self.unschedulable, self.allocatable
        made.pods, made.requested, made.ports = dict(self.pods), self.requested.copy(), self.ports.copy()
        made.claims, made.priorities = self.claims.copy(), self.priorities.copy()
        made.inline_disks = self.inline_disks.copy()
        made.cpu, made.memory = self.cpu, self.memory
        return made

    def add_pod(self, key: str, taken: PodUsage) -> None:
        self.pods[key] = taken
        self.requested.update(taken.requests)
        self.ports.update(taken.ports)
        self.claims.update(taken.claims)
        self.inline_disks.update(taken.inline_disks)
        self.priorities[priority_of(taken.pod)] += 1
        self.cpu += taken.cpu
        self.memory += taken.memory

    def remove_pod(self, key: str) -> PodUsage:
        taken = self.pods.pop(key)
        self.requested.subtract(taken.requests)
        _subtract(self.ports, taken.ports)
        _subtract(self.claims, taken.claims)
        _subtract(self.inline_disks, taken.inline_disks)
        _subtract(self.priorities, (priority_of(taken.pod),))
        self.cpu -= taken.cpu
        self.memory -= taken.memory
        return taken


def _subtract(counts: Counter[X], values: Iterable[X]) -> None:
    """Like Counter.subtract, without keeping zeros: these counters are read as sets."""
    for value in values:
        counts[value] -= 1
        if not counts[value]:
            del counts[value]


class NodeCache:
    def __init__(self, namespace_labels: NamespaceLabels = lambda name: {}) -> None:
        self._infos: dict[str, NodeInfo] = {}
        self._where: dict[str, str] = {}  # pod → node
        self._claims: Counter[str] = Counter()  # claims of pods that have a node
        self._nodes: list[NodeInfo] | None = None
        self._nominated: dict[str, tuple[Pod, str]] = {}
        self.affinity_index = PodAffinityIndex(namespace_labels)

    @property
    def nodes(self) -> list[NodeInfo]:
        """All nodes that exist, sorted by name. The list is replaced, never changed."""
        if self._nodes is None:
            there = (info for info in self._infos.values() if info.node is not None)
            self._nodes = sorted(there, key=lambda info: info.name)
        return self._nodes

    def find_node(self, name: str) -> NodeInfo | None:
        info = self._infos.get(name)
        return info if info is not None and info.node is not None else None

    def node_info(self, name: str) -> NodeInfo:
        """The node, even if only its pods are known; an empty one if nothing is."""
        return self._infos.get(name) or NodeInfo(name)

    def is_claim_used(self, key: str) -> bool:
        return self.claim_users(key) > 0

    def claim_users(self, key: str) -> int:
        """The number of placed pods that use the claim."""
        return self._claims[key]

    def labels(self, node: str) -> Mapping[str, str]:
        info = self._infos.get(node)
        return info.labels if info is not None else {}

    def put_node(self, node: Node) -> None:
        info = self._get_or_add(node.name)
        if info.node is None:
            self._nodes = None
        info.set_node(node)

    def drop_node(self, name: str) -> None:
        info = self._infos.get(name)
        if info is None:
            return
        info.set_node(None)
        self._nodes = None
        self._drop_if_empty(info)

    def put_pod(self, pod: Pod, node: str) -> None:
        if pod.key in self._where:
            held = self._infos[node].pods.get(pod.key) if self._where[pod.key] == node else None
            if held is not None and held.pod.uid == pod.uid:
                self._update_pod(held, pod, node)
                return
            self.drop_pod(pod.key)
        self._add_usage(compute_pod_usage(pod), node)

    def _update_pod(self, held: PodUsage, pod: Pod, node: str) -> None:
        """The usage of a placed pod does not change; its labels may, and it may begin to terminate."""
        before = held.pod
        who = structs.replace(held.indexed_pod, pod=pod)
        self._infos[node].pods[pod.key] = structs.replace(held, indexed_pod=who)
        if before.metadata.labels != pod.metadata.labels or before.is_deleting != pod.is_deleting:
            self.affinity_index.remove_pod(held.indexed_pod, node)
            self.affinity_index.add_pod(who, node)

    def _add_usage(self, taken: PodUsage, node: str) -> None:
        self._get_or_add(node).add_pod(taken.pod.key, taken)
        self._where[taken.pod.key] = node
        self._claims.update(taken.claims)
        self.affinity_index.add_pod(taken.indexed_pod, node)

    def drop_pod(self, key: str) -> bool:
        """Remove the pod; True if it was on a node."""
        node = self._where.pop(key, None)
        if node is None:
            return False
        info = self._infos[node]
        taken = info.remove_pod(key)
        _subtract(self._claims, taken.claims)
        self.affinity_index.remove_pod(taken.indexed_pod, node)
        self._drop_if_empty(info)
        return True

    # --- nominated pods

    def nominate(self, pod: Pod, node: str) -> None:
        self._nominated[pod.key] = pod, node

    def remove_nomination(self, key: str) -> None:
        self._nominated.pop(key, None)

    def nominated_node(self, key: str) -> str:
        """The node that the pod is nominated to; "" for none."""
        return self._nominated[key][1] if key in self._nominated else ""

    def nominated_on(self, node: str) -> list[str]:
        """Pods that are nominated to the node."""
        return [key for key, (_, where) in self._nominated.items() if where == node]

    def node_of_pod(self, key: str) -> str:
        return self._where.get(key, "")

    def with_nominated(self, pod: Pod) -> NodeCache:
        """The cache with the nominated pods that this one may not preempt; mostly there are none."""
        own = priority_of(pod)
        nominated = [
            (other, node)
            for other, node in self._nominated.values()
            if other.key != pod.key and other.key not in self._where and priority_of(other) >= own
        ]
        if not nominated:
            return self
        made = NodeCacheOverlay(self)
        for other, node in nominated:
            made.add_pod(compute_pod_usage(other), node)
        return made

    # --- counting pods

    def count_pods(self, group: CombinedPodSelector) -> Mapping[str, int]:
        """The number of matching pods, by node."""
        return self.affinity_index.count_pods(group, self._placed_pods())

    def _placed_pods(self) -> Iterator[tuple[Pod, str]]:
        for name, info in self._infos.items():
            for taken in info.pods.values():
                yield taken.pod, name

    def count_by_domain(self, counts: Mapping[str, int], key: str) -> Counter[str]:
        """Sum counts by node into counts by the value of a node label."""
        found: Counter[str] = Counter()
        for name, count in counts.items():
            value = self.labels(name).get(key)
            if value is not None:
                found[value] += count
        return found

    def __iter__(self) -> Iterator[NodeInfo]:
        return iter(self.nodes)

    def _get_or_add(self, name: str) -> NodeInfo:
        info = self._infos.get(name)
        if info is None:
            info = self._infos[name] = NodeInfo(name)
        return info

    def _drop_if_empty(self, info: NodeInfo) -> None:
        if info.node is None and not info.pods:
            del self._infos[info.name]


class NodeCacheOverlay(NodeCache):
    """A node cache with some pods added or removed, for a decision that tries them out.

    Only nodes that change are copied; the cache below does not change.
    """

    def __init__(self, base: NodeCache) -> None:
        super().__init__()
        self._base = base
        self._overlay = PodAffinityIndexOverlay(base.affinity_index)
        self.affinity_index = self._overlay

    def add_pod(self, taken: PodUsage, node: str) -> None:
        self._copy_node(node).add_pod(taken.pod.key, taken)
        self._claims.update(taken.claims)
        self.affinity_index.add_pod(taken.indexed_pod, node)

    def remove_pod(self, key: str, node: str) -> PodUsage:
        taken = self._copy_node(node).remove_pod(key)
        self._claims.subtract(taken.claims)
        self.affinity_index.remove_pod(taken.indexed_pod, node)
        return taken

    def _copy_node(self, name: str) -> NodeInfo:
        info = self._infos.get(name)
        if info is None:
            info = self._infos[name] = self._base.node_info(name).copy()
            self._nodes = None
        return info

    @property
    def nodes(self) -> list[NodeInfo]:
        if self._nodes is None:
            self._nodes = [self._infos.get(info.name, info) for info in self._base.nodes]
        return self._nodes

    def find_node(self, name: str) -> NodeInfo | None:
        return super().find_node(name) if name in self._infos else self._base.find_node(name)

    def node_info(self, name: str) -> NodeInfo:
        return self._infos[name] if name in self._infos else self._base.node_info(name)

    def claim_users(self, key: str) -> int:
        return self._base.claim_users(key) + self._claims[key]

    def labels(self, node: str) -> Mapping[str, str]:
        return self._base.labels(node)

    def nominated_node(self, key: str) -> str:
        return self._base.nominated_node(key)

    def count_pods(self, group: CombinedPodSelector) -> Mapping[str, int]:
        return self._overlay.adjust(group, self._base.count_pods(group))
