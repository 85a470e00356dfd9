"""Section A, case by case: the attach/detach controller with a real attacher and a driver on a real socket.

Rules longer than ten seconds run in virtual time, and once on a real socket with the duration set by flag.
Cases that kill somebody are in test_ab_crashes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract.attach_and_mount.plant import FINALIZER, LONG, Sharing, plant, quiet, unique
from tests.controllers.objects import pod
from tests.loops.inprocess import until
from tests.support import scripted
from tests.support.scripted import NAME, Fail, Hold
from tests.support.timing import GRAIN, is_virtual, rest
from volplane.api import codec, names
from volplane.api.core import Node, PersistentVolume, Pod
from volplane.api.storage import CSIDriver, VolumeAttachment
from volplane.base import clock
from volplane.controllers.attachdetach.controller import forced_detaches
from volplane.csi.outcome import Code

both = pytest.mark.both

NEVER = 3600.0


def forced(reason: str) -> float:
    return float(forced_detaches.labels(reason)._value.get())


async def test_rwo_pod_moves_while_a_is_healthy_and_still_unmounting() -> None:
    async with plant("a", "b") as p:
        await p.volume()
        await p.pod("old", on="a")
        await p.attached("a")
        await p.uses("a", "data")
        await p.remove_pod("old")
        await p.pod("new", on="b")
        text = (
            'Multi-Attach error for volume "pv-data" Volume is already exclusively attached to one node '
            "and can't be attached to another"
        )
        await p.expect_event("FailedAttachVolume", text)
        await quiet()
        assert await p.attachment("b") is None
        assert p.wait_reasons() & {"MountedOnNode", "AttachedToOtherNode"}
        await p.uses("a")
        await p.attached("b")
        assert await p.attachment("a") is None
        assert sum(e.count or 1 for e in await p.events("FailedAttachVolume")) == 1
        assert p.driver.violations == 0


def patience(seconds: float, **more: Any) -> dict[str, Any]:
    """What the controller is told: nothing where time is virtual, else that its six minutes are shorter."""
    return {**({} if is_virtual() else {"max_wait_for_unmount": seconds}), **more}


def six_minutes(controller: dict[str, Any]) -> float:
    return float(controller.get("max_wait_for_unmount", 360.0))


async def _kubelet_stops_and_the_pod_is_force_deleted(p: Any) -> float:
    """When."""
    await p.volume()
    await p.pod("old", on="a")
    await p.attached("a")
    await p.uses("a", "data")
    await p.ready("a", "Unknown")
    now = clock.now()
    await p.remove_pod("old")
    await p.pod("new", on="b")
    return now


@both
async def test_kubelet_stops_pod_force_deleted_detach_at_6_min_not_before() -> None:
    reported = patience(1.0)
    async with plant("a", "b", controller=reported) as p:
        before = forced("timeout")
        begun = await _kubelet_stops_and_the_pod_is_force_deleted(p)
        await asyncio.sleep(six_minutes(reported) - 0.5)
        await p.attached("b")
        assert p.driver.call_times("ControllerUnpublishVolume")[0] - begun > six_minutes(reported) - GRAIN
        assert forced("timeout") == before + 1
        assert p.driver.violations == 0


@both
@pytest.mark.parametrize("way_out", ["taint", "recovery"])
async def test_same_with_force_detach_disabled_never_detaches_until_taint_or_recovery(way_out: str) -> None:
    async with plant("a", "b", controller=patience(0.1, force_detach=False)) as p:
        await _kubelet_stops_and_the_pod_is_force_deleted(p)
        await rest(NEVER)
        assert await p.published() == {"a"}
        if way_out == "taint":
            await p.fence("a")
        else:
            await p.ready("a")
            await p.uses("a")
        await p.attached("b")


async def test_notready_node_and_out_of_service_taint() -> None:
    async with plant("a", "b") as p:
        await p.start_pod_garbage()
        before = forced("out-of-service")
        await p.volume()
        await p.pod("web", on="a")
        await p.attached("a")
        await p.uses("a", "data")
        await p.client.patch(
            Pod, "web", "default", merge={"status": {"phase": "Running"}}, subresource="status"
        )
        await p.ready("a", "Unknown")
        await p.client.delete(Pod, "web", "default")
        await quiet()
        assert (await p.client.get(Pod, "web", "default")).is_deleting
        await p.fence("a")
        await p.detached("a")
        assert await p.client.find(Pod, "web", "default") is None
        assert forced("out-of-service") == before + 1


@both
async def test_healthy_node_unmount_stuck_over_6_min_still_not_detached() -> None:
    async with plant("a", controller=patience(0.1)) as p:
        await p.volume()
        await p.pod("web", on="a")
        await p.attached("a")
        await p.uses("a", "data")
        await p.remove_pod("web")
        await rest(NEVER)
        assert await p.published() == {"a"}
        assert p.wait_reasons() == {"MountedOnNode"}


@both
@pytest.mark.parametrize("in_use", [True, False], ids=["volumesInUse", "nothing in use"])
async def test_node_object_deleted(in_use: bool) -> None:
    """As upstream has it; that we do not wait by default is the next test."""
    reported = patience(1.0, wait_for_deleted_nodes=True)
    async with plant("a", controller=reported) as p:
        await p.volume()
        await p.pod("web", on="a")
        await p.attached("a")
        await p.uses("a", *(["data"] if in_use else []))
        await rest(1)  # the controller has seen it
        await p.client.delete(Node, "a")
        begun = clock.now()
        await p.remove_pod("web")
        if in_use:
            await asyncio.sleep(six_minutes(reported) - 0.5)
        await p.detached("a")
        (call,) = p.driver.call_times("ControllerUnpublishVolume")
        if in_use:
            assert call - begun > six_minutes(reported) - GRAIN
        elif is_virtual():
            assert call - begun < 1


@pytest.mark.virtual
async def test_a_deleted_node_is_the_operators_word_that_nothing_runs_there() -> None:
    async with plant("a") as p:
        await p.volume()
        await p.pod("web", on="a")
        await p.attached("a")
        await p.uses("a", "data")
        await asyncio.sleep(1)
        await p.client.delete(Node, "a")
        await asyncio.sleep(NEVER)
        assert await p.published() == {"a"}  # its pod is still there, and may want it back
        await p.remove_pod("web")
        await p.detached("a", seconds=10)


async def test_rwx_pv_on_5_nodes_5_vas_in_parallel_one_failing_attach_does_not_block_the_others() -> None:
    driver = Sharing()
    nodes = ("a", "b", "c", "d", "e")
    held = [Hold() for _ in nodes]
    driver.script("ControllerPublishVolume", *held)
    driver.always("ControllerPublishVolume", Fail(Code.INTERNAL, "not here"))
    async with plant(*nodes, driver=driver) as p:
        await p.volume(accessModes=["ReadWriteMany"])
        for name in nodes:
            await p.pod(f"on-{name}", on=name)
        for hold in held:
            await asyncio.wait_for(hold.reached_event.wait(), LONG)  # all five are under way at once
        assert len(await p.attachments()) == 5
        held[0].then = Fail(Code.INTERNAL, "not here")
        for hold in held:
            hold.release()
        failing = driver.requests_of("ControllerPublishVolume")[0].node_id
        for name in set(nodes) - {failing}:
            await p.attached(name)
        text = 'AttachVolume.Attach failed for volume "pv-data" : rpc error: code = Internal desc = not here'
        await p.expect_event("FailedAttachVolume", text)
        driver.always("ControllerPublishVolume", None)
        await p.attached(failing)


async def test_two_pods_one_rwo_pv_same_node_exactly_one_va_deleting_one_pod_causes_no_detach() -> None:
    async with plant("a") as p:
        await p.volume()
        await p.pod("one", on="a")
        await p.pod("two", on="a")
        await p.attached("a")
        await p.remove_pod("one")
        await quiet()
        (only,) = await p.attachments()
        assert not only.is_deleting
        assert (p.calls("ControllerPublishVolume"), p.calls("ControllerUnpublishVolume")) == (1, 0)
        await p.remove_pod("two")
        await p.detached("a")


@both
async def test_attacherror_set_event_retries_at_500_ms_1_s_2_s_to_2_m_2_s_success_clears_the_error() -> None:
    driver = scripted.driver("attach")
    driver.always("ControllerPublishVolume", Fail(Code.INTERNAL, "no such disk"))
    flags = {} if is_virtual() else {"retry_interval_start": 0.1}
    longest = 122.0 if is_virtual() else 0.7
    reported = {} if is_virtual() else {"retry_interval_max": longest}
    async with plant("a", driver=driver, settings=flags, controller=reported) as p:
        await p.volume()
        begun = clock.now()
        await p.pod("web", on="a")
        failed = (
            'AttachVolume.Attach failed for volume "pv-data" : rpc error: code = Internal desc = no such disk'
        )
        await p.expect_event("FailedAttachVolume", failed)

        left: list[float] = []  # until the next try, as often as somebody looks

        async def heard(times: int) -> bool:
            left.append(p.pause())
            return sum(e.count or 1 for e in await p.events("FailedAttachVolume")) >= times

        if is_virtual():
            await asyncio.sleep(1000)
            assert await heard(16)  # after 0, 0.5, 1.5, 3.5 … 127.5 seconds, and then every 122
            assert not await heard(17)
        else:
            await until(lambda: heard(5), LONG)
            assert clock.now() - begun > 0.5 + 3 * longest - GRAIN
        assert max(left) <= longest + GRAIN
        # The attacher has a clock of its own.
        for pause, times in zip(driver.pauses("ControllerPublishVolume"), (1, 2, 4), strict=False):
            assert pause > times * flags.get("retry_interval_start", 1.0) - GRAIN
        held = await p.attachment("a")
        assert held is not None
        assert held.status.attach_error is not None
        assert FINALIZER in held.metadata.finalizers
        driver.always("ControllerPublishVolume", None)
        await asyncio.sleep(300 if is_virtual() else 0)
        done = await p.attached("a")
        assert done.status.attach_error is None
        await p.expect_event("SuccessfulAttachVolume", 'AttachVolume.Attach succeeded for volume "pv-data" ')


@both
async def test_an_attacher_that_does_not_answer_for_2_min_is_told_to_the_pods() -> None:
    answer = 120.0 if is_virtual() else 0.5
    reported = {} if is_virtual() else {"attach_timeout": answer}
    async with plant("a", working=("controller",), controller=reported) as p:
        await p.volume()
        begun = clock.now()
        await p.pod("web", on="a")
        text = (
            'AttachVolume.Attach failed for volume "pv-data" : timed out waiting for external-attacher of '
            f"{NAME} CSI driver to attach volume vol-data"
        )
        await asyncio.sleep(answer - 0.1)
        await p.expect_event("FailedAttachVolume", text)
        assert clock.now() - begun > answer - GRAIN
        await p.start_attacher()
        await p.attached("a")


async def test_va_deleted_by_a_third_party_while_the_pod_runs() -> None:
    async with plant("a") as p:
        await p.volume()
        await p.pod("web", on="a")
        first = await p.attached("a")
        await p.client.delete(VolumeAttachment, first.name)

        async def again() -> bool:
            found = await p.attachment("a")
            return found is not None and found.uid != first.uid and found.status.attached

        await until(again, LONG)
        await p.attached("a")


async def test_detach_returns_error_uncertain_pod_returning_fails_while_the_va_is_deleting() -> None:
    driver = scripted.driver("attach")
    driver.always("ControllerUnpublishVolume", Fail(Code.INTERNAL, "stuck"))
    async with plant("a", driver=driver) as p:
        await p.volume()
        await p.pod("web", on="a")
        await p.attached("a")
        await p.remove_pod("web")

        async def failed() -> bool:
            found = await p.attachment("a")
            return found is not None and found.status.detach_error is not None

        await until(failed, LONG)
        node = await p.client.get(Node, "a")
        assert not node.status.volumes_attached
        await p.pod("back", on="a")
        text = 'AttachVolume.Attach failed for volume "pv-data" : volume attachment is being deleted'
        await p.expect_event("FailedAttachVolume", text)
        driver.always("ControllerUnpublishVolume", None)
        await p.attached("a")


async def test_pods_unused_volume_is_still_attached() -> None:
    async with plant("a") as p:
        await p.volume()
        made = pod("web", "data", on="a")
        assert not made.spec.containers[0].volume_mounts
        await p.client.create(made)
        await p.attached("a")


async def test_pvc_bound_after_the_pod_was_scheduled_attach_starts_from_the_pvc_event() -> None:
    async with plant("a") as p:
        await p.volume(bound=False)
        await p.pod("web", on="a")
        await quiet()
        assert await p.attachments() == []
        await p.bind()
        await p.attached("a")


async def test_driver_with_attachrequired_false_no_va_nothing_in_volumes_attached() -> None:
    async with plant("a") as p:
        free = {"metadata": {"name": NAME}, "spec": {"attachRequired": False}}
        await p.client.create(codec.convert(CSIDriver, free))
        await p.volume()
        await p.pod("web", on="a")
        await quiet(0.3)
        assert await p.attachments() == []
        assert not (await p.client.get(Node, "a")).status.volumes_attached
        assert p.calls("ControllerPublishVolume") == 0


async def test_a_driver_that_turns_out_to_need_no_attach_loses_its_attachment() -> None:
    """The CSIDriver is created after the pod, for whose volume an attachment was requested."""
    async with plant("a", working=("controller",)) as p:
        await p.volume()
        await p.pod("web", on="a")
        await until(p.attachments, LONG)
        free = {"metadata": {"name": NAME}, "spec": {"attachRequired": False}}
        await p.client.create(codec.convert(CSIDriver, free))

        async def gone() -> bool:
            return await p.attachments() == []

        await until(gone, LONG)
        await p.client.delete(CSIDriver, NAME)
        await until(p.attachments, LONG)


async def test_volume_handle_containing_a_caret_is_not_misparsed() -> None:
    """The detach is made from the volume object; what is known by such a name alone is left."""
    async with plant("a") as p:
        await p.volume(csi={"volumeHandle": "vol^odd"})
        await p.volume("other")
        await p.pod("web", "data", on="a")
        await p.pod("neighbour", "other", on="a")
        await p.attached("a", "other")
        name = names.attachment_name("vol^odd", NAME, "a")

        async def attached() -> bool:
            found = await p.client.find(VolumeAttachment, name)
            return found is not None and found.status.attached

        await until(attached, LONG)
        await p.remove_pod("web")

        async def gone() -> bool:
            return await p.client.find(VolumeAttachment, name) is None

        await until(gone, LONG)
        node = await p.client.get(Node, "a")
        assert [v.name for v in node.status.volumes_attached] == [unique("other")]
        assert await p.published("other") == {"a"}


async def test_multi_attach_texts_name_the_pods_by_namespace() -> None:
    async with plant("a", "b") as p:
        await p.volume()
        await p.pod("one", on="a")
        await p.pod("two", on="a")
        await p.attached("a")
        await p.uses("a", "data")
        await p.pod("late", on="b")
        await p.expect_event(
            "FailedAttachVolume",
            'Multi-Attach error for volume "pv-data" Volume is already used by pod(s) one, two',
        )
        assert (await p.client.get(PersistentVolume, "pv-data")).metadata.finalizers
