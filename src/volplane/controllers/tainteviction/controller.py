"""Deletes pods from nodes that they may not stay on.

When a taint and a pod met is kept in memory only, as the clock of the patience: after a restart the patience
begins anew, since a taint may be left over from a time when nobody could take it back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from msgspec import Struct

from volplane.api.core import Node, Pod, Taint
from volplane.base import clock
from volplane.controllers.tainteviction.plan import Evict, patience, plan
from volplane.loops.controller import Controller
from volplane.rules.pods import node_of
from volplane.rules.steps import Wait
from volplane.rules.taints import NO_EXECUTE


class Met(Struct, frozen=True):
    uid: str
    since: float
    told: bool = False  # that it will go, so that staying is worth telling, too


class TaintEviction(Controller[str]):
    name = "taint-eviction-controller"

    def setup(self) -> None:
        self.met: dict[str, Met] = {}  # by pod
        self.pods = self.watch(Pod, self._moved)
        self.nodes = self.watch(Node, self._tainted)
        self.on_node = self.pods.index("node", node_of)

    def _moved(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        if new is None:
            assert old is not None
            self.met.pop(old.key, None)
        elif self._is_met(new) and (old is None or _stance(old) != _stance(new)):
            yield new.key

    def _is_met(self, pod: Pod) -> bool:
        """On most nodes there is nothing to tolerate; their taints, when they come, wake their pods."""
        return pod.key in self.met or bool(_driving(self.nodes.get(pod.spec.node_name)))

    def _tainted(self, old: Node | None, new: Node | None) -> Iterable[str]:
        node = new or old
        assert node is not None
        if _driving(old) != _driving(new):
            yield from (pod.key for pod in self.on_node[node.name])

    async def reconcile(self, key: str) -> None:
        pod = self.pods.at(key)
        if pod is None:
            return
        taints = _driving(self.nodes.get(pod.spec.node_name))
        if not taints:
            self._stays(pod)
            return
        met = self.met.get(key)
        if met is None or met.uid != pod.uid:
            met = Met(pod.uid, clock.now())
        self.met[key] = Met(pod.uid, met.since, told=0 < patience(pod, taints) < float("inf"))
        for step in plan(pod, taints, clock.now() - met.since):
            match step:
                case Evict():
                    await self._evict(pod)
                case Wait(seconds, why):
                    self.queue.later(key, seconds, why)
                case _:
                    assert_never(step)

    def _stays(self, pod: Pod) -> None:
        met = self.met.pop(pod.key, None)
        if met is not None and met.told and met.uid == pod.uid and not pod.is_deleting:
            text = f"Cancelling deletion of Pod {pod.key}"
            self.events.event(pod, "Normal", "TaintManagerEviction", text)

    async def _evict(self, pod: Pod) -> None:
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


def _driving(node: Node | None) -> list[Taint]:
    return [t for t in node.spec.taints if t.effect == NO_EXECUTE] if node else []


def _stance(pod: Pod) -> tuple[object, ...]:
    return pod.uid, pod.spec.node_name, pod.spec.tolerations
