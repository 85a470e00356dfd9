"""Watch the heartbeats of nodes, and set conditions and taints of nodes without them.

A heartbeat is a new renewTime in the node's Lease or a new heartbeat in its status. What counts is when this
process saw it, by its own clock, so that a wrong clock of a node does no harm. Heartbeats of a healthy node
wake no key: one timer per node ends with its grace period, and only then the last heartbeat is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

from msgspec import Struct, structs, to_builtins

from volplane.api.coordination import Lease
from volplane.api.core import Node, Pod
from volplane.api.errors import Conflict
from volplane.base import clock, metrics
from volplane.client.client import Client
from volplane.controllers.nodelifecycle.plan import (
    MarkPodNotReady,
    NodeHealth,
    SetTaints,
    SetUnknown,
    Step,
    grace_of,
    plan,
)
from volplane.controllers.nodelifecycle.zones import EvictionPace, EvictionRates, pause, zone_of
from volplane.loops.controller import Continue, Controller, Outcome
from volplane.loops.events import EventRecorder
from volplane.rules.pods import node_of
from volplane.rules.steps import CommonStep, RecordEvent, normal
from volplane.rules.taints import is_ready
from volplane.rules.workloads import is_ready as is_pod_ready

LEASES = "kube-node-lease"
EVICTIONS = metrics.counter(
    "node_collector_evictions_total",
    "Number of Node evictions that happened since current instance",
    ("zone",),
)


class NodeLifecycleView(Struct, frozen=True):
    node: Node | None  # None: it was deleted
    health: NodeHealth | None = None
    events: tuple[RecordEvent, ...] = ()  # that are still to be recorded


class NodeLifecycleMemory:
    """The last heartbeat of each node, by this process' clock, and when zones may evict again."""

    def __init__(self) -> None:
        self.heard: dict[str, float] = {}
        self.pace = EvictionPace()
        self.events: dict[str, tuple[RecordEvent, ...]] = {}  # of added and removed nodes

    def observe_node(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            assert old is not None
            self.heard.pop(old.name, None)
            self._add_event(old, "RemovingNode", f"Removing Node {old.name} from Controller")
            return
        if old is None:
            self._add_event(new, "RegisteredNode", f"Registered Node {new.name} in Controller")
        if old is None or _heartbeat(old) != _heartbeat(new):
            self.heard[new.name] = clock.now()

    def observe_lease(self, old: Lease | None, new: Lease | None) -> None:
        if new is not None and (old is None or old.spec.renew_time != new.spec.renew_time):
            self.heard[new.name] = clock.now()

    def _add_event(self, node: Node, reason: str, message: str) -> None:
        event = normal(reason, f"Node {node.name} event: {message}", node)
        self.events[node.name] = (*self.events.get(node.name, ()), event)


class NodeLifecycle(Controller[str, NodeLifecycleView, Step]):
    name = "node-lifecycle-controller"
    component = "node-controller"

    def __init__(
        self,
        client: Client,
        *,
        monitor_grace: float = 40.0,
        startup_grace: float = 60.0,
        pace: tuple[float, float, float, int] = (0.1, 0.01, 0.55, 50),  # in the order of `Pace`
        events: EventRecorder | None = None,
    ) -> None:
        super().__init__(client, events=events)
        self.monitor_grace, self.startup_grace = monitor_grace, startup_grace
        self.pace = EvictionRates(*pace)

    def setup(self) -> None:
        self.memory = NodeLifecycleMemory()  # a new leader has seen no heartbeats
        self.nodes = self.watch(Node, self.keys_of_node, observe=self.memory.observe_node)
        # A Lease wakes no key: the kubelet reports changes in its status; only missing heartbeats matter
        # here.
        self.leases = self.watch(Lease, observe=self.memory.observe_lease, namespace=LEASES)
        self.pods = self.watch(Pod)
        self.on_node = self.pods.index("node", node_of)

    # --- which keys a change wakes

    def keys_of_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        if new is None:
            assert old is not None
            return [old.name, *self._others(old)]
        if old is not None and is_ready(old) != is_ready(new):
            return [new.name, *self._others(new)]
        return [new.name] if old is None or _relevant_fields(old) != _relevant_fields(new) else []

    def _others(self, node: Node) -> list[str]:
        """Other nodes of the zone: the number of ready nodes decides about the others."""
        return [n.name for n in self.nodes.all() if n.name != node.name and not is_ready(n)]

    # --- what the caches show

    def view(self, key: str) -> NodeLifecycleView:
        node = self.nodes.at(key)
        events = self.memory.events.get(key, ())
        return NodeLifecycleView(node, self.view_health(node) if node is not None else None, events)

    def view_health(self, node: Node) -> NodeHealth:
        now = clock.now()
        silent = now - self.memory.heard.get(node.name, now)
        grace = grace_of(node, self.monitor_grace, self.startup_grace)
        if is_ready(node) and silent < grace:
            return NodeHealth(node, clock.wall(), silent, grace)
        left = self.memory.pace.seconds_left(zone_of(node), self._pause(node), now)
        ready = [p for p in self.on_node[node.name] if is_pod_ready(p)]
        return NodeHealth(node, clock.wall(), silent, grace, left, ready)

    def _pause(self, node: Node) -> float:
        return pause(node, self.nodes.all(), self.pace)

    # --- what to do

    def plan(self, view: NodeLifecycleView) -> Iterator[Step | CommonStep]:
        yield from view.events
        if view.health is not None:
            yield from plan(view.health)

    def update_memory(
        self, key: str, view: NodeLifecycleView | None, steps: Sequence[Step | CommonStep]
    ) -> None:
        self.memory.events.pop(key, None)
        if view is None or view.node is None:
            return
        self.memory.heard.setdefault(key, clock.now())
        if any(isinstance(step, SetTaints) and step.evicts_pods for step in steps):
            zone, pause = zone_of(view.node), self._pause(view.node)
            self.memory.pace.note_eviction(zone, pause, clock.now())

    def batches(self, steps: Sequence[Step | CommonStep]) -> Iterable[Sequence[Step | CommonStep]]:
        at = next((i for i, step in enumerate(steps) if isinstance(step, MarkPodNotReady)), len(steps))
        yield from ((step,) for step in steps[:at])
        yield steps[at:]

    # --- doing it

    def subject(self, view: NodeLifecycleView) -> Node:
        assert view.node is not None
        return view.node

    async def act(self, key: str, view: NodeLifecycleView, step: Step) -> Outcome[NodeLifecycleView]:
        node = view.node
        assert node is not None
        match step:
            case SetUnknown(conditions):
                left = await self._set_unknown(node, [to_builtins(c) for c in conditions])
                return Continue(structs.replace(view, node=left))
            case SetTaints(taints, drives_off):
                if drives_off:
                    EVICTIONS.labels(zone_of(node)).inc()
                await self._set_taints(node, [to_builtins(t) for t in taints])
            case MarkPodNotReady(pod):
                await self._mark_not_ready(pod)
            case _:
                assert_never(step)
        return None

    async def _set_unknown(self, node: Node, conditions: list[object]) -> Node:
        patch = {"status": {"conditions": conditions}}
        left = await self.client.patch(Node, node.name, strategic=patch, subresource="status", uid=node.uid)
        if left.spec.taints != node.spec.taints:
            raise Conflict(f"the taints of {node.name} have changed")
        return left

    async def _set_taints(self, node: Node, taints: list[object]) -> None:
        # Only at this revision: the list is replaced as a whole, and others write it, too.
        await self.client.patch(
            Node,
            node.name,
            merge={"spec": {"taints": taints or None}},
            uid=node.uid,
            revision=node.metadata.resource_version,
        )

    async def _mark_not_ready(self, pod: Pod) -> None:
        condition = {"type": "Ready", "status": "False", "lastTransitionTime": clock.stamp()}
        await self.client.patch(
            Pod,
            pod.name,
            pod.namespace,
            strategic={"status": {"conditions": [condition]}},
            subresource="status",
            uid=pod.uid,
            missing_ok=True,
        )


def _heartbeat(node: Node) -> str:
    return next((c.last_heartbeat_time for c in node.status.conditions if c.type == "Ready"), "")


def _relevant_fields(node: Node) -> tuple[object, ...]:
    return (
        node.spec.unschedulable,
        node.spec.taints,
        [(c.type, c.status) for c in node.status.conditions],
    )
