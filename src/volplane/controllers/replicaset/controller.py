"""Keeps the pods of each ReplicaSet, and those of each ReplicationController in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import ClassVar, assert_never

from msgspec import Struct

from volplane.api import codec
from volplane.api.apps import ReplicaSet
from volplane.api.core import Pod, ReplicationController
from volplane.base import clock
from volplane.controllers.replicaset.plan import SetReplicaSetStatus, Step, Wanted, plan
from volplane.loops.controller import Controller
from volplane.rules.steps import CommonStep
from volplane.rules.waits import Wait
from volplane.rules.workloads import CreatePod, DeletePod, controller_uids, owner_keys


class ReplicaSetView(Struct, frozen=True):
    wanted: Wanted
    pods: Sequence[Pod]  # that it controls
    now: datetime


class ReplicaSets(Controller[str, ReplicaSetView, Step]):
    name = "replicaset-controller"
    kind: ClassVar[type[Wanted]] = ReplicaSet

    def setup(self) -> None:
        self.sets = self.watch(self.kind, lambda old, new: [new.key] if new else [])
        self.pods = self.watch(Pod, lambda *pods: owner_keys(self.kind.__name__, *pods))
        self.owned = self.pods.index("controller", controller_uids)

    def view(self, key: str) -> ReplicaSetView | None:
        wanted = self.sets.at(key)
        if wanted is None:
            return None
        return ReplicaSetView(wanted, self.owned[wanted.uid], clock.wall())

    def plan(self, view: ReplicaSetView) -> Iterator[Step | Wait]:
        return plan(view.wanted, view.pods, view.now)

    def batches(self, steps: Sequence[Step | CommonStep]) -> Iterable[Sequence[Step | CommonStep]]:
        return (steps,)

    async def act(self, key: str, view: ReplicaSetView, step: Step) -> None:
        wanted = view.wanted
        match step:
            case CreatePod(pod):
                made = await self.client.create(pod)
                self.events.event(wanted, "Normal", "SuccessfulCreate", f"Created pod: {made.name}")
            case DeletePod(pod):
                await self.client.delete(Pod, pod.name, pod.namespace, uid=pod.uid, missing_ok=True)
                self.events.event(wanted, "Normal", "SuccessfulDelete", f"Deleted pod: {pod.name}")
            case SetReplicaSetStatus(status):
                patch = {"status": codec.full_merge_patch(status)}
                where = (wanted.name, wanted.namespace)
                await self.client.patch(self.kind, *where, merge=patch, subresource="status", missing_ok=True)
            case _:
                assert_never(step)


class ReplicationControllers(ReplicaSets):
    name = "replicationcontroller-controller"
    kind = ReplicationController
