"""Contract provisioning B, protection and ephemeral volumes: the cases to test."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.provisioning.claims_env import ClaimsEnv, claims_env, pod
from tests.loops.inprocess import running, until
from tests.support import scripted
from volplane.api import codec
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.finalizers import (
    PV_PROTECTION_FINALIZER,
    PVC_PROTECTION_FINALIZER,
    VAC_PROTECTION_FINALIZER,
)
from volplane.api.storage import VolumeAttributesClass
from volplane.client.client import Client
from volplane.controllers.protection.controller import AttributesProtection, ClaimProtection

pytestmark = pytest.mark.both

CLAIM_GUARD = ("claim-protection",)


async def test_a_claim_used_by_a_running_pod_goes_when_the_pod_is_gone() -> None:
    async with claims_env(roles=CLAIM_GUARD) as s:
        await s.claim(cls="")
        await s.pod("web", "data", node="n1")
        await s.edit(Pod, "web", {"status": {"phase": "Running"}}, status=True)
        await s.delete(PersistentVolumeClaim, "data")
        await s.rest(60)
        assert (await s.find(PersistentVolumeClaim, "data")).is_deleting
        await s.delete(Pod, "web", grace=0)
        await s.gone(PersistentVolumeClaim, "data")


async def test_a_claim_used_only_by_a_pod_without_a_node_goes_at_once() -> None:
    async with claims_env(roles=CLAIM_GUARD) as s:
        await s.claim(cls="")
        await s.pod("web", "data")
        await s.delete(PersistentVolumeClaim, "data")
        await s.gone(PersistentVolumeClaim, "data")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_claim_used_by_a_pod_that_has_ended_stays_until_the_pod_is_deleted(phase: str) -> None:
    async with claims_env(roles=CLAIM_GUARD) as s:
        await s.claim(cls="")
        await s.pod("job", "data", node="n1")
        await s.edit(Pod, "job", {"status": {"phase": phase}}, status=True)
        await s.delete(PersistentVolumeClaim, "data")
        await s.rest(60)
        assert (await s.find(PersistentVolumeClaim, "data")).is_deleting
        await s.delete(Pod, "job", grace=0)
        await s.gone(PersistentVolumeClaim, "data")


class Late:
    """A client whose cache of pods stays empty, while a live list shows them: the moment between the two."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def cache(self, type: type[Any], **options: Any) -> Any:
        if type is Pod:
            options["labels"] = "never=there"
        return self._client.cache(type, **options)


async def test_a_pod_that_the_cache_does_not_show_yet_keeps_the_claim() -> None:
    async with claims_env(roles=()) as s:
        late: Any = Late(s.around.role("protection"))
        async with running(ClaimProtection(late).run()):
            await late.cache(Pod).wait_synced()
            await s.claim(cls="")
            await s.pod("web", "data", node="n1")
            await s.delete(PersistentVolumeClaim, "data")
            await s.rest(60)
            held = await s.find(PersistentVolumeClaim, "data")
            assert PVC_PROTECTION_FINALIZER in held.metadata.finalizers


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
async def test_a_bound_volume_that_is_deleted_stays_with_its_claim_and_keeps_its_policy(policy: str) -> None:
    driver = scripted.driver()
    async with claims_env(driver) as s:
        await s.storage_class(reclaimPolicy=policy)
        await s.claim()
        _, held = await s.bound()
        await s.delete(PersistentVolume, held.name)
        await s.rest(60)
        kept = await s.find(PersistentVolume, held.name)
        assert kept.is_deleting
        assert PV_PROTECTION_FINALIZER in kept.metadata.finalizers
        await s.delete(PersistentVolumeClaim, "data")
        await s.gone(PersistentVolume, held.name)
        assert bool(driver.volumes) is (policy == "Retain")


