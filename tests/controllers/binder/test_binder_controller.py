"""The binder on the real API server: the cases of contract provisioning A."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.controllers.objects import account, claim, pod, storage_class, volume
from tests.loops.inprocess import InProcessEnv, running, until, world
from volplane.api.annotations import (
    BETA_STORAGE_PROVISIONER_ANNOTATION,
    BOUND_BY_CONTROLLER_ANNOTATION,
    SELECTED_NODE_ANNOTATION,
    STORAGE_PROVISIONER_ANNOTATION,
)
from volplane.api.core import Event, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.finalizers import PVC_PROTECTION_FINALIZER
from volplane.controllers.binder.controller import Binder
from volplane.controllers.protection.controller import ClaimProtection, VolumeProtection
from volplane.rules.binding import is_pair

pytestmark = pytest.mark.virtual


class BinderBench:
    """An API server with a binder, and a client."""

    def __init__(self, around: InProcessEnv) -> None:
        self.client = around.client
        self.role = around.role

    async def claim(self, name: str) -> PersistentVolumeClaim:
        return await self.client.get(PersistentVolumeClaim, name, "default")

    async def volume(self, name: str) -> PersistentVolume:
        return await self.client.get(PersistentVolume, name)

    async def is_bound(self, name: str, to: str) -> None:
        async def is_bound_now() -> bool:
            mine, theirs = await self.claim(name), await self.client.find(PersistentVolume, to)
            return theirs is not None and is_pair(mine, theirs) and theirs.status.phase == "Bound"

        await until(is_bound_now)

    async def is_phase(self, kind: type[Any], name: str, phase: str) -> Any:
        async def has_phase() -> Any:
            found = await self.client.find(kind, name, "default" if kind is PersistentVolumeClaim else "")
            return found if found is not None and found.status.phase == phase else None

        return await until(has_phase)

    async def event(self, reason: str, message: str = "") -> Event:
        async def find_event() -> Event | None:
            events = await self.client.list(Event, "default")
            return next((e for e in events if e.reason == reason and message in e.message), None)

        found: Event = await until(find_event)
        return found

    async def patch(self, kind: type[Any], name: str, patch: dict[str, Any], status: bool = False) -> None:
        namespace = "default" if kind is PersistentVolumeClaim else ""
        await self.client.patch(kind, name, namespace, merge=patch, subresource="status" if status else "")


@asynccontextmanager
async def bench(*roles: type[Any], **options: Any) -> AsyncIterator[BinderBench]:
    async with world() as around:
        await around.client.create(account())
        binder = Binder(around.role("binder"), **options)
        others = [role(around.role("other")) for role in roles]
        async with running(binder.run(), *(other.run() for other in others)):
            yield BinderBench(around)


async def test_a_claim_gets_the_smallest_volume_that_is_big_enough_and_stays_with_it() -> None:
    async with bench() as b:
        for name, size in (("five", "5Gi"), ("two", "2Gi"), ("ten", "10Gi")):
            await b.client.create(volume(name, size))
            await b.is_phase(PersistentVolume, name, "Available")
        await b.client.create(claim("data"))
        await b.is_bound("data", "two")
        await b.client.create(volume("one", "1Gi"))
        await b.is_phase(PersistentVolume, "one", "Available")
        await b.is_bound("data", "two")
        bound = await b.claim("data")
        assert bound.status.capacity == {"storage": "2Gi"}
        assert bound.status.access_modes == ("ReadWriteOnce",)
        assert bound.metadata.annotations[BOUND_BY_CONTROLLER_ANNOTATION] == "yes"
        assert (await b.volume("two")).metadata.annotations[BOUND_BY_CONTROLLER_ANNOTATION] == "yes"


async def test_a_volume_that_comes_later_is_taken_by_the_claim_that_waits() -> None:
    async with bench(sync_period=0.0) as b:
        await b.client.create(claim("data", "2Gi"))
        await b.event(
            "FailedBinding", "no persistent volumes available for this claim and no storage class is set"
        )
        await b.client.create(volume("small", "1Gi"))
        await b.is_phase(PersistentVolume, "small", "Available")
        await b.event("NoVolumeFits", "small: too small by 1Gi (1Gi of 2Gi)")
        await b.client.create(volume("big", "2Gi"))
        await b.is_bound("data", "big")


async def test_many_claims_and_as_many_volumes_pair_up_without_sharing() -> None:
    async with bench() as b:
        for i in range(20):
            await b.client.create(volume(f"v{i}"))
        for i in range(21):
            await b.client.create(claim(f"c{i}"))

        async def twenty() -> list[PersistentVolumeClaim] | None:
            claims = await b.client.list(PersistentVolumeClaim, "default")
            bound = [c for c in claims if c.status.phase == "Bound"]
            return bound if len(bound) == 20 else None

        bound = await until(twenty)
        assert len({c.spec.volume_name for c in bound}) == 20
        pending = [
            c for c in await b.client.list(PersistentVolumeClaim, "default") if c.status.phase != "Bound"
        ]
        assert [c.spec.volume_name for c in pending] == [""]


async def test_an_external_provisioner_is_asked_and_its_volume_is_bound() -> None:
    async with bench() as b:
        await b.client.create(storage_class("fast"))
        await b.client.create(claim("data", cls="fast"))
        await b.event("ExternalProvisioning", "Waiting for a volume to be created either by the external")
        asked = await b.claim("data")
        assert asked.metadata.annotations[STORAGE_PROVISIONER_ANNOTATION] == "ebs.csi.aws.com"
        assert asked.metadata.annotations[BETA_STORAGE_PROVISIONER_ANNOTATION] == "ebs.csi.aws.com"
        reference = {
            "namespace": "default",
            "name": "data",
            "uid": asked.uid,
            "kind": "PersistentVolumeClaim",
        }
        await b.client.create(volume(f"pvc-{asked.uid}", cls="fast", claimRef=reference))
        await b.is_bound("data", f"pvc-{asked.uid}")
        made = await b.volume(f"pvc-{asked.uid}")
        assert BOUND_BY_CONTROLLER_ANNOTATION not in made.metadata.annotations


async def test_a_delayed_claim_waits_for_its_pod_and_then_for_the_scheduler() -> None:
    async with bench() as b:
        await b.client.create(storage_class("late", "WaitForFirstConsumer"))
        await b.client.create(claim("data", cls="late"))
        await b.event("WaitForFirstConsumer", "waiting for first consumer to be created before binding")
        await b.client.create(pod("web", "data"))
        await b.event("WaitForPodScheduled", "waiting for pod web to be scheduled")
        await b.patch(
            PersistentVolumeClaim, "data", {"metadata": {"annotations": {SELECTED_NODE_ANNOTATION: "n1"}}}
        )
        await b.event("ExternalProvisioning")


async def test_a_volume_reserved_for_a_delayed_claim_is_bound_without_a_pod() -> None:
    async with bench() as b:
        await b.client.create(storage_class("late", "WaitForFirstConsumer"))
        await b.client.create(claim("data", cls="late"))
        await b.client.create(volume("pv", cls="late", claimRef={"namespace": "default", "name": "data"}))
        await b.is_bound("data", "pv")


async def test_a_claim_that_asks_for_a_volume_is_told_why_not_and_two_that_ask_for_each_other_are_bound() -> (
    None
):
    async with bench() as b:
        await b.client.create(volume("pv"))
        await b.client.create(claim("data", "5Gi", volumeName="pv"))
        await b.event("VolumeMismatch", 'Cannot bind to requested volume "pv": requested PV is too small')
        await b.patch(
            PersistentVolume, "pv", {"spec": {"claimRef": {"namespace": "default", "name": "data"}}}
        )
        await b.is_bound("data", "pv")


async def test_a_default_class_that_comes_later_is_filled_in_but_not_for_the_empty_class() -> None:
    async with bench() as b:
        await b.client.create(claim("open", cls=None))
        await b.client.create(claim("none", cls=""))
        await b.event("FailedBinding")
        await b.client.create(storage_class("standard", default=True))

        async def is_filled() -> bool:
            return (await b.claim("open")).spec.storage_class_name == "standard"

        await until(is_filled)
        assert (await b.claim("none")).spec.storage_class_name == ""


async def test_a_class_that_does_not_exist_is_told() -> None:
    async with bench() as b:
        await b.client.create(claim("data", cls="gone"))
        await b.event("ProvisioningFailed", 'storageclass.storage.k8s.io "gone" not found')
        assert (await b.claim("data")).status.phase == "Pending"


async def test_retain_keeps_the_volume_and_a_claim_of_the_same_name_does_not_get_it() -> None:
    async with bench(ClaimProtection, VolumeProtection) as b:
        await b.client.create(volume("pv", persistentVolumeReclaimPolicy="Retain"))
        await b.client.create(claim("data"))
        await b.is_bound("data", "pv")
        await b.client.delete(PersistentVolumeClaim, "data", "default")
        released = await b.is_phase(PersistentVolume, "pv", "Released")
        assert released.spec.claim_ref is not None
        await b.client.create(claim("data"))
        await b.event("FailedBinding")
        assert (await b.volume("pv")).status.phase == "Released"
        await b.patch(PersistentVolume, "pv", {"spec": {"claimRef": {"uid": None}}})
        await b.is_bound("data", "pv")


async def test_a_lost_volume_loses_its_claim_and_brings_it_back() -> None:
    async with bench(ClaimProtection, VolumeProtection) as b:
        await b.client.create(volume("pv"))
        await b.client.create(claim("data"))
        await b.is_bound("data", "pv")
        await b.client.delete(PersistentVolume, "pv")
        assert (await b.volume("pv")).is_deleting  # held by pv-protection
        await b.patch(PersistentVolume, "pv", {"metadata": {"finalizers": []}})
        await b.event("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
        await b.is_phase(PersistentVolumeClaim, "data", "Lost")
        await b.client.create(volume("pv", claimRef={"namespace": "default", "name": "data"}))
        await b.is_phase(PersistentVolume, "pv", "Available")
        assert (await b.claim("data")).status.phase == "Lost"  # a reservation without a uid is not enough
        await b.patch(PersistentVolume, "pv", {"spec": {"claimRef": None}})
        await b.is_bound("data", "pv")


async def test_a_volume_whose_claim_took_another_is_given_back() -> None:
    async with bench() as b:
        await b.client.create(volume("mine"))
        await b.client.create(claim("data"))
        await b.is_bound("data", "mine")
        uid = (await b.claim("data")).uid
        reference = {"namespace": "default", "name": "data", "uid": uid}
        await b.client.create(volume("reserved", claimRef=reference))
        ours = {"annotations": {BOUND_BY_CONTROLLER_ANNOTATION: "yes"}}
        await b.client.create(volume("taken", claimRef=reference, metadata=ours))
        await b.is_phase(PersistentVolume, "reserved", "Available")
        await b.is_phase(PersistentVolume, "taken", "Available")
        kept = (await b.volume("reserved")).spec.claim_ref
        assert kept is not None
        assert (kept.name, kept.uid) == ("data", "")
        assert (await b.volume("taken")).spec.claim_ref is None


async def test_a_claim_used_by_a_pod_outlives_its_deletion() -> None:
    async with bench(ClaimProtection) as b:
        await b.client.create(claim("data"))
        await b.client.create(pod("web", "data", on="n1"))

        async def is_protected() -> bool:
            return PVC_PROTECTION_FINALIZER in (await b.claim("data")).metadata.finalizers

        await until(is_protected)
        await b.client.delete(PersistentVolumeClaim, "data", "default")
        assert (await b.claim("data")).is_deleting
        await b.client.delete(Pod, "web", "default", grace=0)

        async def is_gone() -> bool:
            return await b.client.find(PersistentVolumeClaim, "data", "default") is None

        await until(is_gone)
