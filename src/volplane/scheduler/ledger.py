"""What each node has and what is taken of it, kept up to date pod by pod.

Counting a node anew for every decision would cost pods times nodes; here a decision reads sums. A pod is
entered when it is decided (assumed) and entered again when its node shows in the caches, which replaces the
first entry. The subtle thing: pods may be known before their node is, and stay when it goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct

from volplane.api.core import Node, Pod, Taint
from volplane.rules import pods, resources

# What a pod that asks for nothing is taken to use when nodes are compared.
SOME_CPU = 100
SOME_MEMORY = 200 << 20

X = TypeVar("X", bound=Hashable)
Port = tuple[str, str, int]  # address, protocol, port


class Taken(Struct, frozen=True):
    """What one pod takes of its node."""

    uid: str
    requests: Mapping[str, int]
    ports: tuple[Port, ...]
    claims: tuple[str, ...]  # namespace/name

    @property
    def cpu(self) -> int:
        return self.requests.get(resources.CPU) or SOME_CPU

    @property
    def memory(self) -> int:
        return self.requests.get(resources.MEMORY) or SOME_MEMORY


def taken_by(pod: Pod) -> Taken:
    return Taken(pod.uid, resources.requests(pod), host_ports(pod), tuple(pods.claim_keys(pod)))


def host_ports(pod: Pod) -> tuple[Port, ...]:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return tuple(
        (port.host_ip or "0.0.0.0", port.protocol or "TCP", port.host_port)
        for container in containers
        for port in container.ports
        if port.host_port
    )


class Info:
    """A node as filters see it."""

    __slots__ = (
        "allocatable",
        "claims",
        "cpu",
        "labels",
        "memory",
        "name",
        "node",
        "pods",
        "ports",
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
        self.pods: dict[str, Taken] = {}
        self.requested: Counter[str] = Counter()
        self.ports: Counter[Port] = Counter()
        self.claims: Counter[str] = Counter()
        self.cpu = self.memory = 0

    def describe(self, node: Node | None) -> None:
        self.node = node
        self.labels = node.metadata.labels if node else {}
        self.taints = node.spec.taints if node else ()
        self.unschedulable = node.spec.unschedulable if node else False
        self.allocatable = resources.allocatable(node) if node else {}

    def enter(self, key: str, taken: Taken) -> None:
        self.pods[key] = taken
        self.requested.update(taken.requests)
        self.ports.update(taken.ports)
        self.claims.update(taken.claims)
        self.cpu += taken.cpu
        self.memory += taken.memory

    def leave(self, key: str) -> Taken:
        taken = self.pods.pop(key)
        self.requested.subtract(taken.requests)
        _subtract(self.ports, taken.ports)
        _subtract(self.claims, taken.claims)
        self.cpu -= taken.cpu
        self.memory -= taken.memory
        return taken


def _subtract(counts: Counter[X], things: Iterable[X]) -> None:
    """Unlike Counter.subtract, leaves no zeros behind: these counters are read as sets."""
    for thing in things:
        counts[thing] -= 1
        if not counts[thing]:
            del counts[thing]


class Ledger:
    def __init__(self) -> None:
        self._infos: dict[str, Info] = {}
        self._where: dict[str, str] = {}  # pod → node
        self._claims: Counter[str] = Counter()  # claims of pods that have a node
        self._nodes: list[Info] | None = None

    @property
    def nodes(self) -> list[Info]:
        """All nodes that exist, by name; the list is not changed, a new one is made."""
        if self._nodes is None:
            there = (info for info in self._infos.values() if info.node is not None)
            self._nodes = sorted(there, key=lambda info: info.name)
        return self._nodes

    def node(self, name: str) -> Info | None:
        info = self._infos.get(name)
        return info if info is not None and info.node is not None else None

    def is_claim_used(self, key: str) -> bool:
        return key in self._claims

    def put_node(self, node: Node) -> None:
        info = self._info(node.name)
        if info.node is None:
            self._nodes = None
        info.describe(node)

    def drop_node(self, name: str) -> None:
        info = self._infos.get(name)
        if info is None:
            return
        info.describe(None)
        self._nodes = None
        self._tidy(info)

    def put_pod(self, pod: Pod, node: str) -> None:
        if pod.key in self._where:
            if self._where[pod.key] == node and self._infos[node].pods[pod.key].uid == pod.uid:
                return  # what a pod takes does not change while it is on its node
            self.drop_pod(pod.key)
        taken = taken_by(pod)
        self._info(node).enter(pod.key, taken)
        self._where[pod.key] = node
        self._claims.update(taken.claims)

    def drop_pod(self, key: str) -> bool:
        """Whether the pod was on a node."""
        node = self._where.pop(key, None)
        if node is None:
            return False
        info = self._infos[node]
        _subtract(self._claims, info.leave(key).claims)
        self._tidy(info)
        return True

    def __iter__(self) -> Iterator[Info]:
        return iter(self.nodes)

    def _info(self, name: str) -> Info:
        info = self._infos.get(name)
        if info is None:
            info = self._infos[name] = Info(name)
        return info

    def _tidy(self, info: Info) -> None:
        if info.node is None and not info.pods:
            del self._infos[info.name]
