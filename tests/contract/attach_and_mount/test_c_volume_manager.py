"""Section C, case by case, on real sockets and real mounts: what drivers are asked, and when."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.attach_and_mount.grounds import node_world
from tests.loops.inprocess import until
from tests.node.node_env import (
    DRIVER,
    NODE,
    Hook,
    NodeEnv,
    path_exists,
    read,
    unique_name,
    wait_briefly,
    write,
)
from volplane.api.codec import convert
from volplane.api.core import AttachedVolume, Event, Node, PersistentVolumeClaim, Pod
from volplane.api.errors import Unavailable
from volplane.api.storage import CSIDriver, VolumeAttachment
from volplane.csi.outcome import CallError, Code
from volplane.host import mounts
from volplane.node.volume_manager.plan import MountState

pytestmark = pytest.mark.root


async def ready(here: NodeEnv) -> None:
    await here.start()
    await here.start_driver()
    await here.wait_until_registered()


def failing(code: Code, text: str = "no") -> Hook:
    async def fail(request: Any) -> None:
        raise CallError(code, text)

    return fail


def sometimes(test: Callable[[], bool]) -> Callable[[], Any]:
    async def asked() -> bool:
        return test()

    return asked


async def is_out_of_use(here: NodeEnv) -> None:
    async def unused() -> bool:
        return not await here.in_use()

    await until(unused)


async def test_two_pods_one_rwo_pv_one_node_one_nodestage_two_nodepublish_nodeunstage_after_both() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        await here.pod("a", claim="data")
        await here.pod("b", claim="data")
        await here.wait_until_ready("a")
        await here.wait_until_ready("b")
        targets = {r.target_path for name, r in here.disks.calls if name == "publish"}
        assert here.disks.count_calls() == {"stage": 1, "publish": 2}
        assert len(targets) == 2
        await here.delete("a")
        await here.wait_for_phase("gone", "a")
        assert here.disks.count_calls()["unstage"] == 0
        await here.delete("b")
        await is_out_of_use(here)
        assert here.disks.count_calls() == {"stage": 1, "publish": 2, "unpublish": 2, "unstage": 1}


async def test_volume_in_use_but_not_attached_no_nodestage_before_it_is() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume(attached=False)
        await here.pod(claim="data")

        async def reported() -> bool:
            return unique_name() in await here.in_use()

        await until(reported)
        await wait_briefly()
        assert not here.disks.calls
        assert here.role is not None
        waits = {w.key: w.why for w in here.role.wait_reports()}
        assert waits == {
            unique_name(): "not attached yet: node.status.volumesAttached does not list it",
            "pod/default/app": "mounting the pod's volumes",
        }
        await here.attach()
        await here.wait_until_ready()
        assert here.disks.count_calls() == {"stage": 1, "publish": 1}


async def test_nodepublish_invalid_argument_target_and_metadata_removed_retried_no_nodeunpublish() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        here.disks.hooks["publish"] = failing(Code.INVALID_ARGUMENT, "bad wish")
        pod = await here.pod(claim="data")
        await here.wait_for_event(
            'MountVolume.SetUp failed for volume "pv-data" : rpc error: code = InvalidArgument desc = bad'
        )
        volumes = here.paths.real(f"{here.paths.pod(pod.uid)}/volumes/kubernetes.io~csi")
        # Neither target nor metadata stays; each try makes them anew.
        await until(sometimes(lambda: not path_exists(volumes) or os.listdir(volumes) == []))
        await until(sometimes(lambda: here.disks.count_calls()["publish"] > 1))
        await here.delete()
        await is_out_of_use(here)
        assert here.disks.count_calls()["unpublish"] == 0
        assert here.disks.count_calls()["unstage"] == 1


async def test_uncertain_stage_is_undone_after_the_pod_is_deleted() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        here.disks.after["stage"] = failing(Code.ABORTED, "still at it")
        await here.pod(claim="data")
        await here.wait_for_event(
            'MountVolume.MountDevice failed for volume "pv-data" : rpc error: code = Aborted'
        )
        assert await here.in_use() == [unique_name()]
        await here.delete()
        await here.wait_for_phase("gone")
        await is_out_of_use(here)
        assert here.disks.count_calls()["unstage"] == 1
        assert here.disks.count_calls()["publish"] == 0
        assert here.list_mounts() == []


async def test_pod_deleted_during_nodepublish_that_later_succeeds_nodeunpublish_follows() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def hang(request: Any) -> None:
            entered.set()
            await go_on.wait()

        here.disks.hooks["publish"] = hang
        await here.pod(claim="data")
        await entered.wait()
        await here.delete()
        await wait_briefly()
        assert here.disks.count_calls() == {"stage": 1, "publish": 1}
        assert await here.phase() != "gone"
        go_on.set()
        await here.wait_for_phase("gone")
        await is_out_of_use(here)
        assert here.disks.count_calls() == {"stage": 1, "publish": 1, "unpublish": 1, "unstage": 1}


async def test_nodeunpublish_always_failing_pod_stays_terminating_volume_stays_in_volumes_in_use() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        await here.pod(claim="data")
        await here.wait_until_ready()
        here.disks.hooks["unpublish"] = failing(Code.NOT_FOUND)
        await here.delete()
        await until(sometimes(lambda: here.disks.count_calls()["unpublish"] >= 2))
        assert (await here.client.get(Pod, "app", "default")).is_deleting
        assert await here.in_use() == [unique_name()]
        assert here.disks.count_calls()["unstage"] == 0
        del here.disks.hooks["unpublish"]
        await here.wait_for_phase("gone")
        await is_out_of_use(here)


async def test_driver_unregistered_is_told_and_registration_resumes() -> None:
    async with node_world() as here:
        await here.start()
        await here.volume()
        await here.pod(claim="data")
        await here.wait_for_event("driver name disks.test not found in the list of registered CSI drivers")
        await here.start_driver()
        await here.wait_until_ready()


async def test_driver_unregistered_states_unchanged_pod_termination_blocks_reregistration_resumes() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        await here.pod(claim="data")
        await here.wait_until_ready()
        await here.stop_driver()
        assert here.role is not None
        kubelet = here.role
        assert kubelet is not None
        await until(sometimes(lambda: not list(kubelet.drivers)))
        await here.delete()

        async def waits() -> bool:
            missing = "driver name disks.test not found in the list of registered CSI drivers"
            return any(missing in why for why in whys(here))

        await until(waits)
        assert await here.phase() != "gone"
        assert len(here.list_mounts()) == 2
        (state,) = here.role.volumes.memory.volumes.values()
        assert state.actual.device is MountState.MOUNTED
        await here.start_driver()
        await here.wait_for_phase("gone")
        await is_out_of_use(here)
        assert here.list_mounts() == []


async def test_rwop_second_pod_forced_onto_the_node_failedmount_until_the_first_unmounts() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume(accessModes=["ReadWriteOncePod"])
        await here.pod("a", claim="data")
        await here.wait_until_ready("a")
        await here.pod("b", claim="data")
        await here.wait_for_event(
            "uses the ReadWriteOncePod access mode and is already in use by another pod"
        )
        assert here.disks.count_calls()["publish"] == 1
        await here.delete("a")
        await here.wait_until_ready("b")


async def test_a_pod_whose_publish_always_fails_keeps_no_other_pod_from_the_volume() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        hopeless = await here.pod("a", claim="data")

        async def refuse(request: Any) -> None:
            if hopeless.uid in request.target_path:
                raise CallError(Code.INVALID_ARGUMENT, "not for this one")

        here.disks.hooks["publish"] = refuse
        await here.wait_for_event("not for this one")
        await here.pod("b", claim="data")
        await here.wait_until_ready("b")
        assert await here.phase("a") == "Pending"


async def test_a_claim_that_is_not_bound_is_told_and_looked_at_again() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        status = {"status": {"phase": "Pending"}}
        await here.client.patch(PersistentVolumeClaim, "data", "default", merge=status, subresource="status")
        await here.pod(claim="data")
        reported_text = await here.wait_for_event("PVC is not bound")
        assert reported_text == (
            "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], "
            "failed to process volumes=[data]: error processing PVC default/data: PVC is not bound"
        )
        status = {"status": {"phase": "Bound"}}
        await here.client.patch(PersistentVolumeClaim, "data", "default", merge=status, subresource="status")
        await here.wait_until_ready()


async def test_a_live_read_that_fails_is_a_failed_verification_like_any_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        assert here.role is not None
        real, answers = here.role.node_object.read_attached_volume, iter([Unavailable("for a moment")])

        async def at_first_not(unique: str) -> AttachedVolume | None:
            for error in answers:
                raise error
            return await real(unique)

        here.role.node_object.read_attached_volume = at_first_not  # type: ignore[method-assign]
        await here.pod(claim="data")
        await here.wait_until_ready()
        reported_text = [r for r in caplog.records if "for a moment" in r.getMessage() or r.exc_info]
        assert [(r.levelname, bool(r.exc_info)) for r in reported_text] == [("WARNING", False)]


async def test_volumemode_mismatch_block_in_volume_mounts_exact_text_no_rpc() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume(volumeMode="Block")
        await here.pod(claim="data")
        await here.wait_for_event("volume data has volumeMode Block, but is specified in volumeMounts")
        assert not here.disks.calls


async def test_requires_republish_publish_fails_on_a_running_pod_event_only_content_intact() -> None:
    async with node_world() as here:
        await here.start(sync_frequency=0.05)
        await here.start_driver()
        await here.wait_until_registered()
        await here.volume()
        await here.client.patch(CSIDriver, "disks.test", merge={"spec": {"requiresRepublish": True}})
        await here.pod(claim="data")
        pod = await here.wait_until_ready()
        await until(sometimes(lambda: here.disks.count_calls()["publish"] > 2))
        target = here.paths.real(here.paths.csi_target(pod.uid, "pv-data"))
        write(f"{target}/file", "kept")
        here.disks.hooks["publish"] = failing(Code.INTERNAL, "not now")
        reported_text = await here.wait_for_event("not now")
        assert {e.reason for e in await here.client.list(Event, "default") if e.message == reported_text} == {
            "FailedMount"
        }
        assert (await here.client.get(Pod, "app", "default")).status.phase == "Running"
        assert mounts.is_mount(target)
        assert read(f"{target}/file") == "kept"
        assert here.disks.count_calls()["unpublish"] == 0

        async def refreshed(request: Any) -> None:
            write(f"{target}/file", "fresh")

        here.disks.hooks["publish"] = refreshed
        await until(sometimes(lambda: read(f"{target}/file") == "fresh"), 60)
        assert (await here.client.get(Pod, "app", "default")).status.container_statuses[0].restart_count == 0
        assert here.disks.count_calls()["unpublish"] == 0


async def test_a_pod_of_another_zone_is_refused() -> None:
    async with node_world() as here:
        await ready(here)
        expression = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["eu-1"]}
        terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
        await here.volume(nodeAffinity=terms)
        await here.pod(claim="data")
        await here.wait_for_event('MountVolume.NodeAffinity check failed for volume "pv-data" : no matching')
        assert not here.disks.calls


async def test_many_pods_come_and_go_and_nothing_is_kept() -> None:
    async with node_world() as here:
        await ready(here)
        names = [f"p{i}" for i in range(20)]
        for name in names:
            await here.volume(name)
        for _ in range(2):
            for name in names:
                volume = {"name": "x", "emptyDir": {"medium": "Memory"}}
                mount = {"name": "x", "mountPath": "/x"}
                await here.pod(name, claim=name, volumes=[volume], mounts=[mount])
            for name in names:
                await here.wait_until_ready(name)
            assert len(here.list_mounts()) == 60
            await asyncio.gather(*(here.delete(name) for name in names))
            for name in names:
                await here.wait_for_phase("gone", name)
            await is_out_of_use(here)
        assert here.list_mounts() == []
        assert here.disks.count_calls() == {"stage": 40, "publish": 40, "unpublish": 40, "unstage": 40}
        role = here.role
        assert role is not None

        async def quiet() -> bool:
            return not role.pods.workers and not await role.runtimes.states()

        await until(quiet)
        assert role.volumes.memory.volumes == {}
        assert not [task for task in asyncio.all_tasks() if "p1" in task.get_name().split("/")]


async def test_volumemode_mismatch_filesystem_in_volume_devices_exact_text_no_rpc() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        await here.pod(claim="data", device="/dev/xvda")
        await here.wait_for_event("volume data has volumeMode Filesystem, but is specified in volumeDevices")
        assert not here.disks.calls


async def test_volume_attached_but_not_yet_in_volumes_in_use_no_nodestage_before_it_is() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()  # attached from the start
        seen: list[list[str]] = []

        async def look(request: Any) -> None:
            seen.append(await here.in_use())

        here.disks.hooks["stage"] = look
        await here.pod(claim="data")
        await here.wait_until_ready()
        assert seen == [[unique_name()]]


async def test_dead_during_nodepublish_uncertain_files_kept() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        entered = asyncio.Event()

        async def hang(request: Any) -> None:
            entered.set()
            await asyncio.sleep(3600)

        here.disks.after["publish"] = hang
        pod = await here.pod(claim="data")
        await entered.wait()
        await here.kill_driver()
        await here.wait_for_event(
            'MountVolume.SetUp failed for volume "pv-data" : rpc error: code = Unavailable'
        )
        assert path_exists(here.paths.real(here.paths.csi_data(pod.uid, "pv-data")))
        assert mounts.is_mount(here.paths.real(here.paths.csi_target(pod.uid, "pv-data")))
        here.disks.after.clear()
        await here.restart_driver()
        await here.wait_until_ready()
        assert len(here.list_mounts()) == 2


async def test_aborted_on_a_duplicate_stage_retry_until_ok_exactly_one_mount() -> None:
    async with node_world() as here:
        await ready(here)
        await here.volume()
        left = [1, 2]

        async def busy(request: Any) -> None:
            if left:
                left.pop()
                raise CallError(Code.ABORTED, "an operation is under way")

        here.disks.hooks["stage"] = busy
        await here.pod(claim="data")
        await here.wait_until_ready()
        assert here.disks.count_calls()["stage"] == 3
        assert sum("globalmount" in path for path in here.list_mounts()) == 1


async def test_pod_deleted_while_nodestage_hangs_on_a_real_socket_with_the_duration_set_by_flag() -> None:
    async with node_world() as here:
        await here.start(csi_timeout=1.0)
        await here.start_driver()
        await here.wait_until_registered()
        await here.volume()
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def hang(request: Any) -> None:
            entered.set()
            await go_on.wait()

        here.disks.hooks["stage"] = hang
        await here.pod(claim="data")
        await entered.wait()
        await here.delete(grace=0)
        await wait_briefly()
        assert here.disks.count_calls() == {"stage": 1}
        assert await here.in_use() == [unique_name()]

        async def given_up() -> bool:
            assert here.role is not None
            return any("unstage" in why or "another operation" in why for why in whys(here))

        await until(given_up, 60)  # undone, as soon as the driver has ended the first call
        go_on.set()
        await is_out_of_use(here)
        assert here.disks.count_calls() == {"stage": 1, "unstage": 1}
        assert here.list_mounts() == []


def whys(here: NodeEnv) -> list[str]:
    assert here.role is not None
    return [w.why for w in here.role.wait_reports()]


async def test_driver_with_attachrequired_false_nothing_in_volumes_in_use() -> None:
    """Section A, as the kubelet sees it."""
    async with node_world() as here:
        free = {"metadata": {"name": DRIVER}, "spec": {"attachRequired": False}}
        await here.client.create(convert(CSIDriver, free))
        await ready(here)
        await here.volume(attached=False)
        seen: list[tuple[list[str], dict[str, str]]] = []

        async def look(request: Any) -> None:
            seen.append((await here.in_use(), dict(request.publish_context)))

        here.disks.hooks["stage"] = here.disks.hooks["publish"] = look
        await here.pod(claim="data")
        await here.wait_until_ready()
        assert seen == [([], {}), ([], {})]
        assert await here.client.list(VolumeAttachment) == []


async def test_no_publish_unpublish_capability_kubelet_gets_empty_publish_context() -> None:
    """Section B, as the kubelet sees it: the attachment says no more than that it is attached."""
    async with node_world() as here:
        await ready(here)
        await here.volume(attached=False)
        await here.attach(metadata={})
        await here.pod(claim="data")
        await here.wait_until_ready()
        for name, request in here.disks.calls:
            assert not request.publish_context, name
        assert here.disks.count_calls() == {"stage": 1, "publish": 1}


async def test_without_controller_attach_detach_a_csi_volume_gets_a_clear_event() -> None:
    async with node_world() as here:
        await here.start(enable_controller_attach_detach=False)
        await here.start_driver()
        await here.wait_until_registered()
        node = await here.client.get(Node, NODE)
        assert "volumes.kubernetes.io/controller-managed-attach-detach" not in node.metadata.annotations
        await here.volume(attached=False)
        await here.pod(claim="data")
        reported_text = await here.wait_for_event("--enable-controller-attach-detach=false")
        assert reported_text.startswith(
            'AttachVolume.Attach failed for volume "pv-data" : this node attaches volumes'
        )
        reasons = {e.reason for e in await here.client.list(Event, "default") if e.message == reported_text}
        assert reasons == {"FailedAttachVolume"}
        assert not here.disks.calls
        await here.delete()
        await here.wait_for_phase("gone")


async def test_a_node_that_is_told_to_attach_itself_takes_the_annotation_of_its_earlier_life_back() -> None:
    managed = "volumes.kubernetes.io/controller-managed-attach-detach"
    async with node_world() as here:
        for enabled in (True, False, True):
            await here.start(enable_controller_attach_detach=enabled)
            annotations = (await here.client.get(Node, NODE)).metadata.annotations
            assert annotations.get(managed) == ("true" if enabled else None)
            await here.stop()
