"""Update the status of disruption budgets, which evictions are checked against.

An eviction writes the same status, so every write here requires the revision that was counted from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from volplane.api import codec
from volplane.api.apps import Deployment, ReplicaSet, StatefulSet
from volplane.api.core import Pod
from volplane.api.policy import PodDisruptionBudget
from volplane.base import clock
from volplane.controllers.disruption.plan import SetBudgetStatus, plan
from volplane.loops.controller import Controller
from volplane.rules.disruption import covers
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait
from volplane.rules.workloads import controller_of, is_ready

Scaled = Deployment | ReplicaSet | StatefulSet


class BudgetView(Struct, frozen=True):
    budget: PodDisruptionBudget
    pods: Sequence[Pod]  # that it covers
    scales: Mapping[str, int]  # the replicas that the pods' owners want, by uid
    now: datetime


class Disruptions(Controller[str, BudgetView, SetBudgetStatus]):
    name = "disruption-controller"
    component = "controllermanager"

    def setup(self) -> None:
        self.budgets = self.watch(PodDisruptionBudget, lambda old, new: [new.key] if new else [])
        self.pods = self.watch(Pod, self.keys_of_pod)
        self.deployments = self.watch(Deployment, self.keys_of_owner)
        self.replica_sets = self.watch(ReplicaSet, self.keys_of_owner)
        self.stateful_sets = self.watch(StatefulSet, self.keys_of_owner)

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        if old is not None and new is not None and _relevant_fields(old) == _relevant_fields(new):
            return
        for pod in (old, new):
            if pod is not None:
                yield from (b.key for b in self.budgets.namespace(pod.namespace) if covers(b, pod))

    def keys_of_owner(self, old: Scaled | None, new: Scaled | None) -> Iterable[str]:
        if old is not None and new is not None and old.spec.replicas == new.spec.replicas:
            return []
        owner = new or old
        assert owner is not None
        return [budget.key for budget in self.budgets.namespace(owner.namespace)]

    def view(self, key: str) -> BudgetView | None:
        budget = self.budgets.at(key)
        if budget is None:
            return None
        pods = [p for p in self.pods.namespace(budget.namespace) if covers(budget, p)]
        return BudgetView(budget, pods, self._scales(pods), clock.wall())

    def plan(self, view: BudgetView) -> Iterator[SetBudgetStatus | Wait | RecordEvent]:
        return plan(view.budget, view.pods, view.scales, view.now)

    def subject(self, view: BudgetView) -> PodDisruptionBudget:
        return view.budget

    async def act(self, key: str, view: BudgetView, step: SetBudgetStatus) -> None:
        budget, status = view.budget, step.status
        await self.client.patch(
            PodDisruptionBudget,
            budget.name,
            budget.namespace,
            merge={"status": {**codec.full_merge_patch(status), "disruptedPods": _exactly(budget, status)}},
            subresource="status",
            uid=budget.uid,
            revision=budget.metadata.resource_version,
            missing_ok=True,
        )

    def _scales(self, pods: Sequence[Pod]) -> dict[str, int]:
        """The replicas that the pods' owners want, by the uid in the pods' owner references."""
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
        """The Deployment of a ReplicaSet: in a rollout it has the total number of replicas."""
        owner = controller_of(held) if held else None
        if held is None or owner is None or owner.kind != "Deployment":
            return held
        return self.deployments.get(owner.name, held.namespace) or held


def _relevant_fields(pod: Pod) -> tuple[Any, ...]:
    return pod.metadata.labels, pod.is_deleting, is_ready(pod), pod.metadata.owner_references


def _exactly(budget: PodDisruptionBudget, status: Any) -> dict[str, str | None]:
    """A merge patch of a map must name removed keys."""
    gone = budget.status.disrupted_pods.keys() - status.disrupted_pods.keys()
    return {**status.disrupted_pods, **dict.fromkeys(gone)}
