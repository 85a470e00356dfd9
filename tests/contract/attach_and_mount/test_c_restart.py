"""Section C7: a node that stops, drained or not, and starts again on the same directory.

Nodes that are killed are in test_c_crashes.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.contract.attach_and_mount.grounds import node_world
from tests.loops.inprocess import until
from tests.node.node_env import DRIVER, NODE, NodeEnv, path_exists, unique_name, wait_briefly, write
from volplane.api.core import Node, PersistentVolumeClaim, Pod
from volplane.client.client import Client
from volplane.client.https import HttpsTransport
from volplane.csi.outcome import CallError, Code
from volplane.host import mounts
from volplane.node.kubelet import run
from volplane.node.options import NodeOptions
from volplane.web import HttpClient

pytestmark = pytest.mark.root


async def running(here: NodeEnv, **pod: Any) -> Pod:
    await here.start()
    await here.start_driver()
    await here.wait_until_registered()
    await here.volume()
    await here.pod(claim="data", **pod)
    return await here.wait_until_ready()


async def is_out_of_use(here: NodeEnv) -> None:
    async def unused() -> bool:
        return not await here.in_use()

    await until(unused)


async def test_logs_of_a_pod_that_is_gone_go_even_if_nothing_else_is_left_of_it() -> None:
    async with node_world() as here:
        pod = await running(here)
        mine = Path(here.paths.real(here.paths.log_directory("default", "app", pod.uid)))
        lost = Path(here.paths.real(here.paths.log_directory("default", "app", "an-older-uid")))
        await here.stop(drain=False)
        await asyncio.to_thread(lost.mkdir, parents=True)
        await here.start()

        async def cleared() -> bool:
            return not path_exists(lost)

        await until(cleared)
        await here.wait_until_ready()
        assert path_exists(mine)


async def test_a_staged_volume_is_not_unstaged_before_its_pod_has_said_that_it_wants_it() -> None:
    async with node_world() as here:
        pod = await running(here)
        await here.stop(drain=False)
        mounts.unmount(here.paths.real(here.paths.csi_target(pod.uid, "pv-data")))  # as if not published yet
        await asyncio.to_thread(shutil.rmtree, here.paths.real(here.paths.volumes(pod.uid)))
        here.disks.calls.clear()
        client, go_on = here.api.separate_client("kubelet"), asyncio.Event()
        get = client.transport.get

        async def slowly(type: Any, *rest: Any, **options: Any) -> Any:
            if type is PersistentVolumeClaim:
                await go_on.wait()
            return await get(type, *rest, **options)

        client.transport.get = slowly  # type: ignore[method-assign]
        await here.start(client)
        await wait_briefly(0.3)
        assert here.disks.count_calls() == {}
        go_on.set()
        await here.wait_until_ready()
        assert [name for name, _ in here.disks.calls] == ["stage", "publish"]


async def test_final_error_on_a_reconstructed_entry_stays_uncertain_and_is_undone() -> None:
    """The stage is refused, but what an earlier life has staged is there: its metadata stays, too."""
    async with node_world() as here:
        await running(here)
        await here.stop(drain=False)
        here.disks.calls.clear()

        async def refuse(request: Any) -> None:
            raise CallError(Code.INTERNAL, "no more")

        here.disks.hooks["stage"] = refuse
        await here.start()
        await here.wait_for_event("no more")
        assert path_exists(here.paths.real(here.paths.staging_data(DRIVER, "vol-data")))
        await here.delete(grace=0)
        await is_out_of_use(here)
        assert here.disks.count_calls()["unpublish"] == here.disks.count_calls()["unstage"] == 1
        assert here.list_mounts() == []


async def test_a_drained_node_leaves_no_mount_and_its_pods_run_again_later() -> None:
    async with node_world() as here:
        await running(here, restartPolicy="Never")
        await here.stop(drain=True)
        assert here.list_mounts() == []
        assert here.disks.count_calls() == {"stage": 1, "publish": 1, "unpublish": 1, "unstage": 1}
        assert await here.in_use() == []
        pod = await here.client.get(Pod, "app", "default")
        assert pod.status.phase == "Running"
        await here.start()

        async def again() -> bool:
            found = await here.client.get(Pod, "app", "default")
            (status,) = found.status.container_statuses
            return status.restart_count == 1 and status.state.running is not None

        await until(again)
        assert len(here.list_mounts()) == 2


async def test_what_a_pod_has_written_to_its_empty_directory_survives_a_drain() -> None:
    async with node_world() as here:
        await here.start()
        volume = {"name": "scratch", "emptyDir": {}}
        await here.pod(volumes=[volume], mounts=[{"name": "scratch", "mountPath": "/x"}])
        pod = await here.wait_until_ready()
        path = Path(here.paths.real(here.paths.volume(pod.uid, "kubernetes.io/empty-dir", "scratch")))
        write(path / "file", "kept")
        await here.stop(drain=True)
        await here.start()
        await here.wait_until_ready()
        assert (path / "file").read_text() == "kept"
        await here.delete()
        await here.wait_for_phase("gone")
        assert not path_exists(path)


async def test_volumes_in_use_stay_as_they_were_until_the_disk_has_been_read() -> None:
    async with node_world() as here:
        await running(here)
        await here.stop(drain=False)
        node = await here.client.get(Node, NODE)
        await here.start()
        assert await here.in_use() == list(node.status.volumes_in_use) == [unique_name()]


async def test_a_node_that_reaches_no_server_can_be_stopped() -> None:
    async with node_world() as here:
        settings = NodeOptions(hostname_override=NODE, root_dir=here.paths.root)
        transport = HttpsTransport(HttpClient("https://127.0.0.1:1"))
        client = Client(transport)
        stop = asyncio.Event()
        running = asyncio.create_task(run(settings, client, here.host, {}, stop=stop))
        await asyncio.sleep(0.1)
        stop.set()
        async with asyncio.timeout(10):
            await running
        await client.close()
        await transport.close()
