"""Contract api-server J, StatefulSet: the cases to test, with binder, protection and garbage collection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.controllers.kubelet import Kubelets
from tests.controllers.objects import account, volume
from tests.loops.inprocess import running, until, world
from volplane.api import codec
from volplane.api.apps import StatefulSet
from volplane.api.core import PersistentVolumeClaim, Pod
from volplane.client.client import Client
from volplane.controllers.binder.controller import Binder
from volplane.controllers.garbage.controller import GarbageCollector
from volplane.controllers.protection.controller import ClaimProtection, VolumeProtection
from volplane.controllers.statefulset.controller import StatefulSets

pytestmark = pytest.mark.virtual


def stateful(when_scaled: str) -> StatefulSet:
    template = {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "a"}]}}
    request = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    spec: dict[str, Any] = {
        "replicas": 3,
        "serviceName": "db",
        "selector": {"matchLabels": {"app": "db"}},
        "template": template,
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": when_scaled},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {**request, "storageClassName": ""}}],
    }
    return codec.convert(StatefulSet, {"metadata": {"name": "db", "namespace": "default"}, "spec": spec})


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Client, Kubelets]]:
    async with world() as around:
        await around.client.create(account())
        for number in range(6):
            await around.client.create(volume(f"pv-{number}"))
        kubelets = Kubelets(around.role("kubelets"))
        rooms = (StatefulSets, GarbageCollector, ClaimProtection, VolumeProtection, Binder)
        async with running(kubelets.run(), *(room(around.role("kcm")).run() for room in rooms)):
            yield around.client, kubelets


async def bound(client: Client) -> dict[str, str]:
    claims = await client.list(PersistentVolumeClaim, "default")
    return {c.name: c.spec.volume_name for c in claims if c.status.phase == "Bound" and not c.is_deleting}


async def pods(client: Client) -> list[str]:
    return sorted(p.name for p in await client.list(Pod, "default"))


async def settled(client: Client, replicas: int, claims: int) -> dict[str, str]:
    async def there() -> dict[str, str] | None:
        held = await bound(client)
        everything = await client.list(PersistentVolumeClaim, "default")
        done = len(held) == len(everything) == claims and len(await pods(client)) == replicas
        return held if done else None

    found: dict[str, str] = await until(there, 60)
    return found


async def scale(client: Client, replicas: int) -> None:
    await client.patch(StatefulSet, "db", "default", merge={"spec": {"replicas": replicas}})


async def test_replicas_3_to_1_with_when_scaled_delete_deletes_the_claims_after_their_pods() -> None:
    async with cluster() as (client, kubelets):
        await client.create(stateful("Delete"))
        before = await settled(client, 3, 3)
        kubelets.hung.add("db-2")
        await scale(client, 1)
        await asyncio.sleep(60)
        # The pod is still there, so its claim is; and in order, so is the pod before it.
        assert await pods(client) == ["db-0", "db-1", "db-2"]
        assert set(await bound(client)) == set(before)
        claim = await client.get(PersistentVolumeClaim, "data-db-2", "default")
        assert [(r.kind, r.name) for r in claim.metadata.owner_references] == [("Pod", "db-2")]
        kubelets.hung.clear()
        kubelets.look_again("db-2")
        assert await settled(client, 1, 1) == {"data-db-0": before["data-db-0"]}
        # Scaling up again starts with new claims.
        await scale(client, 3)
        after = await settled(client, 3, 3)
        assert after["data-db-0"] == before["data-db-0"]
        assert after["data-db-2"] != before["data-db-2"]


async def test_with_retain_the_claims_are_kept_and_rebound_on_scale_up() -> None:
    async with cluster() as (client, _):
        await client.create(stateful("Retain"))
        before = await settled(client, 3, 3)
        await scale(client, 1)
        assert await settled(client, 1, 3) == before
        await scale(client, 3)
        assert await settled(client, 3, 3) == before
        pod = await client.get(Pod, "db-2", "default")
        source = pod.spec.volumes[0].persistent_volume_claim
        assert source is not None
        assert source.claim_name == "data-db-2"


async def test_a_claim_is_never_resized_by_its_set() -> None:
    async with cluster() as (client, _):
        await client.create(stateful("Retain"))
        await settled(client, 3, 3)
        large = {"resources": {"requests": {"storage": "5Gi"}}}
        await client.delete(StatefulSet, "db", "default", propagation="Orphan")

        async def gone() -> bool:
            return await client.find(StatefulSet, "db", "default") is None

        await until(gone)
        spec = codec.to_dict(stateful("Retain"))
        spec["spec"]["volumeClaimTemplates"][0]["spec"].update(large)
        await client.create(codec.convert(StatefulSet, spec))
        await asyncio.sleep(10)
        claim = await client.get(PersistentVolumeClaim, "data-db-1", "default")
        assert claim.spec.resources.requests == {"storage": "1Gi"}
