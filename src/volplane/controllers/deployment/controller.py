"""Moves each Deployment to its current template through ReplicaSets."""

from __future__ import annotations

from typing import assert_never

from volplane.api import codec
from volplane.api.apps import Deployment, ReplicaSet
from volplane.base import clock
from volplane.controllers.deployment.plan import (
    REVISION,
    Create,
    Remove,
    Report,
    Revise,
    Scale,
    plan,
    revision_of,
)
from volplane.loops.controller import Controller
from volplane.rules.workloads import controller_uids, owner_keys


class Deployments(Controller[str]):
    name = "deployment-controller"

    def setup(self) -> None:
        self.deployments = self.watch(Deployment, lambda old, new: [new.key] if new else [])
        self.sets = self.watch(ReplicaSet, lambda *sets: owner_keys("Deployment", *sets))
        self.owned = self.sets.index("controller", controller_uids)

    async def reconcile(self, key: str) -> None:
        wanted = self.deployments.at(key)
        if wanted is None:
            return
        for step in plan(wanted, self.owned[wanted.uid], clock.stamp()):
            match step:
                case Create(made):
                    await self.client.create(made, exists_ok=True)
                    await self._annotate(wanted, revision_of(made))
                    self._said(wanted, "up", made, 0, made.spec.replicas or 0)
                case Revise(held, revision):
                    note = {"metadata": {"annotations": {REVISION: str(revision)}}}
                    await self.client.patch(ReplicaSet, held.name, held.namespace, merge=note)
                    await self._annotate(wanted, revision)
                case Scale(held, replicas):
                    await self._scale(wanted, held, replicas)
                case Remove(held):
                    await self.client.delete(
                        ReplicaSet, held.name, held.namespace, uid=held.uid, missing_ok=True
                    )
                case Report(status):
                    patch = {"status": codec.exactly(status)}
                    where = (wanted.name, wanted.namespace)
                    await self.client.patch(
                        Deployment, *where, merge=patch, subresource="status", missing_ok=True
                    )
                case _:
                    assert_never(step)

    async def _annotate(self, wanted: Deployment, revision: int) -> None:
        if wanted.metadata.annotations.get(REVISION) != str(revision):
            note = {"metadata": {"annotations": {REVISION: str(revision)}}}
            await self.client.patch(Deployment, wanted.name, wanted.namespace, merge=note, missing_ok=True)

    async def _scale(self, wanted: Deployment, held: ReplicaSet, replicas: int) -> None:
        before = held.spec.replicas or 0
        patch = {"spec": {"replicas": replicas}}
        await self.client.patch(ReplicaSet, held.name, held.namespace, merge=patch, uid=held.uid)
        self._said(wanted, "up" if replicas > before else "down", held, before, replicas)

    def _said(self, wanted: Deployment, way: str, held: ReplicaSet, before: int, after: int) -> None:
        text = f"Scaled {way} replica set {held.name} from {before} to {after}"
        self.events.event(wanted, "Normal", "ScalingReplicaSet", text)
