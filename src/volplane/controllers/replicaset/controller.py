"""Keeps the pods of each ReplicaSet; and those of its elder, the ReplicationController, in the same way."""

from __future__ import annotations

import asyncio
from typing import ClassVar, assert_never

from volplane.api import codec
from volplane.api.apps import ReplicaSet
from volplane.api.core import Pod, ReplicationController
from volplane.base import clock
from volplane.controllers.replicaset.plan import Create, Delete, Report, Wanted, plan, template_of
from volplane.loops.controller import Controller
from volplane.rules.steps import Wait
from volplane.rules.workloads import controller_uids, owner_keys, pod_of


class ReplicaSets(Controller[str]):
    name = "replicaset-controller"
    kind: ClassVar[type[Wanted]] = ReplicaSet

    def setup(self) -> None:
        self.sets = self.watch(self.kind, lambda old, new: [new.key] if new else [])
        self.pods = self.watch(Pod, lambda *pods: owner_keys(self.kind.__name__, *pods))
        self.owned = self.pods.index("controller", controller_uids)

    async def reconcile(self, key: str) -> None:
        wanted = self.sets.at(key)
        if wanted is None:
            return
        async with asyncio.TaskGroup() as group:
            for step in plan(wanted, self.owned[wanted.uid], clock.wall()):
                match step:
                    case Create(count):
                        for _ in range(count):
                            group.create_task(self._create(wanted))
                    case Delete(pod):
                        group.create_task(self._delete(wanted, pod))
                    case Report(status):
                        patch = {"status": codec.exactly(status)}
                        where = (wanted.name, wanted.namespace)
                        await self.client.patch(
                            self.kind, *where, merge=patch, subresource="status", missing_ok=True
                        )
                    case Wait(seconds, why):
                        self.queue.later(key, seconds, why)
                    case _:
                        assert_never(step)

    async def _create(self, wanted: Wanted) -> None:
        pod = await self.client.create(pod_of(template_of(wanted), wanted))
        self.events.event(wanted, "Normal", "SuccessfulCreate", f"Created pod: {pod.name}")

    async def _delete(self, wanted: Wanted, pod: Pod) -> None:
        await self.client.delete(Pod, pod.name, pod.namespace, uid=pod.uid, missing_ok=True)
        self.events.event(wanted, "Normal", "SuccessfulDelete", f"Deleted pod: {pod.name}")


class ReplicationControllers(ReplicaSets):
    name = "replicationcontroller-controller"
    kind = ReplicationController
