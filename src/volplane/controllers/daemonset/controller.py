"""Keeps one pod of each DaemonSet on every eligible node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import assert_never

from msgspec import Struct

from volplane.api import codec
from volplane.api.apps import DaemonSet
from volplane.api.core import Node, Pod
from volplane.base import clock
from volplane.controllers.daemonset.plan import SetDaemonSetStatus, Step, plan
from volplane.loops.controller import Controller
from volplane.rules.steps import CommonStep
from volplane.rules.waits import Wait
from volplane.rules.workloads import CreatePod, DeletePod, controller_uids, owner_keys


class DaemonSetView(Struct, frozen=True):
    wanted: DaemonSet
    nodes: Sequence[Node]
    pods: Sequence[Pod]  # that it controls
    now: datetime


class DaemonSets(Controller[str, DaemonSetView, Step]):
    name = "daemonset-controller"

    def setup(self) -> None:
        self.sets = self.watch(DaemonSet, lambda old, new: [new.key] if new else [])
        self.nodes = self.watch(Node, self.keys_of_node)
        self.pods = self.watch(Pod, lambda *pods: owner_keys("DaemonSet", *pods))
        self.owned = self.pods.index("controller", controller_uids)

    def keys_of_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """All sets, if a node may have become eligible or is no longer."""
        if old and new and (old.metadata.labels, old.spec.taints) == (new.metadata.labels, new.spec.taints):
            return []
        return [s.key for s in self.sets.all()]

    def view(self, key: str) -> DaemonSetView | None:
        wanted = self.sets.at(key)
        if wanted is None:
            return None
        return DaemonSetView(wanted, self.nodes.all(), self.owned[wanted.uid], clock.wall())

    def plan(self, view: DaemonSetView) -> Iterator[Step | Wait]:
        return plan(view.wanted, view.nodes, view.pods, view.now)

    def batches(self, steps: Sequence[Step | CommonStep]) -> Iterable[Sequence[Step | CommonStep]]:
        return (steps,)

    async def act(self, key: str, view: DaemonSetView, step: Step) -> None:
        wanted = view.wanted
        match step:
            case CreatePod(pod):
                made = await self.client.create(pod)
                self.events.event(wanted, "Normal", "SuccessfulCreate", f"Created pod: {made.name}")
            case DeletePod(pod):
                await self.client.delete(Pod, pod.name, pod.namespace, uid=pod.uid, missing_ok=True)
                self.events.event(wanted, "Normal", "SuccessfulDelete", f"Deleted pod: {pod.name}")
            case SetDaemonSetStatus(status):
                patch = {"status": codec.full_merge_patch(status)}
                where = (wanted.name, wanted.namespace)
                await self.client.patch(DaemonSet, *where, merge=patch, subresource="status", missing_ok=True)
            case _:
                assert_never(step)
