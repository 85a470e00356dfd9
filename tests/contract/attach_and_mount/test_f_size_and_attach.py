"""Section F: FlexVolumes that grow, their metrics, and attaches by the kubelet itself."""

from __future__ import annotations

import pytest

from tests.contract.attach_and_mount.flex_grounds import (
    decode,
    device_path,
    disk_of,
    end_pod,
    flex_claim,
    flex_world,
    list_attached,
    make_script,
    options,
    pod_path,
    run_attached_pod,
    run_pod,
    wait_loaded,
    wait_until_unused,
)
from tests.contract.attach_and_mount.grounds import node_world
from tests.loops.inprocess import until
from tests.node.node_env import NodeEnv, wait_briefly
from tests.support.flex_script import DRIVER, FlexScript
from volplane.api.core import PersistentVolume, PersistentVolumeClaim

pytestmark = pytest.mark.root


# --- size and metrics


async def grow_claim(here: NodeEnv, size: str) -> None:
    """As the controller does once the driver's `expandvolume` has succeeded."""
    volume = {"spec": {"capacity": {"storage": size}}}
    await here.client.patch(PersistentVolume, "pv-data", merge=volume)
    # Any change of the claim: the node reads the volume again then.
    await here.client.patch(
        PersistentVolumeClaim, "data", "default", merge={"metadata": {"labels": {"a": "b"}}}
    )


async def test_expandfs_is_called_with_device_directory_and_sizes() -> None:
    async with flex_world() as (here, script):
        await here.stop()
        await here.start(claim_read_frequency=0.1)
        pod = await run_attached_pod(here)
        script.forget_calls()
        await grow_claim(here, "2Gi")

        async def is_called() -> bool:
            return script.commands == ["expandfs"]

        await until(is_called)
        (call,) = map(decode, script.calls)
        sizes = [str(2 << 30), str(1 << 30)]
        assert call == ["expandfs", options("pv-data"), "/dev/waited", pod_path(here, pod), *sizes]
        await here.wait_for_event('MountVolume.NodeExpandVolume succeeded for volume "pv-data"')


async def test_requires_fs_resize_false_nothing_is_expanded_on_the_node() -> None:
    async with flex_world(requiresFSResize=False) as (here, script):
        await here.stop()
        await here.start(claim_read_frequency=0.05)
        await run_attached_pod(here)
        await grow_claim(here, "2Gi")
        await wait_briefly(0.5)
        assert "expandfs" not in script.commands


async def test_expandfs_not_supported_the_file_system_is_grown() -> None:
    async with flex_world() as (here, script):
        await here.stop()
        await here.start(claim_read_frequency=0.1)
        script.do_not_support("waitforattach", "mountdevice", "unmountdevice", "mount", "unmount", "expandfs")
        disk = await disk_of(here, 512 << 20)
        # Mounted, ext4 grows only for a process with CAP_SYS_RESOURCE; xfs for every root.
        await flex_claim(here, flexVolume={"fsType": "xfs"})
        await list_attached(here, "pv-data", device=disk)
        pod = await run_pod(here, claim="data")
        before = (await here.host.stats(pod_path(here, pod))).capacity
        with open(f"{here.directory}/disk", "ab") as file:  # noqa: ASYNC230
            file.truncate(1024 << 20)
        await here.host.loop_resize(disk)
        await grow_claim(here, "2Gi")
        await here.wait_for_event('MountVolume.NodeExpandVolume succeeded for volume "pv-data"')
        assert (await here.host.stats(pod_path(here, pod))).capacity > before * 1.5


@pytest.mark.parametrize("supported", [True, False])
async def test_volume_metrics_of_drivers_that_support_them(supported: bool) -> None:
    async with flex_world(attach=False, supportsMetrics=supported) as (here, _):
        await flex_claim(here)
        await run_pod(here, claim="data")
        assert here.role is not None
        (spec,) = [s for s in here.role.volumes.mounted_specs() if s.claim is not None]
        usage = await here.role.plugins[DRIVER].read_metrics(spec)
        assert (usage is not None and usage.capacity is not None and usage.capacity > 0) is supported


# --- the kubelet attaches


