"""Budgets and evictions on the real API server, as a drain meets them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.controllers.kubelet import Kubelets
from tests.controllers.objects import account, pod
from tests.loops.inprocess import InProcessEnv, running, until, world
from volplane.api import codec
from volplane.api.apps import ReplicaSet
from volplane.api.core import Pod
from volplane.api.errors import APIError, Invalid, TooManyRequests
from volplane.api.policy import PodDisruptionBudget
from volplane.controllers.disruption.controller import Disruptions
from volplane.controllers.replicaset.controller import ReplicaSets

pytestmark = pytest.mark.virtual


def budget(name: str = "pdb", **spec: Any) -> PodDisruptionBudget:
    whole = {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec},
    }
    return codec.convert(PodDisruptionBudget, whole)


def replica_set(replicas: int) -> ReplicaSet:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "a"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    return codec.convert(ReplicaSet, {"metadata": {"name": "web", "namespace": "default"}, "spec": spec})


class Bench:
    def __init__(self, around: InProcessEnv, kubelets: Kubelets) -> None:
        self.client, self.kubelets = around.client, kubelets

    async def pods(self) -> list[Pod]:
        return await self.client.list(Pod, "default")

    async def allows(self, count: int) -> PodDisruptionBudget:
        async def there() -> PodDisruptionBudget | None:
            held = await self.client.get(PodDisruptionBudget, "pdb", "default")
            current = held.status.observed_generation == held.metadata.generation
            return held if current and held.status.disruptions_allowed == count else None

        found: PodDisruptionBudget = await until(there)
        return found


@asynccontextmanager
async def bench(replicas: int = 3, **spec: Any) -> AsyncIterator[Bench]:
    async with world() as around:
        await around.client.create(account())
        kubelets = Kubelets(around.role("kubelets"))
        rooms = [room(around.role("kcm")) for room in (Disruptions, ReplicaSets)]
        async with running(kubelets.run(), *(room.run() for room in rooms)):
            await around.client.create(replica_set(replicas))
            b = Bench(around, kubelets)

            async def all_ready() -> bool:
                held = await around.client.get(ReplicaSet, "web", "default")
                return held.status.ready_replicas == replicas

            await until(all_ready)
            await around.client.create(budget(**spec))
            yield b


def causes(error: APIError) -> list[tuple[str, str]]:
    return [(c["reason"], c["message"]) for c in error.status()["details"]["causes"]]


async def test_evictions_are_granted_one_at_a_time_and_again_when_the_pod_is_back() -> None:
    async with bench(maxUnavailable=1) as b:
        await b.allows(1)
        first, second, third = await b.pods()
        b.kubelets.hung.add(first.name)
        await b.client.evict(first)
        with pytest.raises(TooManyRequests) as refused:
            await b.client.evict(second)
        assert str(refused.value) == "Cannot evict pod as it would violate the pod's disruption budget."
        assert causes(refused.value)[0][0] == "DisruptionBudget"
        going = await b.client.get(Pod, first.name, "default")
        (mark,) = [c for c in going.status.conditions if c.type == "DisruptionTarget"]
        assert (mark.status, mark.reason) == ("True", "EvictionByEvictionAPI")
        b.kubelets.hung.clear()
        b.kubelets.look_again(first.name)
        await b.allows(1)  # its successor is ready
        await b.client.evict(third)


async def test_two_evictions_at_once_share_one_allowance() -> None:
    async with bench(maxUnavailable=1) as b:
        await b.allows(1)
        pods = await b.pods()
        outcomes = await asyncio.gather(*(b.client.evict(p) for p in pods), return_exceptions=True)
        assert [type(o) for o in outcomes].count(TooManyRequests) == 2
        assert outcomes.count(None) == 1


async def test_the_refusal_names_the_numbers() -> None:
    async with bench(minAvailable=3) as b:
        await b.allows(0)
        (victim, *_) = await b.pods()
        with pytest.raises(TooManyRequests) as refused:
            await b.client.evict(victim)
        text = "The disruption budget pdb needs 3 healthy pods and has 3 currently"
        assert causes(refused.value) == [("DisruptionBudget", text)]
        assert "retryAfterSeconds" not in refused.value.status()["details"]


async def test_a_budget_that_has_not_counted_yet_asks_to_come_back() -> None:
    async with world() as around:
        await around.client.create(account())
        kubelets = Kubelets(around.role("kubelets"))
        async with running(kubelets.run()):
            await around.client.create(budget(minAvailable=0))
            lonely = pod("lonely")
            labelled = {
                **codec.to_dict(lonely),
                "metadata": {**codec.to_dict(lonely)["metadata"], "labels": {"app": "web"}},
            }
            await around.client.create(codec.convert(Pod, labelled))

            async def ready() -> bool:
                held = await around.client.get(Pod, "lonely", "default")
                return held.status.phase == "Running"

            await until(ready)
            with pytest.raises(TooManyRequests) as refused:
                await around.client.evict(await around.client.get(Pod, "lonely", "default"))
            assert refused.value.status()["details"]["retryAfterSeconds"] == 10
            text = "The disruption budget pdb is still being processed by the server."
            assert causes(refused.value) == [("DisruptionBudget", text)]


async def test_an_unready_pod_goes_while_the_others_suffice() -> None:
    async with bench(minAvailable=2) as b:
        await b.allows(1)
        broken, second, _ = await b.pods()
        b.kubelets.unready.add(broken.name)
        b.kubelets.look_again(broken.name)
        await b.allows(0)
        b.kubelets.hung.add(broken.name)
        await b.client.evict(await b.client.get(Pod, broken.name, "default"))
        # Nothing of the budget was spent on it.
        held = await b.client.get(PodDisruptionBudget, "pdb", "default")
        assert held.status.disrupted_pods == {}
        with pytest.raises(TooManyRequests):
            await b.client.evict(second)


async def test_two_budgets_over_one_pod_are_refused() -> None:
    async with bench(minAvailable=1) as b:
        await b.client.create(budget("other", minAvailable=1))
        (victim, *_) = await b.pods()
        with pytest.raises(APIError) as refused:
            await b.client.evict(victim)
        assert refused.value.code == 500
        assert "more than one PodDisruptionBudget" in str(refused.value)


async def test_an_eviction_that_never_shows_is_forgotten_after_two_minutes() -> None:
    async with bench(maxUnavailable=1) as b:
        await b.allows(1)
        name = (await b.pods())[0].name
        patch = {"status": {"disruptionsAllowed": 0, "disruptedPods": {name: "2026-01-01T00:00:00Z"}}}
        await b.client.patch(PodDisruptionBudget, "pdb", "default", merge=patch, subresource="status")
        await asyncio.sleep(60)
        await b.allows(0)
        await asyncio.sleep(70)
        held = await b.allows(1)
        assert held.status.disrupted_pods == {}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            {"minAvailable": 1, "maxUnavailable": 1},
            "minAvailable and maxUnavailable cannot be both set",
            id="both",
        ),
        pytest.param(
            {"minAvailable": -1}, "spec.minAvailable: Invalid value: -1: must be greater than", id="negative"
        ),
        pytest.param(
            {"maxUnavailable": "101%"},
            'spec.maxUnavailable: Invalid value: "101%": must not be',
            id="over all",
        ),
        pytest.param(
            {"minAvailable": 1, "unhealthyPodEvictionPolicy": "Odd"},
            'supported values: "AlwaysAllow", "IfHealthyBudget"',
            id="policy",
        ),
    ],
)
async def test_what_is_refused(spec: dict[str, Any], message: str) -> None:
    async with world() as around:
        with pytest.raises(Invalid) as refused:
            await around.client.create(budget(**spec))
        assert message in str(refused.value)