async def ephemeral(s: ClaimsEnv, name: str = "web", node: str = "") -> Pod:
    template = {
        "metadata": {"labels": {"of": "web"}, "annotations": {"note": "mine"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    made = codec.to_dict(pod(name, node=node))
    made["spec"]["volumes"] = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]
    return await s.client.create(codec.convert(Pod, made))


async def test_an_ephemeral_claim_that_is_deleted_by_hand_is_made_again_while_its_pod_lives() -> None:
    async with claims_env(roles=("ephemeral", "claim-protection")) as s:
        owner = await ephemeral(s)

        async def made(other_than: str = "") -> PersistentVolumeClaim:
            async def there() -> Any:
                found = await s.find(PersistentVolumeClaim, "web-scratch")
                return found if found is not None and found.uid != other_than else None

            found: PersistentVolumeClaim = await until(there, 60)
            return found

        first = await made()
        assert first.metadata.labels == {"of": "web"}
        assert first.metadata.annotations["note"] == "mine"
        (reference,) = first.metadata.owner_references
        assert (reference.api_version, reference.kind, reference.name) == ("v1", "Pod", "web")
        assert reference.uid == owner.uid
        assert reference.controller
        assert reference.block_owner_deletion
        await s.delete(PersistentVolumeClaim, "web-scratch")
        await made(other_than=first.uid)


async def test_a_foreign_claim_of_that_name_is_left_alone_and_the_pod_told() -> None:
    async with claims_env(roles=("ephemeral",)) as s:
        foreign = await s.claim("web-scratch", cls="")
        await ephemeral(s)
        reported = await s.event("FailedBinding", about="web")
        assert (reported.type, reported.message) == (
            "Warning",
            "ephemeral volume scratch: PVC default/web-scratch was not created for pod default/web "
            "(pod is not owner)",
        )
        assert reported.source.component == "ephemeral_volume"
        await s.rest(60)
        assert (await s.find(PersistentVolumeClaim, "web-scratch")).uid == foreign.uid


async def test_a_finalizer_that_a_user_strips_comes_back() -> None:
    async with claims_env(roles=("claim-protection", "volume-protection")) as s:
        await s.claim(cls="")
        await s.volume("v")
        for kind, name, finalizer in (
            (PersistentVolumeClaim, "data", PVC_PROTECTION_FINALIZER),
            (PersistentVolume, "v", PV_PROTECTION_FINALIZER),
        ):
            await s.edit(kind, name, {"metadata": {"finalizers": None}})
            await s.guarded(kind, name, finalizer)


@pytest.mark.parametrize("by", ["a volume", "a claim", "a claim's current", "a claim's target"])
async def test_a_volume_attributes_class_that_is_named_anywhere_stays(by: str) -> None:
    async with (
        claims_env(roles=()) as s,
        running(AttributesProtection(s.around.role("vac-protection")).run()),
    ):
        await s.attributes("gold", iops="1")
        if by == "a volume":
            await s.volume("v", volumeAttributesClassName="gold")
        else:
            spec = {"volumeAttributesClassName": "gold"} if by == "a claim" else {}
            await s.claim(cls="", **spec)
        if by == "a claim's current":
            status = {"currentVolumeAttributesClassName": "gold"}
            await s.edit(PersistentVolumeClaim, "data", {"status": status}, status=True)
        if by == "a claim's target":
            target = {"targetVolumeAttributesClassName": "gold", "status": "InProgress"}
            await s.edit(
                PersistentVolumeClaim, "data", {"status": {"modifyVolumeStatus": target}}, status=True
            )
        await s.guarded(VolumeAttributesClass, "gold", VAC_PROTECTION_FINALIZER)
        await s.delete(VolumeAttributesClass, "gold")
        await s.rest(60)
        assert (await s.find(VolumeAttributesClass, "gold")).is_deleting
        kind, name = (PersistentVolume, "v") if by == "a volume" else (PersistentVolumeClaim, "data")
        await s.edit(kind, name, {"metadata": {"finalizers": None}})
        await s.delete(kind, name)
        await s.gone(VolumeAttributesClass, "gold")
