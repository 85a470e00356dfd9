"""Ephemeral volumes on the real API server: the cases of contract provisioning B."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.controllers.kubelet import Kubelets
from tests.controllers.objects import account, claim, pod
from tests.loops.inprocess import running, until, world
from volplane.api.core import Event, PersistentVolumeClaim, Pod
from volplane.client.client import Client
from volplane.controllers.ephemeral.controller import EphemeralVolumes
from volplane.controllers.garbage.controller import GarbageCollector
from volplane.controllers.protection.controller import ClaimProtection

pytestmark = pytest.mark.virtual


def scratch_pod() -> Pod:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}]
    return pod("web", volumes=volumes)


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Client, Kubelets]]:
    async with world() as around:
        await around.client.create(account())
        kubelets = Kubelets(around.role("kubelets"))
        rooms = (EphemeralVolumes, GarbageCollector, ClaimProtection)
        async with running(kubelets.run(), *(room(around.role("kcm")).run() for room in rooms)):
            yield around.client, kubelets


async def there(client: Client, *, other_than: str = "") -> PersistentVolumeClaim:
    async def find_claim() -> PersistentVolumeClaim | None:
        held = await client.find(PersistentVolumeClaim, "web-scratch", "default")
        return held if held is not None and held.uid != other_than else None

    held: PersistentVolumeClaim = await until(find_claim)
    return held


async def test_a_claim_comes_and_goes_with_its_pod() -> None:
    async with cluster() as (client, _):
        made = await client.create(scratch_pod())
        held = await there(client)
        assert [r.uid for r in held.metadata.owner_references] == [made.uid]
        await client.delete(Pod, "web", "default")

        async def is_gone() -> bool:
            return await client.find(PersistentVolumeClaim, "web-scratch", "default") is None

        await until(is_gone)


async def test_a_claim_deleted_by_hand_while_its_pod_is_alive_is_made_again() -> None:
    async with cluster() as (client, kubelets):
        kubelets.dead.add("n")  # never scheduled: the claim is not in use and goes at once
        await client.create(scratch_pod())
        held = await there(client)
        await client.delete(PersistentVolumeClaim, held.name, held.namespace)
        await there(client, other_than=held.uid)


async def test_a_foreign_claim_of_that_name_leaves_the_pod_stuck_with_an_event() -> None:
    async with cluster() as (client, _):
        await client.create(claim("web-scratch"))
        await client.create(scratch_pod())
        await asyncio.sleep(10)
        (event,) = [e for e in await client.list(Event, "default") if e.reason == "FailedBinding"]
        assert event.message == (
            "ephemeral volume scratch: PVC default/web-scratch was not created for pod default/web "
            "(pod is not owner)"
        )
        assert (event.type, event.source.component) == ("Warning", "ephemeral_volume")
        held = await client.get(PersistentVolumeClaim, "web-scratch", "default")
        assert held.metadata.owner_references == ()
        # Out of the way, the pod gets its own: the retries notice it.
        await client.patch(
            PersistentVolumeClaim, held.name, held.namespace, merge={"metadata": {"finalizers": None}}
        )
        await client.delete(PersistentVolumeClaim, held.name, held.namespace)
        assert (await there(client, other_than=held.uid)).metadata.owner_references
