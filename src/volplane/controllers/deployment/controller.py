"""Moves each Deployment to its current template through ReplicaSets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec import Struct

from volplane.api import codec
from volplane.api.apps import Deployment, ReplicaSet
from volplane.base import clock
from volplane.controllers.deployment.plan import (
    REVISION,
    CreateReplicaSet,
    DeleteReplicaSet,
    ScaleReplicaSet,
    SetDeploymentStatus,
    SetRevision,
    Step,
    plan,
    revision_of,
)
from volplane.loops.controller import Controller
from volplane.rules.workloads import controller_uids, owner_keys


class DeploymentView(Struct, frozen=True):
    wanted: Deployment
    sets: Sequence[ReplicaSet]  # that it controls
    now: str


class Deployments(Controller[str, DeploymentView, Step]):
    name = "deployment-controller"

    def setup(self) -> None:
        self.deployments = self.watch(Deployment, lambda old, new: [new.key] if new else [])
        self.sets = self.watch(ReplicaSet, lambda *sets: owner_keys("Deployment", *sets))
        self.owned = self.sets.index("controller", controller_uids)

    def view(self, key: str) -> DeploymentView | None:
        wanted = self.deployments.at(key)
        if wanted is None:
            return None
        return DeploymentView(wanted, self.owned[wanted.uid], clock.stamp())

    def plan(self, view: DeploymentView) -> Iterator[Step]:
        return plan(view.wanted, view.sets, view.now)

    async def act(self, key: str, view: DeploymentView, step: Step) -> None:
        wanted = view.wanted
        match step:
            case CreateReplicaSet(made):
                await self.client.create(made, exists_ok=True)
                await self._annotate(wanted, revision_of(made))
                self._record_scaling(wanted, "up", made, 0, made.spec.replicas or 0)
            case SetRevision(existing, revision):
                patch = {"metadata": {"annotations": {REVISION: str(revision)}}}
                await self.client.patch(ReplicaSet, existing.name, existing.namespace, merge=patch)
                await self._annotate(wanted, revision)
            case ScaleReplicaSet(existing, replicas):
                await self._scale(wanted, existing, replicas)
            case DeleteReplicaSet(existing):
                await self.client.delete(
                    ReplicaSet, existing.name, existing.namespace, uid=existing.uid, missing_ok=True
                )
            case SetDeploymentStatus(status):
                patch = {"status": codec.full_merge_patch(status)}
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

    async def _scale(self, wanted: Deployment, existing: ReplicaSet, replicas: int) -> None:
        before = existing.spec.replicas or 0
        patch = {"spec": {"replicas": replicas}}
        await self.client.patch(ReplicaSet, existing.name, existing.namespace, merge=patch, uid=existing.uid)
        self._record_scaling(wanted, "up" if replicas > before else "down", existing, before, replicas)

    def _record_scaling(
        self, wanted: Deployment, way: str, existing: ReplicaSet, before: int, after: int
    ) -> None:
        text = f"Scaled {way} replica set {existing.name} from {before} to {after}"
        self.events.event(wanted, "Normal", "ScalingReplicaSet", text)
