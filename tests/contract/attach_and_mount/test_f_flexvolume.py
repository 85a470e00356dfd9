"""Section F: FlexVolume on the node. The driver is a real executable, and its mounts are real."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.contract.attach_and_mount.flex_grounds import (
    DEVICE,
    decode,
    device_path,
    disk_of,
    end_pod,
    flex_claim,
    flex_world,
    inline,
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
from tests.node.node_env import NodeEnv, path_exists, wait_briefly
from tests.support.flex_script import DRIVER
from volplane.api.codec import convert
from volplane.api.core import Pod, Secret
from volplane.base import trace
from volplane.client.client import Client
from volplane.host import mounts
from volplane.node.volume_manager import manager
from volplane.node.volume_manager.resolve_volumes import ResolvedVolumes, resolve_volumes
from volplane.volumes.flex import plugin
from volplane.volumes.registry import PluginRegistry

pytestmark = pytest.mark.root


# --- drivers that come and go


async def test_driver_dropped_in_while_running_is_used_at_once_by_a_waiting_pod() -> None:
    async with node_world() as here:
        await here.start()
        await here.pod(**inline())
        message = await here.wait_for_event("no volume plugin matched")
        assert 'no volume plugin matched for volume "data": asked kubernetes.io/csi, ' in message
        assert f"FlexVolume driver {DRIVER} was not found at {here.directory}/exec/" in message
        script = make_script(here)
        script.install(attach=False)
        await here.wait_until_ready()
        assert script.commands == ["mount"]


async def test_a_driver_that_appears_wakes_its_pods_without_another_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager, "FIRST_READ_DELAY", 3600.0)
    async with node_world() as here:
        role = await here.start()
        pod = await here.pod(**inline())

        async def has_no_plugin() -> bool:
            return pod.uid in role.volumes.memory.pods and bool(role.volumes.memory.pods[pod.uid].problems)

        await until(has_no_plugin)
        make_script(here).install(attach=False)
        await here.wait_until_ready()


async def test_a_driver_that_appears_while_volumes_are_read_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager, "FIRST_READ_DELAY", 3600.0)
    async with node_world() as here:
        await here.start()
        script = make_script(here)

        async def resolve_slowly(client: Client, plugins: PluginRegistry, pod: Pod) -> ResolvedVolumes:
            resolved = await resolve_volumes(client, plugins, pod)
            if not path_exists(script.path):
                script.install(attach=False)
                await wait_loaded(here, script)
            return resolved

        monkeypatch.setattr(manager, "resolve_volumes", resolve_slowly)
        await here.pod(**inline())
        await here.wait_until_ready()


async def test_driver_replaced_while_running_init_again_and_mounted_volumes_keep_working() -> None:
    async with flex_world(attach=False) as (here, script):
        pod = await run_pod(here, **inline())
        script.install(attach=False, fsGroup=False)

        async def is_replaced() -> bool:
            assert here.role is not None
            return not here.role.plugins.flex.drivers[DRIVER].capabilities.fsgroup

        await until(is_replaced)
        assert script.inits == 2
        assert mounts.is_mount(pod_path(here, pod, "data"))
        assert (await here.wait_until_ready()).status.container_statuses[0].restart_count == 0
        await end_pod(here)
        assert script.commands == ["mount", "unmount"]


async def test_driver_removed_while_running_no_volume_plugin_matched() -> None:
    async with flex_world(attach=False) as (here, script):
        await run_pod(here, "first", **inline())
        script.remove()
        await here.pod("second", **inline())
        await here.wait_for_event("no volume plugin matched")
        await here.delete("first")
        await wait_briefly(0.3)
        assert here.list_mounts() != []  # only the driver can unmount it
        script.install(attach=False)
        await here.wait_for_phase("gone", "first")
        await here.wait_until_ready("second")


async def test_a_driver_whose_init_fails_is_named_with_the_reason_and_asked_again() -> None:
    async with node_world() as here:
        script = make_script(here)
        script.fail("init", "no licence")
        script.install(attach=False)
        await here.start()
        await here.pod(**inline())
        await here.wait_for_event("init command failed, status: Failure, reason: no licence")
        script.work("init")
        await here.wait_until_ready()


# --- calls and their arguments


async def test_full_attach_driver_order_and_exact_arguments_on_the_node() -> None:
    async with flex_world() as (here, script):
        await flex_claim(here, flexVolume={"options": {"size": "1"}})
        await here.pod(claim="data", serviceAccountName="default")

        async def reported() -> bool:
            return await here.in_use() == [f"{DRIVER}/pv-data"]

        await until(reported)
        await wait_briefly(0.2)
        assert script.calls == []  # until the controller has attached it
        await list_attached(here, "pv-data")
        pod = await here.wait_until_ready()
        told = options("pv-data", size="1")
        with_pod = {
            **told,
            "kubernetes.io/pod.name": "app",
            "kubernetes.io/pod.namespace": "default",
            "kubernetes.io/pod.uid": pod.uid,
            "kubernetes.io/serviceAccount.name": "default",
        }
        assert list(map(decode, script.calls)) == [
            ["getvolumename", told],
            ["waitforattach", DEVICE, told],
            ["mountdevice", device_path(here), "/dev/waited", told],
            ["mount", pod_path(here, pod), with_pod],
        ]
        script.forget_calls()
        await end_pod(here)
        await wait_until_unused(here)
        assert script.calls == [["unmount", pod_path(here, pod)], ["unmountdevice", device_path(here)]]
        assert not path_exists(device_path(here))

        async def has_no_directory() -> bool:
            return not path_exists(here.paths.real(here.paths.pod(pod.uid)))

        await until(has_no_directory)  # it is removed after the pod's object


async def test_every_call_is_in_the_trace_of_its_pod() -> None:
    recorded = trace.start()
    async with flex_world(attach=False) as (here, _):
        await run_pod(here, **inline())
        (span,) = [s for s in recorded.spans("pod/default/app") if s.component == "flexvolume"]
        assert (span.step, span.attrs) == ("mount", {"driver": DRIVER})
        assert span.end > span.start


async def test_attach_false_only_mount_and_unmount_and_nothing_in_use() -> None:
    async with flex_world(attach=False) as (here, script):
        await flex_claim(here)
        await run_pod(here, claim="data")
        assert await here.in_use() == []
        await end_pod(here)
        assert script.commands == ["mount", "unmount"]
        assert not [m for m in await here.list_event_messages() if "ttach" in m]
        assert not path_exists(device_path(here))


async def test_every_optional_call_not_supported_defaults_and_called_once_each() -> None:
    async with flex_world() as (here, script):
        calls = ("getvolumename", "waitforattach", "mountdevice", "unmountdevice", "mount", "unmount")
        script.do_not_support(*calls)
        disk = await disk_of(here)
        await flex_claim(here)
        await list_attached(here, "pv-data", device=disk)
        for name in ("first", "second"):
            pod = await run_pod(here, name, claim="data")
            entry = mounts.read_table().at(device_path(here))
            assert entry is not None
            assert entry.fstype == "ext4"  # formatted, since it was blank
            assert mounts.is_mount(pod_path(here, pod))
            await end_pod(here, name)
            await wait_until_unused(here)
        assert sorted(script.commands) == sorted(calls)


async def test_mountdevice_not_supported_without_a_device_is_nothing_to_do() -> None:
    async with flex_world() as (here, script):
        script.do_not_support("waitforattach", "mountdevice")
        await flex_claim(here)
        await list_attached(here, "pv-data", device="")
        pod = await run_pod(here, claim="data")
        assert not mounts.is_mount(device_path(here))
        assert mounts.is_mount(pod_path(here, pod))
        script.forget_calls()
        await end_pod(here)
        await wait_until_unused(here)
        assert script.commands == ["unmount"]  # no device was mounted


NOISE = 'echo warning >&2; echo \'{"status": "Success"}\'; exit 0'
ANSWERS = {
    "stderr noise": (NOISE, "mount command did not answer with one JSON object"),
    "empty output": ("exit 0", "mount command did not answer with one JSON object: Expecting value"),
    "exit 1 with Success": ("""echo '{"status": "Success"}'; exit 1""", "exit status 1"),
    "exit 0 with Failure": (
        """answer '{"status": "Failure", "message": "no such disk"}'""",
        "mount command failed, status: Failure, reason: no such disk",
    ),
}


@pytest.mark.parametrize(("script", "error"), ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_that_is_no_success_has_its_own_error(script: str, error: str) -> None:
    async with flex_world(attach=False) as (here, driver):
        driver.on("mount", script)
        pod = await here.pod(**inline())
        message = await here.wait_for_event(error)
        assert message.startswith('MountVolume.SetUp failed for volume "data" : ')
        assert not path_exists(os.path.dirname(pod_path(here, pod, "data")))
        driver.work("mount")
        await here.wait_until_ready()
        await end_pod(here)
        assert driver.commands[-1] == "unmount"


async def test_a_mount_that_fails_halfway_is_unmounted() -> None:
    async with flex_world(attach=False) as (here, script):
        script.on("mount", """mount -t tmpfs tmpfs "$2"; answer '{"status": "Failure", "message": "late"}'""")
        await here.pod(**inline())
        await here.wait_for_event("late")
        await end_pod(here)
        assert script.commands[-1] == "unmount"
        assert here.list_mounts() == []


async def test_failures_of_the_device_have_upstreams_phases() -> None:
    async with flex_world() as (here, script):
        script.fail("waitforattach", "not there")
        await flex_claim(here)
        await list_attached(here, "pv-data")
        await here.pod(claim="data")
        await here.wait_for_event(
            'MountVolume.WaitForAttach failed for volume "pv-data" : waitforattach command failed'
        )
        script.fail("mountdevice", "bad disk")
        script.work("waitforattach")
        await here.wait_for_event('MountVolume.MountDevice failed for volume "pv-data" : mountdevice')
        assert not path_exists(device_path(here))
        script.fail("getvolumename", "who")
        await here.wait_for_event("getvolumename command failed, status: Failure, reason: who")


async def test_waitforattach_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugin.ATTACH_TIMEOUT == 600
    monkeypatch.setattr(plugin, "ATTACH_TIMEOUT", 0.2)
    async with flex_world() as (here, script):
        script.on("waitforattach", "sleep 1000")
        await flex_claim(here)
        await list_attached(here, "pv-data")
        await here.pod(claim="data")
        message = await here.wait_for_event("waitforattach command did not answer within 0.2 s: timeout")
        assert message.startswith('MountVolume.WaitForAttach failed for volume "pv-data"')


async def test_a_driver_that_no_longer_attaches_still_unmounts_what_it_had_attached() -> None:
    async with flex_world() as (here, script):
        await run_attached_pod(here)
        script.install(attach=False)

        async def is_replaced() -> bool:
            assert here.role is not None
            return not here.role.plugins.flex.drivers[DRIVER].capabilities.attach

        await until(is_replaced)
        await end_pod(here)
        await wait_until_unused(here)
        assert script.commands[-2:] == ["unmount", "unmountdevice"]


# --- secrets, read-only, mount options, fsGroup


async def create_secret(here: NodeEnv, type: str, namespace: str = "default") -> None:
    body = {"metadata": {"name": "key", "namespace": namespace}, "type": type, "data": {"user": "bWU="}}
    await here.client.create(convert(Secret, body))


async def test_secret_of_the_drivers_type_reaches_mount_alone_and_not_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with flex_world() as (here, script):
        await create_secret(here, DRIVER)
        await flex_claim(here, flexVolume={"secretRef": {"name": "key"}})
        await list_attached(here, "pv-data")
        await run_pod(here, claim="data")
        secret = {call[0]: decode(call)[-1].get("kubernetes.io/secret/user") for call in script.calls}
        assert secret == {"getvolumename": None, "waitforattach": None, "mountdevice": None, "mount": "bWU="}
        logged = [r.getMessage() for r in caplog.records if f"flexvolume {DRIVER}: mount " in r.getMessage()]
        assert len(logged) == 1
        assert "bWU=" not in logged[0]
        assert '"kubernetes.io/secret/user": "***"' in logged[0]
        assert "success (" in logged[0]


async def test_secret_of_wrong_type_failed_mount_no_directory_driver_not_called() -> None:
    async with flex_world(attach=False) as (here, script):
        await create_secret(here, "Opaque")
        pod = await here.pod(**inline(secretRef={"name": "key"}))
        message = await here.wait_for_event(f"cannot get secret of type {DRIVER}")
        assert message.startswith(
            'MountVolume.SetUp failed for volume "data" : couldn\'t get secret default/key'
        )
        assert script.calls == []
        assert not path_exists(pod_path(here, pod, "data"))


async def test_a_secret_that_is_missing_is_waited_for() -> None:
    async with flex_world(attach=False) as (here, _):
        await here.pod(**inline(secretRef={"name": "key"}))
        await here.wait_for_event("couldn't get secret default/key err: ")
        await create_secret(here, DRIVER)
        await here.wait_until_ready()


@pytest.mark.parametrize(("of_volume", "of_claim", "expected"), [(True, False, "rw"), (False, True, "ro")])
async def test_read_only_of_a_persistent_volume_is_that_of_the_pods_claim_reference(
    of_volume: bool, of_claim: bool, expected: str
) -> None:
    async with flex_world(attach=False) as (here, script):
        await flex_claim(here, flexVolume={"readOnly": of_volume})
        await run_pod(here, claim="data", readonly=of_claim)
        (call,) = map(decode, script.calls)
        assert call[-1]["kubernetes.io/readwrite"] == expected


async def test_mount_options_of_a_persistent_volume_are_refused() -> None:
    async with flex_world(attach=False) as (here, script):
        await flex_claim(here, mountOptions=["noatime"])
        await here.pod(claim="data")
        await here.wait_for_event("mount options are not supported for this volume type")
        assert script.calls == []


@pytest.mark.parametrize(
    ("capability", "read_only", "applied"), [(True, False, True), (False, False, False), (True, True, False)]
)
async def test_fs_group_is_applied_by_the_kubelet_unless_the_driver_does_or_it_is_read_only(
    capability: bool, read_only: bool, applied: bool
) -> None:
    async with flex_world(attach=False, fsGroup=capability) as (here, script):
        pod = await run_pod(here, **inline(readOnly=read_only), securityContext={"fsGroup": 2000})
        group = (await asyncio.to_thread(os.stat, pod_path(here, pod, "data"))).st_gid
        assert (group == 2000) is applied
        (call,) = map(decode, script.calls)
        assert call[-1]["kubernetes.io/mounterArgs.FsGroup"] == "2000"


async def test_a_block_volume_has_no_flexvolume_plugin() -> None:
    async with flex_world() as (here, _):
        await flex_claim(here, volumeMode="Block")
        await here.pod(claim="data", device="/dev/data")
        message = await here.wait_for_event("no volume plugin matched")
        assert message.endswith("FlexVolume has no block volumes")


# --- several pods and volumes


async def test_two_pods_one_volume_one_mountdevice_two_mounts_one_unmountdevice() -> None:
    async with flex_world() as (here, script):
        await flex_claim(here)
        await list_attached(here, "pv-data")
        for name in ("first", "second"):
            await run_pod(here, name, claim="data")
        assert script.commands.count("mountdevice") == 1
        assert script.commands.count("mount") == 2
        await end_pod(here, "first")
        assert "unmountdevice" not in script.commands
        await end_pod(here, "second")
        await wait_until_unused(here)
        assert script.commands[-3:] == ["unmount", "unmount", "unmountdevice"]


async def test_a_device_that_another_node_of_the_machine_has_mounted_is_unmounted(tmp_path: Path) -> None:
    async with flex_world() as (here, script):
        await run_attached_pod(here)
        device = device_path(here)
        end = device.removeprefix(here.paths.root)
        places = [f"{tmp_path}{end}", f"{tmp_path}/pods/u/volumes/example.com~disks/pv-data"]
        for place in places:
            os.makedirs(place)
            mounts.bind(device, place, readonly=False, recursive=False)
        try:
            await end_pod(here)
            await wait_until_unused(here)
        finally:
            for place in places:
                mounts.unmount(place)
        assert script.commands[-1] == "unmountdevice"


async def test_hanging_mount_only_that_volume_is_blocked() -> None:
    async with flex_world(attach=False) as (here, script):
        script.on(
            "mount", f'case "$2" in */slow) while [ ! -f {script.home}/go ]; do sleep 0.05; done ;; esac'
        )
        await here.pod("slow", **inline("slow"))

        async def is_hanging() -> bool:
            return script.commands == ["mount"]

        await until(is_hanging)
        for index in range(3):
            await run_pod(here, f"quick-{index}", **inline("quick"))
        await here.delete("slow")  # waits for the outcome of the call
        await wait_briefly(0.3)
        assert "unmount" not in script.commands
        (script.home / "go").touch()
        await here.wait_for_phase("gone", "slow")
        assert script.commands[-1] == "unmount"


# --- restart


async def test_kubelet_restart_volume_rebuilt_from_the_directory_name_and_unmounted() -> None:
    async with flex_world() as (here, script):
        pod = await run_attached_pod(here)
        await here.stop(drain=False)
        script.forget_calls()
        await here.delete(grace=0)
        await here.start()
        await wait_until_unused(here)
        assert script.calls == [["unmount", pod_path(here, pod)], ["unmountdevice", device_path(here)]]


async def test_kubelet_restart_of_a_driver_without_attach_needs_no_device() -> None:
    async with flex_world(attach=False) as (here, script):
        await run_pod(here, **inline())
        await here.stop(drain=False)
        await here.delete(grace=0)
        await here.start()
        await wait_until_unused(here)
        assert script.commands == ["mount", "unmount"]


async def test_kubelet_restart_with_a_running_pod_mounts_nothing_again() -> None:
    async with flex_world() as (here, script):
        await run_attached_pod(here)
        mounted = here.list_mounts()
        await here.stop(drain=False)
        script.forget_calls()
        await here.start()

        async def is_verified() -> bool:
            return "waitforattach" in script.commands

        await until(is_verified)
        await here.wait_until_ready()
        assert here.list_mounts() == mounted
        assert script.commands == ["getvolumename", "waitforattach"]  # already a mount point: no other call


async def test_kubelet_restart_while_the_driver_is_missing_waits_for_it() -> None:
    async with flex_world() as (here, script):
        await run_attached_pod(here)
        await here.stop(drain=False)
        script.remove()
        await here.delete(grace=0)
        await here.start()
        await wait_briefly(0.5)
        assert len(here.list_mounts()) == 2
        assert await here.in_use() == [f"{DRIVER}/pv-data"]
        script.install()
        await wait_until_unused(here)
