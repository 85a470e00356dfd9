"""Listens to the heartbeats of nodes, and marks those that fall silent.

A heartbeat is a new renewTime in the node's Lease or a new heartbeat in its status; what counts is when we
saw it, by our own clock, so that a node's wrong clock does no harm. Heartbeats of a healthy node wake
nobody: one timer per node rings when its grace is over and looks how long the silence really is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import assert_never

from msgspec import to_builtins

from volplane.api.coordination import Lease
from volplane.api.core import Node, Pod
from volplane.api.errors import Conflict
from volplane.base import clock, metrics
from volplane.client.client import Client
from volplane.controllers.nodelifecycle.plan import Lose, Mark, Unready, View, grace_of, plan
from volplane.controllers.nodelifecycle.zones import Pace, Turns, pause, zone_of
from volplane.loops.controller import Controller
from volplane.loops.events import Recorder
from volplane.rules.pods import node_of
from volplane.rules.steps import Say, Wait
from volplane.rules.taints import is_ready
from volplane.rules.workloads import is_ready as is_pod_ready

LEASES = "kube-node-lease"
EVICTIONS = metrics.counter(
    "node_collector_evictions_total",
    "Number of Node evictions that happened since current instance",
    ("zone",),
)


class NodeLifecycle(Controller[str]):
    name = "node-lifecycle-controller"
    component = "node-controller"

    def __init__(
        self,
        client: Client,
        *,
        monitor_grace: float = 40.0,
        startup_grace: float = 60.0,
        pace: tuple[float, float, float, int] = (0.1, 0.01, 0.55, 50),  # in the order of `Pace`
        events: Recorder | None = None,
    ) -> None:
        super().__init__(client, events=events)
        self.monitor_grace, self.startup_grace = monitor_grace, startup_grace
        self.pace = Pace(*pace)
        self.heard: dict[str, float] = {}  # by node, on our own clock
        self.turns = Turns()

    def setup(self) -> None:
        self.heard.clear()  # a leader that comes back has not listened meanwhile
        self.nodes = self.watch(Node, self._changed)
        self.leases = self.watch(Lease, self._beat, namespace=LEASES)
        self.pods = self.watch(Pod)
        self.on_node = self.pods.index("node", node_of)

    # --- what is heard

    def _changed(self, old: Node | None, new: Node | None) -> Iterable[str]:
        if new is None:
            assert old is not None
            self.heard.pop(old.name, None)
            self._tell(old, "RemovingNode", f"Removing Node {old.name} from Controller")
            return self._others(old)
        if old is None:
            self._tell(new, "RegisteredNode", f"Registered Node {new.name} in Controller")
        if old is None or _heartbeat(old) != _heartbeat(new):
            self.heard[new.name] = clock.now()
        if old is not None and is_ready(old) != is_ready(new):
            return [new.name, *self._others(new)]
        return [new.name] if old is None or _matters(old) != _matters(new) else []

    def _others(self, node: Node) -> list[str]:
        """How many nodes are ready decides what becomes of those that are not."""
        return [n.name for n in self.nodes.all() if n.name != node.name and not is_ready(n)]

    def _beat(self, old: Lease | None, new: Lease | None) -> Iterable[str]:
        if new is not None and (old is None or old.spec.renew_time != new.spec.renew_time):
            self.heard[new.name] = clock.now()
        return []  # the kubelet says in its status what it is alive to do; only silence is ours to judge

    def _tell(self, node: Node, reason: str, message: str) -> None:
        self.events.event(node, "Normal", reason, f"Node {node.name} event: {message}")

    # --- what follows

    def view(self, node: Node) -> View:
        now = clock.now()
        silent = now - self.heard.setdefault(node.name, now)
        grace = grace_of(node, self.monitor_grace, self.startup_grace)
        if is_ready(node) and silent < grace:
            return View(node, clock.wall(), silent, grace)
        left = self.turns.left(zone_of(node), self._pause(node), now)
        ready = [p for p in self.on_node[node.name] if is_pod_ready(p)]
        return View(node, clock.wall(), silent, grace, left, ready)

    def _pause(self, node: Node) -> float:
        return pause(node, self.nodes.all(), self.pace)

    async def reconcile(self, key: str) -> None:
        node = self.nodes.at(key)
        if node is None:
            return
        async with asyncio.TaskGroup() as group:
            for step in plan(self.view(node)):
                match step:
                    case Lose(conditions):
                        node = await self._lose(node, [to_builtins(c) for c in conditions])
                    case Mark(taints, drives_off):
                        if drives_off:
                            self.turns.take(zone_of(node), self._pause(node), clock.now())
                            EVICTIONS.labels(zone_of(node)).inc()
                        await self._mark(node, [to_builtins(t) for t in taints])
                    case Unready(pod):
                        group.create_task(self._unready(pod))
                    case Wait(seconds, why):
                        self.queue.later(key, seconds, why)
                    case Say(type, reason, message, about):
                        self.events.event(about or node, type, reason, message)
                    case _:
                        assert_never(step)

    async def _lose(self, node: Node, conditions: list[object]) -> Node:
        said = {"status": {"conditions": conditions}}
        left = await self.client.patch(Node, node.name, strategic=said, subresource="status", uid=node.uid)
        if left.spec.taints != node.spec.taints:
            raise Conflict(f"the taints of {node.name} have changed")
        return left

    async def _mark(self, node: Node, taints: list[object]) -> None:
        # At this revision only: the list is replaced whole, and others write it, too.
        await self.client.patch(
            Node,
            node.name,
            merge={"spec": {"taints": taints or None}},
            uid=node.uid,
            revision=node.metadata.resource_version,
        )

    async def _unready(self, pod: Pod) -> None:
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


def _matters(node: Node) -> tuple[object, ...]:
    return (
        node.spec.unschedulable,
        node.spec.taints,
        [(c.type, c.status) for c in node.status.conditions],
    )
