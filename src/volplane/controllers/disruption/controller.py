"""Keeps the status of disruption budgets, which evictions are judged by.

An eviction writes the same status, so every write here is for the revision that was counted from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from volplane.api import codec
from volplane.api.apps import Deployment, ReplicaSet, StatefulSet
from volplane.api.core import Pod
from volplane.api.policy import PodDisruptionBudget
from volplane.base import clock
from volplane.controllers.disruption.plan import Report, plan
from volplane.loops.controller import Controller
from volplane.rules.disruption import covers
from volplane.rules.steps import Say, Wait
from volplane.rules.workloads import controller_of, is_ready

Scaled = Deployment | ReplicaSet | StatefulSet


class Disruptions(Controller[str]):
    name = "disruption-controller"
    component = "controllermanager"

    def setup(self) -> None:
        self.budgets = self.watch(PodDisruptionBudget, lambda old, new: [new.key] if new else [])
        self.pods = self.watch(Pod, self._budgets_of)
        self.deployments = self.watch(Deployment, self._when_scaled)
        self.replica_sets = self.watch(ReplicaSet, self._when_scaled)
        self.stateful_sets = self.watch(StatefulSet, self._when_scaled)

    def _budgets_of(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        if old is not None and new is not None and _counted(old) == _counted(new):
            return
        for pod in (old, new):
            if pod is not None:
                yield from (b.key for b in self.budgets.namespace(pod.namespace) if covers(b, pod))

    def _when_scaled(self, old: Scaled | None, new: Scaled | None) -> Iterable[str]:
        if old is not None and new is not None and old.spec.replicas == new.spec.replicas:
            return []
        owner = new or old
        assert owner is not None
        return [budget.key for budget in self.budgets.namespace(owner.namespace)]

    async def reconcile(self, key: str) -> None:
        budget = self.budgets.at(key)
        if budget is None:
            return
        pods = [p for p in self.pods.namespace(budget.namespace) if covers(budget, p)]
        for step in plan(budget, pods, self._scales(pods), clock.wall()):
            match step:
                case Report(status):
                    await self.client.patch(
                        PodDisruptionBudget,
                        budget.name,
                        budget.namespace,
                        merge={
                            "status": {**codec.exactly(status), "disruptedPods": _exactly(budget, status)}
                        },
                        subresource="status",
                        uid=budget.uid,
                        revision=budget.metadata.resource_version,
                        missing_ok=True,
                    )
                case Wait(seconds, why):
                    self.queue.later(key, seconds, why)
                case Say(type, reason, message):
                    self.events.event(budget, type, reason, message)
                case _:
                    assert_never(step)

    def _scales(self, pods: Sequence[Pod]) -> dict[str, int]:
        """What the pods' owners want, by the uid that the pods know."""
        found: dict[str, int] = {}
        for pod in pods:
            owner = controller_of(pod)
            if owner is None or owner.uid in found:
                continue
            held: Scaled | None = None
            if owner.kind == "ReplicaSet":
                held = self._deployment_or(self.replica_sets.get(owner.name, pod.namespace))
            elif owner.kind == "StatefulSet":
                held = self.stateful_sets.get(owner.name, pod.namespace)
            if held is not None:
                found[owner.uid] = 1 if held.spec.replicas is None else held.spec.replicas
        return found

    def _deployment_or(self, held: ReplicaSet | None) -> Scaled | None:
        """A replica set in a rollout is one part of its deployment; the deployment knows the whole."""
        owner = controller_of(held) if held else None
        if held is None or owner is None or owner.kind != "Deployment":
            return held
        return self.deployments.get(owner.name, held.namespace) or held


def _counted(pod: Pod) -> tuple[Any, ...]:
    return pod.metadata.labels, pod.is_deleting, is_ready(pod), pod.metadata.owner_references


def _exactly(budget: PodDisruptionBudget, status: Any) -> dict[str, str | None]:
    """A merge patch of a map tells what goes, too."""
    gone = budget.status.disrupted_pods.keys() - status.disrupted_pods.keys()
    return {**status.disrupted_pods, **dict.fromkeys(gone)}
