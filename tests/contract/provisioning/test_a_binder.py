"""Contract provisioning A, the PV controller: the cases to test. Those that kill it are in test_a_crashes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.provisioning.claims_env import PATIENCE, ClaimsEnv, claim, claims_env, volume
from tests.loops.inprocess import running, until
from tests.support import scripted
from tests.support.timing import is_virtual
from volplane.api.annotations import BETA_STORAGE_CLASS_ANNOTATION, BOUND_BY_CONTROLLER_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.finalizers import PV_PROTECTION_FINALIZER, PVC_PROTECTION_FINALIZER
from volplane.client.cache import Caches
from volplane.client.client import Client
from volplane.controllers.binder.controller import Binder

pytestmark = pytest.mark.both

BINDER = ("binder",)
GUARDED = ("binder", "claim-protection", "volume-protection")


async def available(s: ClaimsEnv, name: str, size: str = "1Gi", **more: Any) -> None:
    await s.volume(name, size, **more)
    await s.phase(PersistentVolume, name, "Available")


async def test_the_smallest_volume_that_is_big_enough_is_taken_and_kept() -> None:
    async with claims_env(roles=BINDER) as s:
        for name, size in (("five", "5Gi"), ("two", "2Gi"), ("ten", "10Gi")):
            await available(s, name, size)
        await s.claim(cls="")
        await s.bound("data", to="two")
        await available(s, "one", "1Gi")
        await s.rest(60)
        await s.bound("data", to="two")
        assert (await s.find(PersistentVolume, "one")).status.phase == "Available"


async def test_a_volume_with_fewer_modes_comes_before_a_smaller_one_with_more() -> None:
    async with claims_env(roles=BINDER) as s:
        await available(s, "a", "1Gi", accessModes=["ReadWriteOnce", "ReadOnlyMany"])
        await available(s, "b", "8Gi")
        await s.claim(cls="")
        await s.bound("data", to="b")


async def winners(s: ClaimsEnv) -> list[PersistentVolumeClaim]:
    return [c for c in await s.client.list(PersistentVolumeClaim, "default") if c.status.phase == "Bound"]


async def test_two_claims_and_one_volume_one_is_bound_and_the_other_waits() -> None:
    async with claims_env(roles=BINDER) as s:
        await asyncio.gather(*(s.claim(f"c{i}", cls="") for i in range(2)))
        await s.volume("only")
        await until(lambda: winners(s), PATIENCE)
        await s.rest(60)
        claims = await s.client.list(PersistentVolumeClaim, "default")
        assert sorted(c.status.phase for c in claims) == ["Bound", "Pending"]
        (winner,) = [c for c in claims if c.status.phase == "Bound"]
        (loser,) = [c for c in claims if c is not winner]
        held = await s.find(PersistentVolume, "only")
        assert held.spec.claim_ref.uid == winner.uid
        assert loser.spec.volume_name == ""


async def test_a_lost_volume_comes_back_without_a_claim_ref_and_not_with_one_that_lacks_the_uid() -> None:
    async with claims_env(roles=GUARDED) as s:
        await available(s, "v")
        await s.claim(cls="")
        await s.bound("data", to="v")
        await s.delete(PersistentVolume, "v")
        await s.rest(60)
        held = await s.find(PersistentVolume, "v")
        assert held.is_deleting
        assert PV_PROTECTION_FINALIZER in held.metadata.finalizers
        await s.edit(PersistentVolume, "v", {"metadata": {"finalizers": None}})
        lost = await s.phase(PersistentVolumeClaim, "data", "Lost")
        assert lost.status.capacity == {}
        assert lost.status.access_modes == ()
        await s.event("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
        await s.volume("v", claimRef={"namespace": "default", "name": "data"})
        await s.rest(60)
        assert (await s.find(PersistentVolumeClaim, "data")).status.phase == "Lost"
        await s.edit(PersistentVolume, "v", {"metadata": {"finalizers": None}})
        await s.delete(PersistentVolume, "v")
        await s.gone(PersistentVolume, "v")
        await s.volume("v")
        mine, _ = await s.bound("data", to="v")
        assert mine.status.capacity == {"storage": "1Gi"}


async def test_a_claim_that_is_made_again_never_gets_the_old_ones_volume_until_the_uid_is_cleared() -> None:
    async with claims_env(roles=GUARDED) as s:
        await available(s, "v")
        old = await s.claim(cls="")
        await s.bound("data", to="v")
        await s.delete(PersistentVolumeClaim, "data")
        await s.gone(PersistentVolumeClaim, "data")
        new = await s.claim(cls="")
        assert new.uid != old.uid
        await s.phase(PersistentVolume, "v", "Released")
        await s.rest(60)
        assert (await s.find(PersistentVolume, "v")).status.phase == "Released"
        assert (await s.find(PersistentVolumeClaim, "data")).status.phase == "Pending"
        await s.edit(PersistentVolume, "v", {"spec": {"claimRef": {"uid": None}}})
        await s.bound("data", to="v")


async def test_a_claim_for_a_volume_that_is_too_small_is_told_and_bound_if_both_sides_ask() -> None:
    async with claims_env(roles=BINDER) as s:
        await available(s, "v", "1Gi")
        await s.claim(size="5Gi", cls="", volumeName="v")
        reported = await s.event("VolumeMismatch")
        assert (reported.type, reported.message) == (
            "Warning",
            'Cannot bind to requested volume "v": requested PV is too small',
        )
        assert (await s.find(PersistentVolumeClaim, "data")).status.phase == "Pending"
        reserved = {"namespace": "default", "name": "data"}
        await s.edit(PersistentVolume, "v", {"spec": {"claimRef": reserved}})
        mine, theirs = await s.bound("data", to="v")
        assert mine.status.capacity == {"storage": "1Gi"}
        for side in (mine, theirs):  # both pointers are the user's, so neither may be undone
            assert BOUND_BY_CONTROLLER_ANNOTATION not in side.metadata.annotations


async def test_a_delayed_claim_waits_for_its_consumer_and_a_reserved_volume_ends_the_wait() -> None:
    async with claims_env(roles=BINDER) as s:
        await s.storage_class("late", mode="WaitForFirstConsumer")
        await available(s, "free", cls="late")
        await s.claim(cls="late")
        waits = await s.event("WaitForFirstConsumer")
        assert waits.message == "waiting for first consumer to be created before binding"
        assert (await s.find(PersistentVolumeClaim, "data")).status.phase == "Pending"
        await s.pod("web", "data")
        waits = await s.event("WaitForPodScheduled")
        assert waits.message == "waiting for pod web to be scheduled"
        await s.pod("api", "data")
        await s.event("WaitForPodScheduled", "waiting for pods api,web to be scheduled")
        await s.claim("other", cls="late")
        await s.volume("mine", cls="late", claimRef={"namespace": "default", "name": "other"})
        await s.bound("other", to="mine")
        assert (await s.find(PersistentVolume, "free")).status.phase == "Available"


async def test_a_default_class_that_comes_later_is_filled_in_and_no_class_is_left_alone() -> None:
    async with claims_env(roles=BINDER) as s:
        await s.claim("unset", cls=None)
        await s.claim("none", cls="")
        await s.event("FailedBinding", about="unset")
        await s.rest(60)
        await s.storage_class("usual", default=True)

        async def adopted() -> bool:
            return bool((await s.find(PersistentVolumeClaim, "unset")).spec.storage_class_name == "usual")

        await until(adopted, 15 if is_virtual() else PATIENCE)
        assert (await s.find(PersistentVolumeClaim, "none")).spec.storage_class_name == ""
        asked = await s.event("ExternalProvisioning", about="unset")
        assert asked.message == (
            f"Waiting for a volume to be created either by the external provisioner '{scripted.NAME}' or "
            "manually by the system administrator. If volume creation is delayed, please verify that the "
            "provisioner is running and correctly registered."
        )


class Behind:
    """A transport whose watches of claims show nothing new, as a slow connection's."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def watch(self, type: type[Any], *args: Any, **options: Any) -> Any:
        if type is PersistentVolumeClaim:
            options["labels"] = "never=there"
        return self._transport.watch(type, *args, **options)


