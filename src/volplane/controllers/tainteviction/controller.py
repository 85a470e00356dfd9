"""Delete pods from nodes whose taints they do not tolerate.

The time when a taint and a pod were first seen together is kept in memory only. After a restart the
toleration starts again, because the taint may be left over from a time when no controller could remove it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from volplane.api.core import Node, Pod, Taint
from volplane.base import clock
from volplane.controllers.tainteviction.plan import EvictPod, TaintView, plan, toleration_seconds
from volplane.loops.controller import Controller
from volplane.rules.pods import node_of
from volplane.rules.steps import CommonStep, RecordEvent
from volplane.rules.taints import NO_EXECUTE
from volplane.rules.waits import Wait


class TaintedPod(Struct, frozen=True):
    uid: str
    since: float
    announced: bool = False  # an eviction was announced, so that its cancellation is an event, too


class TaintEvictionMemory:
    """When pods and the taints of their nodes were first seen together."""

    def __init__(self) -> None:
        self.tainted: dict[str, TaintedPod] = {}  # by the pod's key

    def observe_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self.tainted.pop(old.key, None)

    def get(self, pod: Pod) -> TaintedPod:
        found = self.tainted.get(pod.key)
        return found if found is not None and found.uid == pod.uid else TaintedPod(pod.uid, clock.now())

    def update(self, view: TaintView) -> None:
        pod = view.pod
        if not view.taints:
            self.tainted.pop(pod.key, None)
            return
        announced = 0 < toleration_seconds(pod, view.taints) < float("inf")
        self.tainted[pod.key] = TaintedPod(pod.uid, self.get(pod).since, announced)


class TaintEviction(Controller[str, TaintView, EvictPod]):
    name = "taint-eviction-controller"

    def setup(self) -> None:
        self.memory = TaintEvictionMemory()
        self.pods = self.watch(Pod, self.keys_of_pod, observe=self.memory.observe_pod)
        self.nodes = self.watch(Node, self.keys_of_node)
        self.on_node = self.pods.index("node", node_of)

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        changed = old is None or new is None or _relevant_fields(old) != _relevant_fields(new)
        if new is not None and changed and self._is_tainted(new):
            yield new.key

    def _is_tainted(self, pod: Pod) -> bool:
        """Most nodes have no taint; a new taint wakes their pods."""
        return pod.key in self.memory.tainted or bool(_no_execute(self.nodes.get(pod.spec.node_name)))

    def keys_of_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        node = new or old
        assert node is not None
        if _no_execute(old) != _no_execute(new):
            yield from (pod.key for pod in self.on_node[node.name])

    def view(self, key: str) -> TaintView | None:
        pod = self.pods.at(key)
        if pod is None:
            return None
        seen = self.memory.get(pod)
        taints = _no_execute(self.nodes.get(pod.spec.node_name))
        return TaintView(pod, taints, clock.now() - seen.since, seen.announced)

    def plan(self, view: TaintView) -> Iterator[EvictPod | Wait | RecordEvent]:
        return plan(view)

    def update_memory(self, key: str, view: TaintView | None, steps: Sequence[EvictPod | CommonStep]) -> None:
        if view is not None:
            self.memory.update(view)

    def subject(self, view: TaintView) -> Pod:
        return view.pod

    async def act(self, key: str, view: TaintView, step: EvictPod) -> None:
        pod = view.pod
        self.events.event(pod, "Normal", "TaintManagerEviction", f"Marking for deletion Pod {pod.key}")
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": clock.stamp(),
        }
        await self.client.patch(
            Pod,
            pod.name,
            pod.namespace,
            strategic={"status": {"conditions": [condition]}},
            subresource="status",
            uid=pod.uid,
            missing_ok=True,
        )
        await self.client.delete(Pod, pod.name, pod.namespace, uid=pod.uid, missing_ok=True)


def _no_execute(node: Node | None) -> list[Taint]:
    return [t for t in node.spec.taints if t.effect == NO_EXECUTE] if node else []


def _relevant_fields(pod: Pod) -> tuple[object, ...]:
    return pod.uid, pod.spec.node_name, pod.spec.tolerations
