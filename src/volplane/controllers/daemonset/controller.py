"""Keeps one pod of each DaemonSet on every eligible node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import assert_never

from volplane.api import codec
from volplane.api.apps import DaemonSet
from volplane.api.core import Node, Pod
from volplane.base import clock
from volplane.controllers.daemonset.plan import Create, Delete, Report, plan
from volplane.loops.controller import Controller
from volplane.rules.steps import Wait
from volplane.rules.workloads import controller_uids, owner_keys


class DaemonSets(Controller[str]):
    name = "daemonset-controller"

    def setup(self) -> None:
        self.sets = self.watch(DaemonSet, lambda old, new: [new.key] if new else [])
        self.nodes = self.watch(Node, self._all_when_eligibility_may_change)
        self.pods = self.watch(Pod, lambda *pods: owner_keys("DaemonSet", *pods))
        self.owned = self.pods.index("controller", controller_uids)

    def _all_when_eligibility_may_change(self, old: Node | None, new: Node | None) -> Iterable[str]:
        if old and new and (old.metadata.labels, old.spec.taints) == (new.metadata.labels, new.spec.taints):
            return []
        return [s.key for s in self.sets.all()]

    async def reconcile(self, key: str) -> None:
        wanted = self.sets.at(key)
        if wanted is None:
            return
        async with asyncio.TaskGroup() as group:
            for step in plan(wanted, self.nodes.all(), self.owned[wanted.uid], clock.wall()):
                match step:
                    case Create(_, pod):
                        group.create_task(self._create(wanted, pod))
                    case Delete(pod):
                        group.create_task(self._delete(wanted, pod))
                    case Report(status):
                        patch = {"status": codec.exactly(status)}
                        where = (wanted.name, wanted.namespace)
                        await self.client.patch(
                            DaemonSet, *where, merge=patch, subresource="status", missing_ok=True
                        )
                    case Wait(seconds, why):
                        self.queue.later(key, seconds, why)
                    case _:
                        assert_never(step)

    async def _create(self, wanted: DaemonSet, pod: Pod) -> None:
        made = await self.client.create(pod)
        self.events.event(wanted, "Normal", "SuccessfulCreate", f"Created pod: {made.name}")

    async def _delete(self, wanted: DaemonSet, pod: Pod) -> None:
        await self.client.delete(Pod, pod.name, pod.namespace, uid=pod.uid, missing_ok=True)
        self.events.event(wanted, "Normal", "SuccessfulDelete", f"Deleted pod: {pod.name}")
