"""Contract api-server J for the oldest workload: a ReplicationController keeps its pods as a ReplicaSet does.

The other cases of section J stand in tests/contract/workloads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.controllers.kubelet import Kubelets
from tests.controllers.objects import account
from tests.loops.inprocess import running, until, world
from volplane.api import codec
from volplane.api.core import Pod, ReplicationController
from volplane.client.client import Client
from volplane.controllers.garbage.controller import GarbageCollector
from volplane.controllers.replicaset.controller import ReplicaSets, ReplicationControllers

pytestmark = pytest.mark.virtual


@asynccontextmanager
async def cluster() -> AsyncIterator[Client]:
    async with world() as around:
        await around.client.create(account())
        kubelets = Kubelets(around.role("kubelets"))
        rooms = (ReplicationControllers, ReplicaSets, GarbageCollector)
        async with running(kubelets.run(), *(room(around.role("kcm")).run() for room in rooms)):
            yield around.client


async def made(client: Client, replicas: int = 2) -> ReplicationController:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "a"}]}}
    data = {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": replicas, "template": template},
    }
    return await client.create(codec.convert(ReplicationController, data))


async def counted(client: Client, count: int) -> None:
    async def so_many() -> bool:
        pods = await client.list(Pod, "default")
        found = await client.get(ReplicationController, "web", "default")
        return len(pods) == count and found.status.ready_replicas == count

    await until(so_many)


async def test_it_makes_its_pods_and_reports_them() -> None:
    async with cluster() as client:
        wanted = await made(client)
        assert wanted.spec.selector == {"app": "web"}
        assert wanted.metadata.labels == {"app": "web"}
        await counted(client, 2)
        pods = await client.list(Pod, "default")
        owners = {(r.kind, r.api_version, r.uid) for p in pods for r in p.metadata.owner_references}
        assert owners == {("ReplicationController", "v1", wanted.uid)}
        assert all(p.name.startswith("web-") for p in pods)


async def test_it_follows_its_replicas() -> None:
    async with cluster() as client:
        await made(client, 3)
        await counted(client, 3)
        await client.patch(ReplicationController, "web", "default", merge={"spec": {"replicas": 1}})
        await counted(client, 1)
        (left,) = await client.list(Pod, "default")
        await client.delete(Pod, left.name, "default", grace=0)
        await counted(client, 1)


async def test_its_pods_stay_unless_they_are_asked_to_go() -> None:
    """Of all workloads it alone leaves its pods behind when nobody says how it is to be deleted."""
    async with cluster() as client:
        await made(client)
        await counted(client, 2)
        await client.delete(ReplicationController, "web", "default")

        async def gone() -> bool:
            return await client.find(ReplicationController, "web", "default") is None

        await until(gone)
        await asyncio.sleep(10)
        pods = await client.list(Pod, "default")
        assert [p.metadata.owner_references for p in pods] == [(), ()]


async def test_in_the_background_its_pods_go_with_it() -> None:
    async with cluster() as client:
        await made(client)
        await counted(client, 2)
        await client.delete(ReplicationController, "web", "default", propagation="Background")

        async def empty() -> bool:
            return not await client.list(Pod, "default")

        await until(empty)
