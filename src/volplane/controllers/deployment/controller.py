"""Moves each Deployment to its current template through ReplicaSets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from msgspec import structs

from volplane.api import codec
from volplane.api.apps import Deployment, ReplicaSet
from volplane.api.errors import APIError, Conflict
from volplane.base import clock
from volplane.controllers.deployment.plan import (
    CREATE_ERROR,
    REVISION,
    CreateReplicaSet,
    DeleteReplicaSet,
    DeploymentView,
    ScaleReplicaSet,
    SetDeploymentStatus,
    SetRevision,
    Step,
    is_same_set,
    plan,
    revision_of,
    selector_of,
)
from volplane.loops import adoption
from volplane.loops.controller import Controller, Replan
from volplane.rules.adoption import AdoptObject, ReleaseObject, adopting_keys, became_orphan
from volplane.rules.waits import Wait
from volplane.rules.workloads import controller_uids, orphan_namespaces, owner_keys


class Deployments(Controller[str, DeploymentView, Step]):
    name = "deployment-controller"

    def setup(self) -> None:
        self.deployments = self.watch(Deployment, lambda old, new: [new.key] if new else [])
        self.sets = self.watch(ReplicaSet, self.keys_of_set)
        self.owned = self.sets.index("controller", controller_uids)
        self.orphans = self.sets.index("orphans", orphan_namespaces)

    def keys_of_set(self, old: ReplicaSet | None, new: ReplicaSet | None) -> Iterator[str]:
        yield from owner_keys("Deployment", old, new)
        if new is not None and became_orphan(old, new):
            yield from adopting_keys(new, self.deployments.names(new.namespace).values(), selector_of)

    def view(self, key: str) -> DeploymentView | None:
        wanted = self.deployments.at(key)
        if wanted is None:
            return None
        owned, orphans = self.owned[wanted.uid], self.orphans[wanted.namespace]
        return DeploymentView(wanted, owned, clock.stamp(), orphans)

    def plan(self, view: DeploymentView) -> Iterator[Step | Wait]:
        return plan(view)

    async def act(self, key: str, view: DeploymentView, step: Step) -> Replan[DeploymentView] | None:
        wanted = view.wanted
        match step:
            case AdoptObject() | ReleaseObject():
                await adoption.carry_out(self.client, wanted, step)
            case CreateReplicaSet(made):
                return await self._create_set(view, made)
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
        return None

    async def _create_set(self, view: DeploymentView, made: ReplicaSet) -> Replan[DeploymentView] | None:
        wanted = view.wanted
        try:
            held = await self.client.create(made, exists_ok=True)
        except APIError as error:
            why = f'Failed to create new replica set "{made.name}": {error}'
            self.events.event(wanted, "Warning", CREATE_ERROR, why)
            return Replan(structs.replace(view, failure=why))
        if not is_same_set(held, made):
            await self._count_collision(wanted, made)
        await self._annotate(wanted, revision_of(made))
        self._record_scaling(wanted, "up", made, 0, made.spec.replicas or 0)
        return None

    async def _count_collision(self, wanted: Deployment, made: ReplicaSet) -> None:
        """Another set has this name: the next plan uses another one."""
        await self.client.patch(
            Deployment,
            wanted.name,
            wanted.namespace,
            merge={"status": {"collisionCount": (wanted.status.collision_count or 0) + 1}},
            subresource="status",
            uid=wanted.uid,
            missing_ok=True,
        )
        raise Conflict(f"replica set {made.name} belongs to another controller or has another template")

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