async def test_a_claim_that_the_cache_does_not_show_yet_is_asked_for_before_its_volume_is_released() -> None:
    async with claims_env(roles=()) as s:
        behind = Behind(s.around.transport())
        async with Caches(behind) as caches, running(Binder(Client(behind, caches=caches)).run()):
            await caches.get(PersistentVolumeClaim).wait_synced()
            made = await s.claim(cls="")
            ref = {"namespace": "default", "name": "data", "uid": made.uid}
            policy = {"persistentVolumeReclaimPolicy": "Delete"}
            await s.volume("v", claimRef=ref, **policy)
            await s.volume("w", claimRef={**ref, "uid": "somebody-else"})
            await s.phase(PersistentVolume, "w", "Released")
            await s.rest(60)
            assert (await s.find(PersistentVolume, "v")).status.phase == "Pending"


async def test_a_retained_volume_is_deleted_when_its_policy_changes() -> None:
    driver = scripted.driver()
    async with claims_env(driver) as s:
        await s.storage_class("keep", reclaimPolicy="Retain")
        await s.claim(cls="keep")
        _, held = await s.bound()
        await s.delete(PersistentVolumeClaim, "data")
        await s.phase(PersistentVolume, held.name, "Released")
        await s.rest(60)
        assert driver.requests_of("DeleteVolume") == []
        await s.edit(PersistentVolume, held.name, {"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
        await s.gone(PersistentVolume, held.name)
        assert len(driver.requests_of("DeleteVolume")) == 1
        assert driver.volumes == {}


@pytest.mark.parametrize("by", ["user", "controller"])
async def test_a_volume_whose_claim_took_another_goes_back_to_whom_it_belongs(by: str) -> None:
    async with claims_env(roles=BINDER) as s:
        await available(s, "other")
        made = await s.claim(cls="")
        await s.bound("data", to="other")
        notes = {BOUND_BY_CONTROLLER_ANNOTATION: "yes"} if by == "controller" else {}
        ref = {"namespace": "default", "name": "data", "uid": made.uid}
        await s.client.create(volume("v", metadata={"annotations": notes}, claimRef=ref))
        freed = await s.phase(PersistentVolume, "v", "Available")
        if by == "controller":
            assert freed.spec.claim_ref is None
            assert BOUND_BY_CONTROLLER_ANNOTATION not in freed.metadata.annotations
        else:
            assert freed.spec.claim_ref.name == "data"
            assert freed.spec.claim_ref.uid == ""


# --- branches of A beyond its list of cases


async def test_a_volume_made_for_a_claim_that_took_another_is_given_back_to_its_driver() -> None:
    driver = scripted.driver()
    hold = scripted.Hold()
    driver.script("CreateVolume", hold)
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim()
        await hold.reached_event.wait()
        await s.volume("sooner", cls="fast")
        await s.bound("data", to="sooner")
        hold.release()
        await s.called("DeleteVolume")

        async def settled() -> bool:
            mine = await s.find(PersistentVolumeClaim, "data")
            return len(await s.volumes()) == 1 and len(mine.metadata.finalizers) == 1

        await until(settled, PATIENCE)
        await s.rest(60)
        assert [v.name for v in await s.volumes()] == ["sooner"]
        assert driver.volumes == {}
        assert len(driver.requests_of("CreateVolume")) == len(driver.requests_of("DeleteVolume")) == 1
        assert (await s.find(PersistentVolumeClaim, "data")).metadata.finalizers == (
            PVC_PROTECTION_FINALIZER,
        )


async def test_the_beta_annotation_is_the_class_wherever_it_is_read() -> None:
    async with claims_env(roles=BINDER) as s:
        await available(s, "v", cls="old")
        await s.client.create(claim(cls=None, notes={BETA_STORAGE_CLASS_ANNOTATION: "old"}))
        await s.bound("data", to="v")


async def test_in_tree_deletion_and_recycling_fail_in_the_words_users_know() -> None:
    async with claims_env(roles=GUARDED) as s:
        nfs: dict[str, Any] = {"csi": None, "nfs": {"server": "s", "path": "/"}}
        for name, policy, said, source in (
            ("gone", "Delete", 'error getting deleter volume plugin for volume "gone": ', nfs),
            ("washed", "Recycle", "No recycler plugin found for the volume!", {}),
        ):
            await s.volume(name, persistentVolumeReclaimPolicy=policy, **source)
            await s.claim(name, cls="", volumeName=name)
            await s.bound(name)
            await s.delete(PersistentVolumeClaim, name)
            failed = await s.phase(PersistentVolume, name, "Failed")
            assert failed.status.message.startswith(said)
        assert (await s.event("VolumeFailedDelete")).type == "Warning"


async def recycled(s: ClaimsEnv) -> Pod:
    """A claim on a volume with a directory has gone, and a pod scrubs it."""
    source: dict[str, Any] = {"csi": None, "hostPath": {"path": "/srv/data"}}
    await s.volume("v", persistentVolumeReclaimPolicy="Recycle", **source)
    await s.claim(cls="")
    await s.bound("data", to="v")
    await s.delete(PersistentVolumeClaim, "data")
    await s.gone(PersistentVolumeClaim, "data")
    recycler: Pod = await s.appears(Pod, "recycler-for-v")
    return recycler


async def test_a_recycled_volume_is_scrubbed_by_a_pod_and_free_again() -> None:
    async with claims_env(roles=GUARDED) as s:
        scrubber = await recycled(s)
        assert scrubber.spec.volumes[0].host_path is not None
        assert scrubber.spec.volumes[0].host_path.path == "/srv/data"
        assert (await s.find(PersistentVolume, "v")).status.phase == "Released"
        await s.edit(Pod, "recycler-for-v", {"status": {"phase": "Succeeded"}}, status=True)
        freed = await s.phase(PersistentVolume, "v", "Available")
        assert freed.spec.claim_ref is None
        await s.event("VolumeRecycled")
        await s.gone(Pod, "recycler-for-v")
        await s.claim("next", cls="")
        await s.bound("next", to="v")


async def test_a_scrubber_that_fails_is_told_and_tried_again() -> None:
    async with claims_env(roles=GUARDED) as s:
        first = await recycled(s)
        await s.edit(Pod, first.name, {"status": {"phase": "Failed", "message": "no way"}}, status=True)
        failed = await s.phase(PersistentVolume, "v", "Failed")
        assert failed.status.message == "Recycle failed: no way"
        await s.event("VolumeFailedRecycle", "no way")

        async def again() -> bool:
            found = await s.find(Pod, first.name)
            return found is not None and found.uid != first.uid

        await until(again, PATIENCE)


async def test_a_volume_that_pods_still_use_is_not_scrubbed() -> None:
    async with claims_env(roles=("binder",)) as s:
        source: dict[str, Any] = {"csi": None, "hostPath": {"path": "/srv/data"}}
        await s.volume("v", persistentVolumeReclaimPolicy="Recycle", **source)
        await s.claim(cls="")
        await s.bound("data", to="v")
        await s.pod("web", "data", node="n1")
        await s.edit(PersistentVolumeClaim, "data", {"metadata": {"finalizers": None}})
        await s.delete(PersistentVolumeClaim, "data")
        reported = await s.event("VolumeFailedRecycle")
        assert (reported.type, reported.message) == ("Normal", "Volume is used by pods: default/web")
        assert await s.find(Pod, "recycler-for-v") is None
        await s.delete(Pod, "web", grace=0)
        await s.appears(Pod, "recycler-for-v")


async def test_a_waiting_claim_says_of_each_volume_why_it_will_not_do() -> None:
    async with claims_env(roles=BINDER) as s:
        await available(s, "small", "1Gi", metadata={"labels": {"tier": "gold"}})
        await available(s, "classed", "5Gi", cls="slow", metadata={"labels": {"tier": "gold"}})
        await available(s, "raw", "5Gi", volumeMode="Block")
        await available(s, "silver", "5Gi", metadata={"labels": {"tier": "silver"}})
        await s.claim(size="3Gi", cls="", selector={"matchLabels": {"tier": "gold"}})
        reported = (await s.event("NoVolumeFits")).message
        assert "small: too small by 2Gi (1Gi of 3Gi)" in reported
        assert 'classed: storage class is "slow", not ""' in reported
        assert "raw: volumeMode is Block, not Filesystem" in reported
        assert "silver: selector tier=gold is not met" in reported
