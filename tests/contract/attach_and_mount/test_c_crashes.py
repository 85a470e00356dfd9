"""Section C7: the kubelet's process killed with SIGKILL, and started again on the same directory.

Its containers are processes that outlive it. What a node does that is asked to stop is in test_c_restart.
"""

from __future__ import annotations

import os

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import NODE, NodeEnv, path_exists, read, unique_name, write
from tests.node.node_process import (
    LONG,
    cut_power,
    node_process_env,
    pids,
    start_with_running_pod,
    wait_until_clean,
)
from tests.support.https_apiserver import HttpsApiServer
from volplane.api.core import Pod

pytestmark = [pytest.mark.root, pytest.mark.slow]


def target(here: NodeEnv, pod: Pod) -> str:
    return here.paths.real(here.paths.csi_target(pod.uid, "pv-data"))


async def test_kubelet_restart_with_running_pods_no_unmount_no_container_restart() -> None:
    async with node_process_env() as (here, child):
        await start_with_running_pod(here, child)
        before = await here.client.get(Pod, "app", "default")
        mounted, running = here.list_mounts(), pids(here)
        write(f"{target(here, before)}/file", "kept")
        await child.kill()
        assert pids(here) == running
        here.disks.calls.clear()
        await child.start()

        async def again() -> bool:
            return here.disks.count_calls() == {"stage": 1, "publish": 1}

        await until(again, LONG)
        assert here.list_mounts() == mounted
        assert read(f"{target(here, before)}/file") == "kept"
        assert pids(here) == running
        after = await here.client.get(Pod, "app", "default")
        assert after.status.container_statuses == before.status.container_statuses
        await here.delete()
        await here.wait_for_phase("gone")
        await wait_until_clean(here)


async def test_restart_pod_deleted_meanwhile_unpublish_unstage_from_metadata_dirs_gone() -> None:
    async with node_process_env() as (here, child):
        await start_with_running_pod(here, child)
        await child.kill()
        await here.delete(grace=0)
        here.disks.calls.clear()
        await child.start()
        await wait_until_clean(here)
        assert [name for name, _ in here.disks.calls] == ["unpublish", "unstage"]
        assert pids(here) == {}


async def test_restart_with_api_server_down_no_unmount_at_all_volumes_in_use_unchanged() -> None:
    async with node_process_env() as (here, child):
        assert isinstance(here.api, HttpsApiServer)
        await start_with_running_pod(here, child)
        mounted, running = here.list_mounts(), pids(here)
        await child.kill()
        await here.delete(grace=0)
        here.disks.calls.clear()
        await here.api.go_down()
        await child.start()

        async def tried() -> bool:
            assert child.is_running, child.log()
            return child.log().count(f"node {NODE}: ") >= 3  # it has read its disk, and asks in vain

        await until(tried, LONG)
        assert here.list_mounts() == mounted
        assert pids(here) == running
        assert here.disks.calls == []
        await here.api.come_back()
        assert await here.in_use() == [unique_name()]
        await wait_until_clean(here)
        assert [name for name, _ in here.disks.calls] == ["unpublish", "unstage"]


async def test_node_reboot_mounts_gone_metadata_present_restaged_and_republished() -> None:
    async with node_process_env() as (here, child):
        await start_with_running_pod(here, child)
        mounted = here.list_mounts()
        await cut_power(here, child)
        here.disks.calls.clear()
        await child.start()

        async def runs_again() -> bool:
            (status,) = (await here.client.get(Pod, "app", "default")).status.container_statuses
            return status.restart_count == 1 and status.state.running is not None

        await until(runs_again, LONG)
        assert [name for name, _ in here.disks.calls] == ["stage", "publish"]
        assert here.list_mounts() == mounted
        await here.delete()
        await here.wait_for_phase("gone")
        await wait_until_clean(here)


async def test_corrupt_vol_data_for_an_orphan_logged_no_data_deleted() -> None:
    async with node_process_env() as (here, child):
        await start_with_running_pod(here, child)
        pod = await here.client.get(Pod, "app", "default")
        file, data = f"{target(here, pod)}/file", here.paths.real(here.paths.csi_data(pod.uid, "pv-data"))
        write(file, "kept")
        await child.kill()
        write(data, "{")
        await here.delete(grace=0)
        here.disks.calls.clear()
        await child.start()

        async def logged() -> bool:
            return child.log().count("still mounted by other references") >= 2

        await until(logged, LONG)
        assert read(file) == "kept"
        assert path_exists(data)
        assert here.disks.calls == []
        assert await here.in_use() == [unique_name()]
        assert os.listdir(here.paths.real(here.paths.pods)) == [pod.uid]
        await child.kill()  # asked to stop, it would wait for what cannot be unmounted
