"""Contract provisioning C, the provisioner: the cases to test. Those that kill it are in test_c_crashes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.provisioning.claims_env import PATIENCE, claims_env
from tests.loops.inprocess import running, until
from tests.support import scripted
from tests.support.scripted import Break, Delay, Fail, Hold, Lose
from tests.support.timing import GRAIN, is_virtual
from volplane import scheduler
from volplane.api import codec, quantity
from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.errors import Unavailable
from volplane.api.finalizers import EXTERNAL_PROVISIONER_FINALIZER, PROVISIONING_INTENT_FINALIZER
from volplane.api.storage import CSINode, StorageClass, VolumeAttachment
from volplane.base import metrics
from volplane.client.client import Client
from volplane.csi.outcome import Code
from volplane.sidecars.provisioner.controller.claims import BIND_GRACE

both = pytest.mark.both


@both
async def test_a_claim_takes_five_writes_until_it_is_bound() -> None:
    """Created, annotated for the provisioner, intent, volumeName without the intent, status."""
    driver = scripted.driver()
    seen: list[PersistentVolumeClaim] = []
    async with claims_env(driver) as s:
        s.client.cache(PersistentVolumeClaim).subscribe(lambda old, new: seen.append(new) if new else None)
        await s.storage_class()
        await s.claim()
        await s.bound()
        await s.rest(BIND_GRACE + 1)  # beyond the time after which the provisioner removes an intent itself
        held = [PROVISIONING_INTENT_FINALIZER in claim.metadata.finalizers for claim in seen]
        assert held == [False, False, True, False, False]
        assert [bool(claim.spec.volume_name) for claim in seen] == [False, False, False, True, True]
        assert PROVISIONING_INTENT_FINALIZER not in seen[-1].metadata.annotations


# DeadlineExceeded although the volume was made


@both
async def test_a_call_that_timed_out_after_the_volume_was_made_is_repeated_identically() -> None:
    driver = scripted.driver()
    driver.script("CreateVolume", Lose(), Lose())
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim()
        await s.bound()
        requests = driver.requests_of("CreateVolume")
        assert len(requests) == 3
        assert all(r == requests[0] for r in requests)
        assert len(driver.volumes) == 1


@pytest.mark.parametrize("how", [Break(), Delay(2.0)], ids=["connection breaks", "time-out of 1s"])
async def test_the_same_on_a_real_socket(how: Any) -> None:
    driver = scripted.driver()
    driver.script("CreateVolume", how)
    async with claims_env(driver, timeout=1.0, retry_interval_start=0.1) as s:
        await s.storage_class()
        await s.claim()
        await s.bound()
        requests = await s.called("CreateVolume", 1 if isinstance(how, Delay) else 2)
        assert all(r == requests[0] for r in requests)
        assert len(driver.volumes) == 1
        assert len(await s.volumes()) == 1


# Claim deleted during background provisioning


@both
async def test_a_claim_deleted_while_the_call_is_open_is_provisioned_to_the_end_and_cleaned_up() -> None:
    driver = scripted.driver()
    driver.script("CreateVolume", Fail(Code.UNAVAILABLE), Lose(Code.ABORTED), Fail(Code.DEADLINE_EXCEEDED))
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim()
        await s.called("CreateVolume")
        await s.delete(PersistentVolumeClaim, "data")
        await s.gone(PersistentVolumeClaim, "data")
        assert len(driver.requests_of("CreateVolume")) == 4
        await s.called("DeleteVolume")
        await until(lambda: s.none_left(PersistentVolume), PATIENCE)
        await s.rest(60)
        assert await s.volumes() == []
        assert driver.volumes == {}
        assert len(driver.requests_of("DeleteVolume")) == 1


@both
async def test_a_claim_deleted_after_a_final_error_is_dropped() -> None:
    driver = scripted.driver()
    driver.always("CreateVolume", Fail(Code.INTERNAL, "no luck"))
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim()
        failed = await s.event("ProvisioningFailed")
        assert (failed.type, failed.message) == (
            "Warning",
            'failed to provision volume with StorageClass "fast": rpc error: code = Internal desc = no luck',
        )
        await s.delete(PersistentVolumeClaim, "data")
        await s.gone(PersistentVolumeClaim, "data")
        calls = len(driver.requests_of("CreateVolume"))
        await s.rest(600)
        assert len(driver.requests_of("CreateVolume")) <= calls + 1


# The API server refuses to save


class Refusing:
    """A client that cannot make volumes for a while."""

    def __init__(self, client: Client) -> None:
        self._client, self.refuses = client, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def create(self, obj: Any, **options: Any) -> Any:
        if self.refuses and isinstance(obj, PersistentVolume):
            raise Unavailable("not now")
        return await self._client.create(obj, **options)


@both
async def test_a_volume_that_cannot_be_saved_for_ten_minutes_is_saved_later_and_never_deleted() -> None:
    driver = scripted.driver()
    made: list[Refusing] = []

    def refusing(around: Any) -> Refusing:
        made.append(Refusing(around.role("csi-provisioner")))
        return made[0]

    async with claims_env(driver, client=refusing) as s:
        await s.storage_class()
        await s.claim()
        await s.called("CreateVolume")
        await s.rest(600)
        assert await s.volumes() == []
        made[0].refuses = False
        await s.rest(1000)
        await s.bound()
        assert driver.requests_of("DeleteVolume") == []
        assert len(driver.requests_of("CreateVolume")) == 1


# ResourceExhausted, Internal


@both
@pytest.mark.parametrize(
    ("mode", "code", "kept"),
    [
        ("WaitForFirstConsumer", Code.RESOURCE_EXHAUSTED, False),
        ("WaitForFirstConsumer", Code.INTERNAL, True),
        ("Immediate", Code.RESOURCE_EXHAUSTED, None),
    ],
)
async def test_a_full_node_is_given_back_and_another_error_keeps_it(
    mode: str, code: Code, kept: bool | None
) -> None:
    driver = scripted.driver("topology")
    driver.always("CreateVolume", Fail(code))
    async with claims_env(driver, roles=("binder", "provisioner")) as s:
        await s.storage_class(mode=mode)
        await s.node("n1", "a")
        chosen = {SELECTED_NODE_ANNOTATION: "n1"} if kept is not None else {}
        await s.claim(notes=chosen)
        await s.called("CreateVolume")

        async def so_it_is() -> bool:
            notes = (await s.find(PersistentVolumeClaim, "data")).metadata.annotations
            repeated = len(driver.requests_of("CreateVolume")) > 1
            as_chosen = kept is None or (SELECTED_NODE_ANNOTATION in notes) is kept
            return (
                as_chosen and repeated is (kept is not False) and PROVISIONING_INTENT_FINALIZER not in notes
            )

        await until(so_it_is, PATIENCE)
        await s.rest(10)
        await until(so_it_is, PATIENCE)


@both
async def test_a_pod_whose_node_is_full_is_scheduled_elsewhere() -> None:
    driver = scripted.driver("topology")
    async with claims_env(driver) as s:
        await s.storage_class(mode="WaitForFirstConsumer")
        for name, zone in (("n1", "a"), ("n2", "b")):
            await s.node(name, zone)
            status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"pods": "110"}}
            await s.edit(Node, name, {"status": status}, status=True)
        driver.script("CreateVolume", Fail(Code.RESOURCE_EXHAUSTED))
        async with running(scheduler.run(s.around.role("scheduler"))):
            await s.claim()
            await s.pod("web", "data")
            first, second = await s.called("CreateVolume", 2)
            zones = [
                r.accessibility_requirements.preferred[0].segments[scripted.ZONE] for r in (first, second)
            ]
            await s.bound()
            landed = await s.client.get(Pod, "web", "default")
            async with asyncio.timeout(60):
                while not landed.spec.node_name:
                    await asyncio.sleep(0.1)
                    landed = await s.client.get(Pod, "web", "default")
            assert landed.spec.node_name == {"a": "n1", "b": "n2"}[zones[1]]


# InvalidArgument


@both
async def test_wrong_arguments_are_not_repeated_within_five_minutes() -> None:
    driver = scripted.driver()
    driver.always("CreateVolume", Fail(Code.INVALID_ARGUMENT, "no such type"))
    pause = 300.0 if is_virtual() else 0.5
    async with claims_env(
        driver, **(dict[str, Any]() if is_virtual() else {"infeasible_retry_interval": pause})
    ) as s:
        await s.storage_class()
        await s.claim()
        reported = await s.event("ProvisioningFailed")
        assert reported.message == (
            "Volume provisioning failed with infeasible error. Retries will be delayed. "
            "rpc error: code = InvalidArgument desc = no such type"
        )
        await asyncio.sleep(2 * pause)
        await s.called("CreateVolume", 3)
        assert min(driver.pauses("CreateVolume")) > pause - GRAIN


@both
async def test_a_class_that_is_made_again_is_tried_at_once() -> None:
    driver = scripted.driver()
    driver.script("CreateVolume", Fail(Code.INVALID_ARGUMENT))
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim()
        await s.event("ProvisioningFailed")
        await s.delete(StorageClass, "fast")
        await s.storage_class()
        await s.bound()
        assert len(driver.requests_of("CreateVolume")) == 2


# What the driver answers


@both
async def test_a_volume_that_is_too_small_is_deleted_and_ordered_again() -> None:
    driver = scripted.driver()
    driver.answers = 1 << 29
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim()
        await s.called("DeleteVolume")

        async def given_back() -> bool:
            return not driver.volumes

        await until(given_back, PATIENCE)
        await s.event("ProvisioningFailed", "created volume capacity 536870912 less than requested")
        assert (
            PROVISIONING_INTENT_FINALIZER in (await s.find(PersistentVolumeClaim, "data")).metadata.finalizers
        )
        driver.answers = None
        _, held = await s.bound()
        assert held.spec.capacity == {"storage": "1Gi"}


@both
async def test_a_volume_of_unknown_size_has_the_size_that_was_asked_for() -> None:
    driver = scripted.driver()
    driver.answers = 0
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim(size="1500M")
        _, held = await s.bound()
        assert quantity.value(held.spec.capacity["storage"]) == 1_500_000_000


@both
async def test_a_selected_node_that_is_gone_leaves_the_requirements_as_they_were() -> None:
    driver = scripted.driver("topology")
    driver.script("CreateVolume", Fail(Code.DEADLINE_EXCEEDED), Lose())
    async with claims_env(driver, roles=("binder", "provisioner")) as s:
        await s.storage_class(mode="WaitForFirstConsumer")
        await s.node("n1", "a")
        await s.node("n2", "b")
        await s.claim(notes={SELECTED_NODE_ANNOTATION: "n2"})
        await s.called("CreateVolume")
        await s.delete(CSINode, "n2")
        await s.delete(Node, "n2")
        await s.bound()
        requests = driver.requests_of("CreateVolume")
        assert len(requests) == 3
        assert all(r == requests[0] for r in requests)
        preferred = requests[0].accessibility_requirements.preferred
        assert [t.segments[scripted.ZONE] for t in preferred] == ["b", "a"]


# The end of a volume


@both
@pytest.mark.parametrize("policy", ["Delete", "Retain"])
async def test_a_volume_deleted_before_its_claim_keeps_its_policy(policy: str) -> None:
    driver = scripted.driver()
    async with claims_env(driver) as s:
        await s.storage_class(reclaimPolicy=policy)
        await s.claim()
        _, held = await s.bound()
        await s.delete(PersistentVolume, held.name)
        await s.rest(60)
        assert (await s.find(PersistentVolume, held.name)).is_deleting
        await s.delete(PersistentVolumeClaim, "data")
        await s.gone(PersistentVolume, held.name)
        assert len(driver.requests_of("DeleteVolume")) == (1 if policy == "Delete" else 0)
        assert len(driver.volumes) == (0 if policy == "Delete" else 1)


@both
async def test_a_released_volume_whose_policy_becomes_retain_is_kept() -> None:
    driver = scripted.driver()
    driver.always("DeleteVolume", Fail(Code.INTERNAL, "busy"))
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim()
        _, held = await s.bound()
        await s.delete(PersistentVolumeClaim, "data")
        reported = await s.event("VolumeFailedDelete", about=held.name)
        assert (reported.type, reported.message) == ("Warning", "rpc error: code = Internal desc = busy")
        await s.edit(PersistentVolume, held.name, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})

        async def let_go() -> bool:
            kept = await s.find(PersistentVolume, held.name)
            return EXTERNAL_PROVISIONER_FINALIZER not in kept.metadata.finalizers

        await until(let_go, PATIENCE)
        calls = len(driver.requests_of("DeleteVolume"))
        await s.rest(600)
        assert len(driver.requests_of("DeleteVolume")) == calls
        kept = await s.find(PersistentVolume, held.name)
        assert kept.status.phase == "Released"
        assert len(driver.volumes) == 1


class Dropping:
    """A client whose patches of volumes fail for a while."""

    def __init__(self, client: Client) -> None:
        self._client, self.refuses = client, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def patch(self, type: type[Any], *args: Any, **options: Any) -> Any:
        if self.refuses and type is PersistentVolume:
            raise Unavailable("not now")
        return await self._client.patch(type, *args, **options)


@both
async def test_a_finalizer_that_cannot_be_dropped_repeats_the_deletion() -> None:
    driver = scripted.driver()
    made: list[Dropping] = []

    def dropping(around: Any) -> Dropping:
        made.append(Dropping(around.role("csi-provisioner")))
        return made[0]

    async with claims_env(driver, client=dropping) as s:
        await s.storage_class()
        await s.claim()
        _, held = await s.bound()
        made[0].refuses = True
        await s.delete(PersistentVolumeClaim, "data")
        await s.called("DeleteVolume", 2)
        made[0].refuses = False
        await s.gone(PersistentVolume, held.name)
        assert driver.volumes == {}


@both
async def test_an_unknown_reserved_parameter_is_refused_without_a_call() -> None:
    driver = scripted.driver()
    async with claims_env(driver) as s:
        await s.storage_class(parameters={"csi.storage.k8s.io/foo": "bar"})
        await s.claim()
        reported = await s.event("ProvisioningFailed")
        assert "csi.storage.k8s.io/foo" in reported.message
        await s.rest(600)
        assert driver.calls == []


# Beyond the list


@both
async def test_a_volume_that_is_still_attached_is_not_deleted() -> None:
    driver = scripted.driver("attach")
    async with claims_env(driver) as s:
        await s.storage_class()
        await s.claim()
        _, held = await s.bound()
        spec = {"attacher": scripted.NAME, "nodeName": "n1", "source": {"persistentVolumeName": held.name}}
        await s.client.create(codec.convert(VolumeAttachment, {"metadata": {"name": "a"}, "spec": spec}))
        await s.delete(PersistentVolumeClaim, "data")
        reported = await s.event("VolumeFailedDelete")
        assert reported.message == f"persistentvolume {held.name} is still attached to node n1"
        assert driver.requests_of("DeleteVolume") == []
        await s.client.delete(VolumeAttachment, "a")
        await s.gone(PersistentVolume, held.name)


@both
async def test_a_static_volume_of_the_driver_is_looked_after_too() -> None:
    driver = scripted.driver()
    async with claims_env(driver) as s:
        await s.volume("mine", persistentVolumeReclaimPolicy="Delete")
        await s.claim(cls="")
        await s.bound("data", to="mine")
        await s.guarded(PersistentVolume, "mine", EXTERNAL_PROVISIONER_FINALIZER)
        await s.delete(PersistentVolumeClaim, "data")
        await s.gone(PersistentVolume, "mine")
        assert [r.volume_id for r in driver.requests_of("DeleteVolume")] == ["vol-mine"]


async def test_a_call_that_hangs_holds_up_no_other_claim() -> None:
    driver = scripted.driver()
    hold = Hold()
    driver.script("CreateVolume", hold)
    async with claims_env(driver, timeout=60.0) as s:
        await s.storage_class()
        for i in range(20):
            await s.claim(f"c{i}")

        async def others() -> bool:
            claims = await s.client.list(PersistentVolumeClaim, "default")
            return sum(c.status.phase == "Bound" for c in claims) == 19

        await until(others, 60)
        hold.release()


@both
async def test_what_operators_count_is_counted_under_the_names_they_know() -> None:
    driver = scripted.driver()
    driver.script("CreateVolume", Fail(Code.INTERNAL))
    driver.script("DeleteVolume", Fail(Code.INTERNAL))
    name = "counted-in-memory" if is_virtual() else "counted"  # the counts are of the whole process
    async with claims_env(driver) as s:
        await s.storage_class(name)
        await s.claim(cls=name)
        _, held = await s.bound()
        await s.delete(PersistentVolumeClaim, "data")
        await s.gone(PersistentVolume, held.name)
    reported = metrics.render().decode()
    for line in (
        f'controller_persistentvolumeclaim_provision_total{{class="{name}",source=""}} 1.0',
        f'controller_persistentvolumeclaim_provision_failed_total{{class="{name}",source=""}} 1.0',
        f'controller_persistentvolumeclaim_provision_duration_seconds_count{{class="{name}",source=""}} 1.0',
        f'controller_persistentvolume_delete_total{{class="{name}"}} 1.0',
        f'controller_persistentvolume_delete_failed_total{{class="{name}"}} 1.0',
        f'controller_persistentvolume_delete_duration_seconds_count{{class="{name}"}} 1.0',
    ):
        assert line in reported
