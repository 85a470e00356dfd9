"""Contract api-server J, garbage collection and namespaces: the cases to test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.controllers.kubelet import Kubelets
from tests.controllers.objects import account, claim, pod
from tests.loops.inprocess import running, until, world
from volplane.api import codec
from volplane.api.apps import Deployment, ReplicaSet
from volplane.api.core import ConfigMap, Namespace, PersistentVolumeClaim, Pod, ServiceAccount
from volplane.api.errors import Forbidden
from volplane.client.client import Client
from volplane.controllers.deployment.controller import Deployments
from volplane.controllers.garbage.controller import GarbageCollector
from volplane.controllers.namespace.controller import Namespaces
from volplane.controllers.protection.controller import ClaimProtection
from volplane.controllers.replicaset.controller import ReplicaSets

pytestmark = pytest.mark.virtual


def deployment() -> Deployment:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "a"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    return codec.convert(Deployment, {"metadata": {"name": "web", "namespace": "default"}, "spec": spec})


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Client, Kubelets]]:
    async with world() as around:
        await around.client.create(account())
        kubelets = Kubelets(around.role("kubelets"))
        rooms = (Deployments, ReplicaSets, GarbageCollector, Namespaces, ClaimProtection)
        async with running(kubelets.run(), *(room(around.role("kcm")).run() for room in rooms)):
            yield around.client, kubelets


async def running_pods(client: Client, count: int) -> None:
    async def there() -> bool:
        pods = await client.list(Pod, "default")
        return len(pods) == count and all(p.status.phase == "Running" for p in pods)

    await until(there)


async def count(client: Client, kind: type[Any]) -> int:
    return len(await client.list(kind, "default"))


async def test_deleting_a_deployment_in_the_background_makes_its_sets_and_pods_vanish() -> None:
    async with cluster() as (client, _):
        await client.create(deployment())
        await running_pods(client, 2)
        await client.delete(Deployment, "web", "default", propagation="Background")
        assert await client.find(Deployment, "web", "default") is None

        async def empty() -> bool:
            return not await count(client, ReplicaSet) and not await count(client, Pod)

        await until(empty)


async def test_orphaning_leaves_the_replica_set_without_an_owner() -> None:
    async with cluster() as (client, _):
        await client.create(deployment())
        await running_pods(client, 2)
        await client.delete(Deployment, "web", "default", propagation="Orphan")

        async def gone() -> bool:
            return await client.find(Deployment, "web", "default") is None

        await until(gone)
        await asyncio.sleep(10)
        (left,) = await client.list(ReplicaSet, "default")
        assert left.metadata.owner_references == ()
        assert await count(client, Pod) == 2


async def test_in_the_foreground_the_deployment_stays_until_its_pods_are_gone() -> None:
    async with cluster() as (client, kubelets):
        await client.create(deployment())
        await running_pods(client, 2)
        pods = [p.name for p in await client.list(Pod, "default")]
        kubelets.hung.update(pods)
        await client.delete(Deployment, "web", "default", propagation="Foreground")
        await asyncio.sleep(30)
        held = await client.get(Deployment, "web", "default")
        assert held.is_deleting
        assert held.metadata.finalizers == ("foregroundDeletion",)
        kubelets.hung.clear()
        kubelets.look_again(*pods)

        async def gone() -> bool:
            return await client.find(Deployment, "web", "default") is None

        await until(gone)
        assert await count(client, Pod) == 0


async def test_a_namespace_is_deleted_pods_first_and_keeps_a_claim_in_use_until_its_pod_is_gone() -> None:
    async with cluster() as (client, kubelets):
        await client.create(codec.convert(Namespace, {"metadata": {"name": "team"}}))
        await client.create(
            codec.convert(ServiceAccount, {"metadata": {"name": "default", "namespace": "team"}}),
            exists_ok=True,
        )
        await client.create(_in_team(claim("data")))
        await client.create(_in_team(pod("web", "data")))

        async def runs() -> bool:
            return (await client.get(Pod, "web", "team")).status.phase == "Running"

        await until(runs)
        kubelets.hung.add("web")
        await client.delete(Namespace, "team")
        await asyncio.sleep(30)
        held = await client.get(Namespace, "team")
        assert held.status.phase == "Terminating"
        conditions = {c.type: c.status for c in held.status.conditions}
        assert conditions["NamespaceContentRemaining"] == "True"
        assert (await client.get(Pod, "web", "team")).is_deleting
        kept = await client.get(PersistentVolumeClaim, "data", "team")
        assert not kept.is_deleting
        with pytest.raises(Forbidden) as refused:
            await client.create(codec.convert(ConfigMap, {"metadata": {"name": "x", "namespace": "team"}}))
        (cause,) = refused.value.status()["details"]["causes"]
        assert (cause["reason"], cause["field"]) == ("NamespaceTerminating", "metadata.namespace")
        kubelets.hung.clear()
        kubelets.look_again("web", namespace="team")

        async def gone() -> bool:
            return await client.find(Namespace, "team") is None

        await until(gone, 120)


def _in_team(obj: Any) -> Any:
    whole = codec.to_dict(obj)
    whole["metadata"]["namespace"] = "team"
    return codec.convert(type(obj), whole)
