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
from volplane.controllers.daemonset.plan import SetDaemonSetStatus, Step, plan, selector_of
from volplane.loops import adoption
from volplane.loops.controller import Controller, Fail
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


class DaemonSetView(Struct, frozen=True):
    wanted: DaemonSet
    nodes: Sequence[Node]
    pods: Sequence[Pod]  # that it controls
    orphans: Sequence[Pod]  # of its namespace, without a controller
    now: datetime


class DaemonSets(Controller[str, DaemonSetView, Step]):
    name = "daemonset-controller"

    def setup(self) -> None:
        self.sets = self.watch(DaemonSet, lambda old, new: [new.key] if new else [])
        self.nodes = self.watch(Node, self.keys_of_node)
        self.pods = self.watch(Pod, self.keys_of_pod)
        self.owned = self.pods.index("controller", controller_uids)
        self.orphans = self.pods.index("orphans", orphan_namespaces)

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        yield from owner_keys("DaemonSet", old, new)
        if new is not None and became_orphan(old, new):
            yield from adopting_keys(new, self.sets.names(new.namespace).values(), selector_of)

    def keys_of_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        """All sets, if a node may have become eligible or is no longer."""
        if old and new and (old.metadata.labels, old.spec.taints) == (new.metadata.labels, new.spec.taints):
            return []
        return [s.key for s in self.sets.all()]

    def view(self, key: str) -> DaemonSetView | None:
        wanted = self.sets.at(key)
        if wanted is None:
            return None
        return DaemonSetView(
            wanted,
            self.nodes.all(),
            self.owned[wanted.uid],
            self.orphans[wanted.namespace],
            clock.wall(),
        )

    def plan(self, view: DaemonSetView) -> Iterator[Step | Wait]:
        return plan(view.wanted, view.nodes, view.pods, view.now, view.orphans)

    def batches(self, steps: Sequence[Step | CommonStep]) -> Iterable[Sequence[Step | CommonStep]]:
        return workload_batches(steps)

    async def act(self, key: str, view: DaemonSetView, step: Step) -> Fail | None:
        wanted = view.wanted
        match step:
            case AdoptObject() | ReleaseObject():
                await adoption.carry_out(self.client, wanted, step)
            case CreatePod(pod):
                error = await create_pod(self.client, self.events, wanted, pod)
                return Fail(error) if error else None
            case DeletePod(pod):
                error = await delete_pod(self.client, self.events, wanted, pod)
                return Fail(error) if error else None
            case SetDaemonSetStatus(status):
                patch = {"status": codec.full_merge_patch(status)}
                where = (wanted.name, wanted.namespace)
                await self.client.patch(DaemonSet, *where, merge=patch, subresource="status", missing_ok=True)
            case _:
                assert_never(step)
        return None
