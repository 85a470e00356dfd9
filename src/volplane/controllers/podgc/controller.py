"""Removes pods that no kubelet will finish, and finished pods beyond a threshold."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from volplane.api.core import Node, Pod
from volplane.api.errors import Conflict
from volplane.base import clock
from volplane.client.client import Client
from volplane.controllers.podgc.plan import RemovePod, plan, surplus
from volplane.loops.controller import Controller
from volplane.loops.events import EventRecorder
from volplane.rules.pods import has_ended, node_of
from volplane.rules.steps import TICK, CommonStep
from volplane.rules.taints import is_out_of_service, is_ready
from volplane.rules.waits import Wait

log = logging.getLogger(__name__)

FINISHED = ""  # the key for all finished pods together


def endings(pod: Pod) -> list[str]:
    """An index function: the finished ones."""
    return ["ended"] if has_ended(pod) else []


class PodGarbageView(Struct, frozen=True):
    pod: Pod
    node: Node | None
    quarantine: float


class FinishedView(Struct, frozen=True):
    """All finished pods together."""

    pods: Sequence[Pod]
    threshold: int


View = PodGarbageView | FinishedView


class PodGarbageMemory:
    """Nodes that pods name and that do not exist, and how many pods have finished."""

    def __init__(self) -> None:
        self.missing: dict[str, float] = {}  # node → since when; -inf: it was seen to be deleted
        self.finished = 0

    def observe_node(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self.missing.pop(new.name, None)
        elif old is not None:
            self.missing[old.name] = float("-inf")

    def observe_pod(self, old: Pod | None, new: Pod | None) -> None:
        self.finished += bool(new and has_ended(new)) - bool(old and has_ended(old))


class PodGarbage(Controller[str, View, RemovePod]):
    name = "pod-garbage-collector-controller"

    def __init__(
        self,
        client: Client,
        *,
        threshold: int = 12500,
        quarantine: float = 40.0,
        events: EventRecorder | None = None,
    ) -> None:
        super().__init__(client, events=events)
        self.threshold, self.quarantine = threshold, quarantine

    def setup(self) -> None:
        self.memory = PodGarbageMemory()
        self.nodes = self.watch(Node, self.keys_of_node, observe=self.memory.observe_node)
        self.pods = self.watch(Pod, self.keys_of_pod, observe=self.memory.observe_pod)
        self.on_node = self.pods.index("node", node_of)
        self.endings = self.pods.index("endings", endings)

    def keys_of_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        node = new or old
        assert node is not None
        if new is None or (old is not None and _is_fenced(old) != _is_fenced(new)) or _is_fenced(new):
            yield from (pod.key for pod in self.on_node[node.name])

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        if 0 < self.threshold < self.memory.finished:
            yield FINISHED
        changed = old is None or new is None or _relevant_fields(old) != _relevant_fields(new)
        if new is not None and changed and self._may_be_garbage(new):
            yield new.key

    def _may_be_garbage(self, pod: Pod) -> bool:
        """False for a pod that waits for the scheduler, or on a node that exists and is in service."""
        if not pod.spec.node_name:
            return pod.is_deleting
        node = self.nodes.get(pod.spec.node_name)
        return node is None or _is_fenced(node)

    def view(self, key: str) -> View | None:
        if key == FINISHED:
            return FinishedView(self.endings["ended"], self.threshold)
        pod = self.pods.at(key)
        if pod is None:
            return None
        node = self.nodes.get(pod.spec.node_name)
        return PodGarbageView(pod, node, self._quarantine(pod, node))

    def _quarantine(self, pod: Pod, node: Node | None) -> float:
        if node is not None or not pod.spec.node_name:
            return 0.0
        since = self.memory.missing.get(pod.spec.node_name, clock.now())
        left = since + self.quarantine - clock.now()
        return left if left > TICK else 0.0

    def plan(self, view: View) -> Iterator[RemovePod | Wait]:
        if isinstance(view, PodGarbageView):
            return plan(view.pod, view.node, quarantine=view.quarantine)
        return (RemovePod(p, "too many finished pods") for p in surplus(view.pods, view.threshold))

    def update_memory(self, key: str, view: View | None, steps: Sequence[RemovePod | CommonStep]) -> None:
        if isinstance(view, PodGarbageView) and view.node is None and view.pod.spec.node_name:
            self.memory.missing.setdefault(view.pod.spec.node_name, clock.now())

    def batches(self, steps: Sequence[RemovePod | CommonStep]) -> Iterable[Sequence[RemovePod | CommonStep]]:
        return (steps,)

    async def act(self, key: str, view: View, step: RemovePod) -> None:
        pod = step.pod
        if step.gone and await self.client.find(Node, step.gone) is not None:
            raise Conflict(f"node {step.gone} exists after all")
        log.info("removing pod %s: %s", pod.key, step.why)
        if not has_ended(pod):
            await self.client.patch(
                Pod,
                pod.name,
                pod.namespace,
                strategic={"status": _failed_status(step)},
                subresource="status",
                uid=pod.uid,
                missing_ok=True,
            )
        await self.client.delete(Pod, pod.name, pod.namespace, grace=0, uid=pod.uid, missing_ok=True)


def _failed_status(step: RemovePod) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": "Failed"}
    if step.gone:
        status["conditions"] = [
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "DeletionByPodGC",
                "message": step.why,
                "lastTransitionTime": clock.stamp(),
            }
        ]
    return status


def _is_fenced(node: Node) -> bool:
    return is_out_of_service(node) and not is_ready(node)


def _relevant_fields(pod: Pod) -> tuple[object, ...]:
    return pod.uid, pod.spec.node_name, pod.is_deleting