async def start_without_controller(here: NodeEnv) -> FlexScript:
    script = make_script(here)
    script.install()
    await here.start(enable_controller_attach_detach=False)
    await wait_loaded(here, script)
    return script


async def test_without_the_controller_the_kubelet_attaches_and_detaches() -> None:
    async with node_world() as here:
        script = await start_without_controller(here)
        await flex_claim(here)
        pod = await run_pod(here, claim="data")
        told = options("pv-data")
        assert list(map(decode, script.calls[:4])) == [
            ["attach", told, "worker-1"],
            ["getvolumename", told],
            ["waitforattach", "/dev/attached", told],
            ["mountdevice", device_path(here), "/dev/waited", told],
        ]
        await here.wait_for_event('AttachVolume.Attach succeeded for volume "pv-data"')
        script.forget_calls()
        await end_pod(here)
        await wait_until_unused(here)

        async def is_detached() -> bool:
            return script.commands == ["unmount", "unmountdevice", "detach"]

        await until(is_detached)
        assert script.calls == [
            ["unmount", pod_path(here, pod)],
            ["unmountdevice", device_path(here)],
            ["detach", "pv-data", "worker-1"],
        ]


async def test_attach_and_detach_not_supported_without_the_controller() -> None:
    async with node_world() as here:
        script = await start_without_controller(here)
        script.do_not_support("attach", "detach", "waitforattach", "mountdevice")
        await flex_claim(here)
        await run_pod(here, claim="data")
        await end_pod(here)

        async def is_detached() -> bool:
            return script.commands[-1] == "detach"

        await until(is_detached)
        waited = next(decode(call) for call in script.calls if call[0] == "waitforattach")
        assert waited == ["waitforattach", "", options("pv-data")]
        await wait_until_unused(here)


async def test_a_failed_attach_of_the_kubelet_is_reported_retried_and_undone() -> None:
    async with node_world() as here:
        script = await start_without_controller(here)
        script.fail("attach", "no slot")
        await flex_claim(here)
        await here.pod(claim="data")
        await here.wait_for_event('AttachVolume.Attach failed for volume "pv-data" : attach command failed')
        await end_pod(here)

        async def is_detached() -> bool:
            return script.commands[-1] == "detach"

        await until(is_detached)
        assert set(script.commands) == {"attach", "detach"}


async def test_after_a_restart_the_kubelet_asks_whether_the_volume_is_attached() -> None:
    async with node_world() as here:
        script = await start_without_controller(here)
        await flex_claim(here)
        await run_pod(here, claim="data")
        await here.stop(drain=False)
        script.forget_calls()
        await start_without_controller(here)
        await here.wait_until_ready()

        async def is_verified() -> bool:
            return "waitforattach" in script.commands

        await until(is_verified)
        assert script.commands == ["isattached", "getvolumename", "waitforattach"]
        assert decode(script.calls[-1])[1] == "/dev/attached"  # as `attach` had answered


async def test_after_a_change_to_the_controller_its_device_is_used_and_the_kubelets_attach_is_undone() -> (
    None
):
    async with node_world() as here:
        script = await start_without_controller(here)
        await flex_claim(here)
        await run_pod(here, claim="data")
        await here.stop(drain=False)
        script.forget_calls()
        await list_attached(here, "pv-data", device="/dev/of-the-controller")
        await here.start()

        async def is_verified() -> bool:
            return "waitforattach" in script.commands

        await until(is_verified)
        assert decode(script.calls[-1])[1] == "/dev/of-the-controller"
        await end_pod(here)

        async def is_detached() -> bool:
            return script.commands[-1] == "detach"

        await until(is_detached)


async def test_a_volume_that_was_attached_before_a_restart_is_detached_if_its_pod_is_gone() -> None:
    async with node_world() as here:
        script = await start_without_controller(here)
        await flex_claim(here)
        await run_pod(here, claim="data")
        await here.stop(drain=False)
        script.forget_calls()
        await here.delete(grace=0)
        await start_without_controller(here)

        async def is_detached() -> bool:
            return script.commands == ["unmount", "unmountdevice", "detach"]

        await until(is_detached)
        await wait_until_unused(here)
