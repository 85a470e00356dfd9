"""Section B, case by case: the external-attacher on a real socket; rules of minutes in virtual time too.

Cases that kill somebody are in test_ab_crashes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.attach_and_mount.plant import FINALIZER, LONG, Plant, beside, plant, quiet, unique
from tests.loops.inprocess import until
from tests.support import scripted
from tests.support.scripted import NAME, Fail, Hold, Lose
from tests.support.timing import GRAIN, is_virtual, rest
from volplane.api import codec, names
from volplane.api.annotations import ATTACHMENT_NODE_ID_ANNOTATION
from volplane.api.coordination import Lease
from volplane.api.core import Node, PersistentVolume, Secret
from volplane.api.storage import CSINode, VolumeAttachment
from volplane.csi.outcome import Code

both = pytest.mark.both

NEVER = 36_000.0


async def until_called(p: Plant, method: str, times: int = 1) -> None:
    async def called() -> bool:
        return p.calls(method) >= times

    await until(called, LONG)


async def test_va_deleted_while_publish_is_in_flight_next_pass_unpublishes() -> None:
    driver = scripted.driver("attach")
    hold = Hold()
    driver.script("ControllerPublishVolume", hold)
    async with plant("a", driver=driver) as p:
        await p.volume()
        await p.pod("web", on="a")
        await asyncio.wait_for(hold.reached_event.wait(), LONG)
        await p.remove_pod("web")

        async def leaving() -> bool:
            found = await p.attachment("a")
            return found is not None and found.is_deleting

        await until(leaving, LONG)
        await quiet()
        assert p.calls("ControllerUnpublishVolume") == 0
        hold.release()
        await p.detached("a")
        order = [name for name, _ in driver.calls]
        assert order == ["ControllerPublishVolume", "ControllerUnpublishVolume"]


@both
async def test_controllerpublish_deadline_exceeded_attacherror_finalizer_kept_retry_1_s_2_s_4_s() -> None:
    driver = scripted.driver("attach")
    hold = Hold(then=Lose(Code.DEADLINE_EXCEEDED))
    driver.script("ControllerPublishVolume", *[Lose(Code.DEADLINE_EXCEEDED)] * 2, hold)
    flags: dict[str, Any] = {} if is_virtual() else {"retry_interval_start": 0.1}
    async with plant("a", driver=driver, settings=flags) as p:
        await p.volume()
        await p.pod("web", on="a")
        await asyncio.wait_for(hold.reached_event.wait(), LONG)
        held = await p.attachment("a")
        assert held is not None
        assert held.status.attach_error is not None
        assert held.status.attach_error.message.startswith("rpc error: code = DeadlineExceeded")
        assert FINALIZER in held.metadata.finalizers
        hold.release()
        done = await p.attached("a")
        assert done.status.attach_error is None
        assert p.calls("ControllerPublishVolume") == 4
        for pause, times in zip(driver.pauses("ControllerPublishVolume"), (1, 2, 4), strict=True):
            assert pause > times * flags.get("retry_interval_start", 1.0) - GRAIN


@both
async def test_controllerpublish_that_hangs_is_given_up_after_its_timeout_and_tried_again() -> None:
    """The driver is still at it, and says so, until it is done."""
    timeout = 15.0 if is_virtual() else 0.3
    driver = scripted.driver("attach")
    hold = Hold()
    driver.script("ControllerPublishVolume", hold)
    flags = {} if is_virtual() else {"timeout": timeout, "retry_interval_start": 0.5}
    async with plant("a", driver=driver, settings=flags) as p:
        await p.volume()
        await p.pod("web", on="a")
        await asyncio.wait_for(hold.reached_event.wait(), LONG)

        async def given_up() -> bool:
            found = await p.attachment("a")
            error = found.status.attach_error if found is not None else None
            return error is not None and "code = DeadlineExceeded" in error.message

        await until(given_up, LONG)
        hold.release()
        await p.attached("a")
        (pause,) = driver.pauses("ControllerPublishVolume")
        assert pause > timeout + flags.get("retry_interval_start", 1.0) - GRAIN
        assert driver.violations == 0


@both
async def test_pauses_between_tries_double_up_to_5_min() -> None:
    driver = scripted.driver("attach")
    driver.always("ControllerPublishVolume", Fail(Code.INTERNAL, "no"))
    first, longest, tries = (1.0, 300.0, 14) if is_virtual() else (0.1, 0.3, 6)
    flags: dict[str, Any] = (
        {} if is_virtual() else {"retry_interval_start": first, "retry_interval_max": longest}
    )
    async with plant("a", driver=driver, working=("controller",)) as p:
        await p.start_attacher(resync=0.0, **flags)
        await p.volume()
        await p.pod("web", on="a")
        await asyncio.sleep(3000 if is_virtual() else 0)
        await until_called(p, "ControllerPublishVolume", tries)
        pauses = driver.pauses("ControllerPublishVolume")
        for number, pause in enumerate(pauses):
            assert pause > min(first * 2**number, longest) - GRAIN
        if is_virtual():
            assert max(pauses) < longest + 1


@both
async def test_a_resync_tries_again_before_the_pause_is_over() -> None:
    each = 600.0 if is_virtual() else 0.3
    driver = scripted.driver("attach")
    driver.script("ControllerPublishVolume", Fail(Code.INTERNAL, "no"))
    settings = {"retry_interval_start": NEVER, "retry_interval_max": NEVER}
    settings |= {} if is_virtual() else {"resync": each}
    async with plant("a", driver=driver, settings=settings) as p:
        await p.volume()
        await p.pod("web", on="a")
        await until_called(p, "ControllerPublishVolume")
        await asyncio.sleep(each)
        await p.attached("a")
        assert p.calls("ControllerPublishVolume") == 2


async def test_driver_unregistered_from_csinode_attach_fails_with_message_detach_works_from_annotation() -> (
    None
):
    async with plant("a", "b") as p:
        await p.volume()
        await p.volume("late")
        await p.pod("web", on="a")
        held = await p.attached("a")
        assert held.metadata.annotations[ATTACHMENT_NODE_ID_ANNOTATION] == "a"
        for name in ("a", "b"):
            await p.client.patch(CSINode, name, merge={"spec": {"drivers": []}})
        await p.pod("late", "late", on="b")
        await p.expect_event(
            "FailedAttachVolume",
            f'AttachVolume.Attach failed for volume "pv-late" : CSINode b does not contain driver {NAME}',
        )
        await p.remove_pod("web")
        await p.detached("a")
        assert p.driver.requests_of("ControllerUnpublishVolume")[0].node_id == "a"


async def test_csinode_gone_and_annotation_absent_detach_error_va_stays() -> None:
    async with plant("a") as p:
        await p.volume()
        await p.pod("web", on="a")
        held = await p.attached("a")
        await p.client.delete(CSINode, "a")
        await p.client.patch(VolumeAttachment, held.name, merge={"metadata": {"annotations": None}})
        await p.remove_pod("web")

        async def failed() -> bool:
            found = await p.attachment("a")
            return found is not None and found.status.detach_error is not None

        await until(failed, LONG)
        assert p.calls("ControllerUnpublishVolume") == 0
        await p.client.patch(
            VolumeAttachment,
            held.name,
            merge={"metadata": {"annotations": {ATTACHMENT_NODE_ID_ANNOTATION: "a"}}},
        )
        await p.detached("a")


async def test_secret_missing_attacherror_naming_it_no_rpc() -> None:
    async with plant("a") as p:
        reference = {"name": "key", "namespace": "kube-system"}
        await p.volume(csi={"controllerPublishSecretRef": reference})
        await p.pod("web", on="a")

        async def named() -> bool:
            found = await p.attachment("a")
            error = found.status.attach_error if found is not None else None
            return error is not None and "kube-system/key" in error.message

        await until(named, LONG)
        assert p.calls("ControllerPublishVolume") == 0
        body = {"metadata": {"name": "key", "namespace": "kube-system"}, "stringData": {"user": "me"}}
        await p.client.create(codec.convert(Secret, body))
        await p.attached("a")
        assert dict(p.driver.requests_of("ControllerPublishVolume")[0].secrets) == {"user": "me"}


@pytest.mark.parametrize("capable", [True, False])
async def test_readonly_pv_without_publish_readonly_request_has_readonly_false(capable: bool) -> None:
    driver = scripted.driver(*(["attach", "readonly"] if capable else ["attach"]))
    async with plant("a", driver=driver) as p:
        await p.volume(csi={"readOnly": True})
        await p.pod("web", on="a")
        await p.attached("a")
        assert driver.requests_of("ControllerPublishVolume")[0].readonly is capable


async def test_no_publish_unpublish_capability_va_attached_no_finalizer() -> None:
    driver = scripted.driver()
    async with plant("a", driver=driver) as p:
        await p.volume()
        await p.pod("web", on="a")
        held = await p.attached("a")
        assert not held.metadata.finalizers
        assert not held.status.attachment_metadata
        assert FINALIZER not in (await p.client.get(PersistentVolume, "pv-data")).metadata.finalizers
        await p.remove_pod("web")
        await p.detached("a")
        assert driver.calls == []


@both
async def test_listvolumes_shows_the_volume_missing_on_the_node_publish_reissued() -> None:
    driver = scripted.driver("attach", "list", "list-published")
    each = 60.0 if is_virtual() else 0.3
    async with plant("a", driver=driver, settings={} if is_virtual() else {"reconcile_sync": each}) as p:
        await p.volume()
        await _known_to(driver, "vol-data")
        await p.pod("web", on="a")
        await p.attached("a")
        driver.publications["vol-data"].clear()  # somebody has detached it at the storage itself
        await asyncio.sleep(each)

        async def again() -> bool:
            return await p.published() == {"a"}

        await until(again, LONG)
        assert p.calls("ControllerPublishVolume") == 2
        driver.publications["vol-stray"].add("a")  # a publication without an attachment is not touched
        rounds = p.calls("ListVolumes")
        await asyncio.sleep(each)
        await until_called(p, "ListVolumes", rounds + 1)
        assert await p.published("stray") == {"a"}
        assert p.calls("ControllerPublishVolume") == 2
        assert min(driver.pauses("ListVolumes")) > each - GRAIN


async def _known_to(driver: scripted.ScriptedDriver, handle: str) -> None:
    from volplane.csi import v1

    driver.volumes[handle] = v1.Volume(volume_id=handle)


async def test_pv_deleted_while_attached_remains_until_the_va_is_gone_then_finalizer_drops() -> None:
    async with plant("a") as p:
        await p.volume()
        await p.pod("web", on="a")
        await p.attached("a")
        await p.client.delete(PersistentVolume, "pv-data")
        # Its protection is nobody's here: only the attacher holds it.
        kept = (await p.client.get(PersistentVolume, "pv-data")).metadata.finalizers
        assert FINALIZER in kept
        await p.client.patch(PersistentVolume, "pv-data", merge={"metadata": {"finalizers": [FINALIZER]}})
        await quiet()
        assert await p.client.find(PersistentVolume, "pv-data") is not None
        await p.remove_pod("web")
        await p.detached("a")

        async def gone() -> bool:
            return await p.client.find(PersistentVolume, "pv-data") is None

        await until(gone, LONG)


async def test_va_of_another_driver_untouched() -> None:
    async with plant("a") as p:
        body = {
            "metadata": {"name": "foreign"},
            "spec": {
                "attacher": "other.csi.example.com",
                "nodeName": "a",
                "source": {"persistentVolumeName": "pv-data"},
            },
        }
        await p.client.create(codec.convert(VolumeAttachment, body))
        await quiet(0.3)
        found = await p.client.get(VolumeAttachment, "foreign")
        assert not found.metadata.finalizers
        assert not found.status.attached
        assert p.driver.calls == []


@both
async def test_two_replicas_only_the_leader_calls_rpcs() -> None:
    elected: dict[str, Any] = {"leader_election": True, "leader_election_namespace": "kube-system"}
    quick: dict[str, Any] = {
        "leader_election_lease_duration": 1.5,
        "leader_election_renew_deadline": 1.0,
        "leader_election_retry_period": 0.2,
    }
    if is_virtual():
        quick = {}  # as they come: fifteen seconds, ten and five
    async with plant("a", settings={**elected, **quick}) as p:
        lease = f"external-attacher-leader-{names.sanitize_driver(NAME)}"

        async def led() -> str:
            found = await p.client.find(Lease, lease, "kube-system")
            return (found.spec.holder_identity or "") if found is not None else ""

        assert await until(led, LONG) == "attacher"
        await p.start_attacher(name="second", **elected, **quick)
        await p.volume()
        await p.pod("web", on="a")
        await p.attached("a")
        await rest(60)
        assert p.calls("ControllerPublishVolume") == 1
        await p.stop("attacher")
        await p.remove_pod("web")
        await p.detached("a")
        assert await led() == "second"
        assert p.calls("ControllerUnpublishVolume") == 1


async def test_duplicate_controllerpublish_from_two_attachers_both_ok_one_attachment() -> None:
    """Section G: during a change of leaders both may call, each the driver beside it."""
    one, other = scripted.driver("attach"), scripted.driver("attach")
    other.state = one.state  # one storage behind both
    hold = {driver: Hold() for driver in (one, other)}
    for driver in hold:
        driver.script("ControllerPublishVolume", hold[driver])
    async with plant("a", driver=one) as p, beside(other) as caller:
        await p.start_attacher(name="second", caller=caller, retry_interval_start=0.05)
        await p.volume()
        await p.pod("web", on="a")
        for each in hold.values():
            await asyncio.wait_for(each.reached_event.wait(), LONG)  # both are under way at once
        for each in hold.values():
            each.release()
        await p.attached("a")
        assert [len(driver.requests_of("ControllerPublishVolume")) for driver in hold] == [1, 1]
        assert await p.published() == {"a"}
        assert (one.violations, other.violations) == (0, 0)
        assert len(await p.attachments()) == 1
        node = await p.client.get(Node, "a")
        assert [v.name for v in node.status.volumes_attached] == [unique()]


async def test_failing_with_resource_exhausted_is_told_with_its_code_where_the_gate_is_on() -> None:
    driver = scripted.driver("attach")
    driver.always("ControllerPublishVolume", Fail(Code.RESOURCE_EXHAUSTED, "full"))
    settings = {"feature_gates": {"MutableCSINodeAllocatableCount": True}, "retry_interval_start": 0.05}
    async with plant("a", driver=driver, settings=settings) as p:
        await p.volume()
        await p.pod("web", on="a")

        async def reported() -> bool:
            found = await p.attachment("a")
            error = found.status.attach_error if found is not None else None
            return error is not None and error.error_code == 8

        await until(reported, LONG)
