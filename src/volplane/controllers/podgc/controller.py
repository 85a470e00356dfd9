"""Removes pods that no kubelet will finish, and finished pods that pile up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, assert_never

from volplane.api.core import Node, Pod
from volplane.api.errors import Conflict
from volplane.base import clock
from volplane.client.client import Client
from volplane.controllers.podgc.plan import Remove, plan, surplus
from volplane.loops.controller import Controller
from volplane.loops.events import Recorder
from volplane.rules.pods import has_ended, node_of
from volplane.rules.steps import TICK, Wait
from volplane.rules.taints import is_out_of_service, is_ready

log = logging.getLogger(__name__)

FINISHED = ""  # the key for all finished pods together


def endings(pod: Pod) -> list[str]:
    """An index function: the finished ones."""
    return ["ended"] if has_ended(pod) else []


class PodGarbage(Controller[str]):
    name = "pod-garbage-collector-controller"

    def __init__(
        self,
        client: Client,
        *,
        threshold: int = 12500,
        quarantine: float = 40.0,
        events: Recorder | None = None,
    ) -> None:
        super().__init__(client, events=events)
        self.threshold, self.quarantine = threshold, quarantine

    def setup(self) -> None:
        self.missed: dict[str, float] = {}  # nodes that pods name and nobody has seen: since when
        self.ended = 0
        self.nodes = self.watch(Node, self._turned)
        self.pods = self.watch(Pod, self._changed)
        self.on_node = self.pods.index("node", node_of)
        self.endings = self.pods.index("endings", endings)

    def _turned(self, old: Node | None, new: Node | None) -> Iterable[str]:
        node = new or old
        assert node is not None
        if new is None:
            self.missed[node.name] = float("-inf")  # seen to go: there is nothing to wait for
        else:
            self.missed.pop(node.name, None)
        if new is None or (old is not None and _fenced(old) != _fenced(new)) or _fenced(new):
            yield from (pod.key for pod in self.on_node[node.name])

    def _changed(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        self.ended += bool(new and has_ended(new)) - bool(old and has_ended(old))
        if self.threshold > 0 and self.ended > self.threshold:
            yield FINISHED
        if new is not None and (old is None or _stance(old) != _stance(new)) and self._is_odd(new):
            yield new.key

    def _is_odd(self, pod: Pod) -> bool:
        """A pod that waits for the scheduler, or runs on a node that is there, is none of ours."""
        if not pod.spec.node_name:
            return pod.is_deleting
        node = self.nodes.get(pod.spec.node_name)
        return node is None or _fenced(node)

    async def reconcile(self, key: str) -> None:
        if key == FINISHED:
            async with asyncio.TaskGroup() as group:
                for old in surplus(self.endings["ended"], self.threshold):
                    group.create_task(self._remove(Remove(old, "too many finished pods")))
            return
        pod = self.pods.at(key)
        if pod is None:
            return
        node = self.nodes.get(pod.spec.node_name)
        for step in plan(pod, node, quarantine=self._quarantine(pod, node)):
            match step:
                case Remove():
                    await self._remove(step)
                case Wait(seconds, why):
                    self.queue.later(key, seconds, why)
                case _:
                    assert_never(step)

    def _quarantine(self, pod: Pod, node: Node | None) -> float:
        if node is not None or not pod.spec.node_name:
            return 0.0
        since = self.missed.setdefault(pod.spec.node_name, clock.now())
        left = since + self.quarantine - clock.now()
        return left if left > TICK else 0.0

    async def _remove(self, step: Remove) -> None:
        pod = step.pod
        if step.gone and await self.client.find(Node, step.gone) is not None:
            raise Conflict(f"node {step.gone} is there after all")
        log.info("removing pod %s: %s", pod.key, step.why)
        if not has_ended(pod):
            await self.client.patch(
                Pod,
                pod.name,
                pod.namespace,
                strategic={"status": _failed(step)},
                subresource="status",
                uid=pod.uid,
                missing_ok=True,
            )
        await self.client.delete(Pod, pod.name, pod.namespace, grace=0, uid=pod.uid, missing_ok=True)


def _failed(step: Remove) -> dict[str, Any]:
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


def _fenced(node: Node) -> bool:
    return is_out_of_service(node) and not is_ready(node)


def _stance(pod: Pod) -> tuple[object, ...]:
    return pod.uid, pod.spec.node_name, pod.is_deleting
