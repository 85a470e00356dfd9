"""ReplicaSets and Deployments on the real API server: owners, quotas, and how pods are started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.controllers.kubelet import Kubelets
from tests.controllers.objects import account, node, pod
from tests.loops.inprocess import InProcessEnv, running, until, world
from volplane.api import codec
from volplane.api.apps import DaemonSet, Deployment, ReplicaSet
from volplane.api.core import Event, Pod, ReplicationController, ResourceQuota
from volplane.api.meta import Resource
from volplane.controllers.daemonset.controller import DaemonSets
from volplane.controllers.deployment.controller import Deployments
from volplane.controllers.replicaset.controller import ReplicaSets, ReplicationControllers

pytestmark = pytest.mark.virtual

TEMPLATE = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "c", "image": "a"}]},
}
SELECTOR = {"matchLabels": {"app": "web"}}


def workload(of: type[Any], name: str = "web", **spec: Any) -> Any:
    whole = {"selector": SELECTOR, "template": TEMPLATE, **spec}
    return codec.convert(of, {"metadata": {"name": name, "namespace": "default"}, "spec": whole})


def quota(**hard: str) -> ResourceQuota:
    whole = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}}
    return codec.convert(ResourceQuota, whole)


def loose(name: str, **labels: str) -> Pod:
    made = codec.to_dict(pod(name))
    return codec.convert(Pod, {**made, "metadata": {**made["metadata"], "labels": labels or {"app": "web"}}})


@asynccontextmanager
async def workloads() -> AsyncIterator[InProcessEnv]:
    controllers = (ReplicaSets, ReplicationControllers, Deployments, DaemonSets)
    async with world() as env:
        await env.client.create(account())
        roles = [controller(env.role("kcm")) for controller in controllers]
        async with running(Kubelets(env.role("kubelets")).run(), *(role.run() for role in roles)):
            yield env


async def pods_of(env: InProcessEnv, owner: Resource) -> list[Pod]:
    found = await env.client.list(Pod, "default")
    mine = (p for p in found if any(r.uid == owner.uid and r.controller for r in p.metadata.owner_references))
    return [p for p in mine if not p.is_deleting]


async def has_pods(env: InProcessEnv, owner: Resource, count: int) -> list[Pod]:
    async def test() -> list[Pod] | None:
        found = await pods_of(env, owner)
        return found if len(found) == count else None

    found: list[Pod] = await until(test)
    return found


async def conditions(env: InProcessEnv, of: type[Any], *expected: str) -> Any:
    """The object once it has exactly these conditions: `type=status reason`."""

    async def test() -> Any:
        held = await env.client.get(of, "web", "default")
        shown = {f"{c.type}={c.status} {c.reason}" for c in held.status.conditions}
        return held if shown == set(expected) else None

    return await until(test, 3600)


@pytest.mark.parametrize("of", [ReplicaSet, ReplicationController])
async def test_a_set_adopts_a_pod_that_matches_and_releases_one_that_no_longer_does(of: type[Any]) -> None:
    async with workloads() as env:
        await env.client.create(loose("early"))
        await env.client.create(loose("other", app="db"))
        selector = SELECTOR["matchLabels"] if of is ReplicationController else SELECTOR
        wanted = await env.client.create(workload(of, replicas=2, selector=selector))
        assert "early" in [p.name for p in await has_pods(env, wanted, 2)]
        # A pod that is taken aside, as for debugging, is replaced; it stays, without an owner.
        await env.client.patch(Pod, "early", "default", merge={"metadata": {"labels": {"app": "debug"}}})
        await until(lambda: owners_gone(env, "early"))
        assert "early" not in [p.name for p in await has_pods(env, wanted, 2)]
        # It is brought back: the set has one too many, and deletes one.
        await env.client.patch(Pod, "early", "default", merge={"metadata": {"labels": {"app": "web"}}})
        await asyncio.sleep(1)
        await has_pods(env, wanted, 2)
        assert len([p for p in await env.client.list(Pod, "default") if p.name != "other"]) == 2


async def owners_gone(env: InProcessEnv, name: str) -> bool:
    return not (await env.client.get(Pod, name, "default")).metadata.owner_references


async def test_a_deployment_that_is_created_again_adopts_its_set_and_keeps_the_pods() -> None:
    async with workloads() as env:
        first = await env.client.create(workload(Deployment, replicas=2))
        (held,) = await until(lambda: env.client.list(ReplicaSet, "default"))
        before = {p.uid for p in await has_pods(env, held, 2)}
        await env.client.patch(
            ReplicaSet, held.name, "default", merge={"metadata": {"ownerReferences": None}}
        )
        await until(lambda: is_owned_by(env, held.name, first))
        assert {p.uid for p in await pods_of(env, held)} == before


async def is_owned_by(env: InProcessEnv, name: str, owner: Resource) -> bool:
    held = await env.client.get(ReplicaSet, name, "default")
    return [r.uid for r in held.metadata.owner_references] == [owner.uid]


async def test_a_deployment_passes_by_a_set_of_its_name_that_is_not_its_own() -> None:
    async with workloads() as env:
        first = await env.client.create(workload(Deployment, replicas=0))
        (held,) = await until(lambda: env.client.list(ReplicaSet, "default"))
        foreign = {**codec.to_dict(held)["metadata"]["ownerReferences"][0], "uid": "other", "name": "other"}
        await env.client.patch(
            ReplicaSet, held.name, "default", merge={"metadata": {"ownerReferences": [foreign]}}
        )

        async def has_another() -> bool:
            return len(await env.client.list(ReplicaSet, "default")) == 2

        await until(has_another)
        assert (await env.client.get(Deployment, "web", "default")).status.collision_count == 1
        assert first.uid


async def test_a_daemon_set_adopts_the_pods_that_it_finds() -> None:
    async with workloads() as env:
        await env.client.create(node("n"))
        await env.client.create(loose("early"))
        await until(lambda: is_bound(env, "early"))
        wanted = await env.client.create(workload(DaemonSet, updateStrategy={"type": "OnDelete"}))
        (adopted,) = await has_pods(env, wanted, 1)
        assert adopted.name == "early"


async def is_bound(env: InProcessEnv, name: str) -> bool:
    return bool((await env.client.get(Pod, name, "default")).spec.node_name)


async def test_a_quota_shows_in_the_conditions_until_there_is_room() -> None:
    async with workloads() as env:
        await env.client.create(quota(pods="2"))
        await env.client.create(workload(Deployment, replicas=4))
        failure = "ReplicaFailure=True FailedCreate"
        available = "Available=False MinimumReplicasUnavailable"
        held = await conditions(env, Deployment, failure, available, "Progressing=True ReplicaSetUpdated")
        (made,) = await env.client.list(ReplicaSet, "default")
        text = "is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"
        assert text in made.status.conditions[0].message
        assert text in next(c.message for c in held.status.conditions if c.type == "ReplicaFailure")
        assert len(await pods_of(env, made)) == 2
        await asyncio.sleep(1)
        told = [e for e in await env.client.list(Event, "default") if e.reason == "FailedCreate"]
        assert told
        assert all(e.message.startswith('Error creating: pods "web-') for e in told)
        await env.client.patch(ResourceQuota, "q", "default", merge={"spec": {"hard": {"pods": "4"}}})
        await conditions(
            env,
            Deployment,
            "Available=True MinimumReplicasAvailable",
            "Progressing=True NewReplicaSetAvailable",
        )
        assert (await env.client.get(ReplicaSet, made.name, "default")).status.conditions == ()


async def test_few_pods_are_tried_when_all_would_be_refused() -> None:
    async with workloads() as env:
        await env.client.create(quota(pods="3"))
        await env.client.create(workload(ReplicaSet, replicas=100))
        await conditions(env, ReplicaSet, "ReplicaFailure=True FailedCreate")
        told = [
            e for e in await until(lambda: env.client.list(Event, "default")) if e.reason == "FailedCreate"
        ]
        assert sum(e.count or 1 for e in told) < 50  # with a few retries; all at once would be 97


async def test_a_set_that_a_quota_refuses_shows_in_the_deployment() -> None:
    async with workloads() as env:
        await env.client.create(quota(**{"count/replicasets.apps": "0"}))
        await env.client.create(workload(Deployment, replicas=1))
        held = await conditions(
            env,
            Deployment,
            "Progressing=False ReplicaSetCreateError",
            "Available=False MinimumReplicasUnavailable",
        )
        progress = next(c for c in held.status.conditions if c.type == "Progressing")
        assert progress.message.startswith('Failed to create new replica set "web-')
        assert "exceeded quota: q, requested: count/replicasets.apps=1" in progress.message
        await env.client.delete(ResourceQuota, "q", "default")
        await conditions(
            env,
            Deployment,
            "Available=True MinimumReplicasAvailable",
            "Progressing=True NewReplicaSetAvailable",
        )
