"""Keeps the pods of each ReplicaSet, and those of each ReplicationController in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, assert_never

from msgspec import structs

from volplane.api import codec
from volplane.api.apps import ReplicaSet
from volplane.api.core import Pod, ReplicationController
from volplane.api.errors import APIError
from volplane.base import clock
from volplane.controllers.replicaset.plan import (
    ReplicaSetView,
    SetReplicaSetStatus,
    Step,
    Wanted,
    plan,
    selector_of,
)
from volplane.loops import adoption
from volplane.loops.controller import Controller, Replan
from volplane.loops.workload_pods import create_pod, delete_pod
from volplane.rules.adoption import AdoptObject, ReleaseObject, adopting_keys, became_orphan
from volplane.rules.steps import CommonStep
from volplane.rules.waits import Wait
from volplane.rules.workloads import (
    CreatePod,
    DeletePod,
    controller_uids,
    orphan_namespaces,
    owner_keys,
    workload_batches,
)


class ReplicaSets(Controller[str, ReplicaSetView, Step]):
    name = "replicaset-controller"
    kind: ClassVar[type[Wanted]] = ReplicaSet

    def setup(self) -> None:
        self.sets = self.watch(self.kind, lambda old, new: [new.key] if new else [])
        self.pods = self.watch(Pod, self.keys_of_pod)
        self.owned = self.pods.index("controller", controller_uids)
        self.orphans = self.pods.index("orphans", orphan_namespaces)

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterator[str]:
        yield from owner_keys(self.kind.__name__, old, new)
        if new is not None and became_orphan(old, new):
            yield from adopting_keys(new, self.sets.names(new.namespace).values(), selector_of)

    def view(self, key: str) -> ReplicaSetView | None:
        wanted = self.sets.at(key)
        if wanted is None:
            return None
        return ReplicaSetView(wanted, self.owned[wanted.uid], self.orphans[wanted.namespace], clock.wall())

    def plan(self, view: ReplicaSetView) -> Iterator[Step | Wait]:
        return plan(view)

    def batches(self, steps: Sequence[Step | CommonStep]) -> Iterable[Sequence[Step | CommonStep]]:
        return workload_batches(steps)

    async def act(self, key: str, view: ReplicaSetView, step: Step) -> Replan[ReplicaSetView] | None:
        wanted = view.wanted
        match step:
            case AdoptObject() | ReleaseObject():
                await adoption.carry_out(self.client, wanted, step)
            case CreatePod(pod):
                return _report(view, await create_pod(self.client, self.events, wanted, pod))
            case DeletePod(pod):
                return _report(view, await delete_pod(self.client, self.events, wanted, pod))
            case SetReplicaSetStatus(status):
                patch = {"status": codec.full_merge_patch(status)}
                where = (wanted.name, wanted.namespace)
                await self.client.patch(self.kind, *where, merge=patch, subresource="status", missing_ok=True)
            case _:
                assert_never(step)
        return None


def _report(view: ReplicaSetView, error: APIError | None) -> Replan[ReplicaSetView] | None:
    """After a refusal nothing more is tried in this pass, but the status says why."""
    return None if error is None else Replan(structs.replace(view, failure=str(error)))


class ReplicationControllers(ReplicaSets):
    name = "replicationcontroller-controller"
    kind = ReplicationController
