"""Sections C7 and G: a node that stops, drained or not, and starts again on the same directory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.loops.inprocess import until
from tests.node.nodeworld import DRIVER, NODE, NodeWorld, node_world, there, unique, write
from volplane.api.core import Node, Pod
from volplane.api.errors import Unavailable
from volplane.api.storage import VolumeAttachment
from volplane.client.client import Client
from volplane.client.https import Https
from volplane.csi.outcome import CallError, Code
from volplane.host import mounts
from volplane.node.runner import run
from volplane.node.settings import NodeSettings
from volplane.web import Http

pytestmark = pytest.mark.root


async def running(here: NodeWorld, **pod: Any) -> Pod:
    await here.start()
    await here.start_driver()
    await here.registered()
    await here.volume()
    await here.pod(claim="data", **pod)
    return await here.until_ready()


async def is_out_of_use(here: NodeWorld) -> None:
    async def unused() -> bool:
        return not await here.in_use()

    await until(unused)


async def test_kubelet_restart_with_running_pods_stage_and_publish_repeated_no_unmount() -> None:
    async with node_world() as here:
        await running(here)
        mounted = here.mounted()
        await here.stop(drain=False)
        assert here.mounted() == mounted
        here.disks.calls.clear()
        await here.start()

        async def again() -> bool:
            return here.disks.counted() == {"stage": 1, "publish": 1}

        await until(again)
        await here.until_ready()
        assert here.mounted() == mounted
        assert here.disks.counted() == {"stage": 1, "publish": 1}


async def test_restart_pod_deleted_meanwhile_unpublish_unstage_from_metadata_dirs_gone() -> None:
    async with node_world() as here:
        await running(here)
        await here.stop(drain=False)
        await here.delete(grace=0)
        here.disks.calls.clear()
        await here.start()
        await is_out_of_use(here)
        assert [name for name, _ in here.disks.calls] == ["unpublish", "unstage"]
        assert here.mounted() == []

        async def clean() -> bool:
            return not os.listdir(here.paths.real(here.paths.pods))

        await until(clean)


async def test_logs_of_a_pod_that_is_gone_go_even_if_nothing_else_is_left_of_it() -> None:
    async with node_world() as here:
        pod = await running(here)
        mine = Path(here.paths.real(here.paths.log_directory("default", "app", pod.uid)))
        lost = Path(here.paths.real(here.paths.log_directory("default", "app", "an-older-uid")))
        await here.stop(drain=False)
        await asyncio.to_thread(lost.mkdir, parents=True)
        await here.start()

        async def cleared() -> bool:
            return not there(lost)

        await until(cleared)
        await here.until_ready()
        assert there(mine)


async def test_node_reboot_mounts_gone_metadata_present_restaged_and_republished() -> None:
    async with node_world() as here:
        await running(here)
        mounted = here.mounted()
        await here.stop(drain=False)
        for entry in mounts.read_table().under(here.paths.root):
            mounts.unmount(entry.target, detach=True)
        assert here.mounted() == []
        await here.start()

        async def back() -> bool:
            return here.mounted() == mounted

        await until(back)
        await here.until_ready()


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
        await here.until_told("no more")
        assert there(here.paths.real(here.paths.staging_data(DRIVER, "vol-data")))
        await here.delete(grace=0)
        await is_out_of_use(here)
        assert here.disks.counted()["unpublish"] == here.disks.counted()["unstage"] == 1
        assert here.mounted() == []


async def test_corrupt_vol_data_for_an_orphan_logged_no_data_deleted() -> None:
    async with node_world() as here:
        pod = await running(here)
        await here.stop(drain=False)
        await here.delete(grace=0)
        data = Path(here.paths.real(here.paths.csi_data(pod.uid, "pv-data")))
        write(data, "{")
        here.disks.calls.clear()
        await here.start(shutdown_grace_period=0.1)

        async def unstage_refused() -> bool:
            assert here.role is not None
            return any("still mounted by other references" in w.why for w in here.role.waits())

        await until(unstage_refused)
        assert there(data)
        assert here.disks.counted() == {}
        assert await here.in_use() == [unique()]


async def test_a_drained_node_leaves_no_mount_and_its_pods_run_again_later() -> None:
    async with node_world() as here:
        await running(here, restartPolicy="Never")
        await here.stop(drain=True)
        assert here.mounted() == []
        assert here.disks.counted() == {"stage": 1, "publish": 1, "unpublish": 1, "unstage": 1}
        assert await here.in_use() == []
        pod = await here.client.get(Pod, "app", "default")
        assert pod.status.phase == "Running"
        await here.start()

        async def again() -> bool:
            found = await here.client.get(Pod, "app", "default")
            (status,) = found.status.container_statuses
            return status.restart_count == 1 and status.state.running is not None

        await until(again)
        assert len(here.mounted()) == 2


async def test_what_a_pod_has_written_to_its_empty_directory_survives_a_drain() -> None:
    async with node_world() as here:
        await here.start()
        volume = {"name": "scratch", "emptyDir": {}}
        await here.pod(volumes=[volume], mounts=[{"name": "scratch", "mountPath": "/x"}])
        pod = await here.until_ready()
        path = Path(here.paths.real(here.paths.volume(pod.uid, "kubernetes.io/empty-dir", "scratch")))
        write(path / "file", "kept")
        await here.stop(drain=True)
        await here.start()
        await here.until_ready()
        assert (path / "file").read_text() == "kept"
        await here.delete()
        await here.until_phase("gone")
        assert not there(path)


async def test_volumes_in_use_stay_as_they_were_until_the_disk_has_been_read() -> None:
    async with node_world() as here:
        await running(here)
        await here.stop(drain=False)
        node = await here.client.get(Node, NODE)
        await here.start()
        assert await here.in_use() == list(node.status.volumes_in_use) == [unique()]


async def test_a_node_that_reaches_no_server_can_be_stopped() -> None:
    async with node_world() as here:
        settings = NodeSettings(hostname_override=NODE, root_dir=here.paths.root)
        transport = Https(Http("https://127.0.0.1:1"))
        client = Client(transport)
        stop = asyncio.Event()
        running = asyncio.create_task(run(settings, client, here.host, {}, stop=stop))
        await asyncio.sleep(0.1)
        stop.set()
        async with asyncio.timeout(10):
            await running
        await client.close()
        await transport.close()


class Line:
    """The way to the API server, which may be cut."""

    def __init__(self, transport: Any) -> None:
        self._transport, self.cut = transport, True

    def __getattr__(self, name: str) -> Any:
        if self.cut and name in ("get", "list", "create", "update", "patch", "delete", "watch"):
            raise Unavailable("the API server cannot be reached")
        return getattr(self._transport, name)


async def test_restart_with_api_server_down_no_unmount_at_all_volumes_in_use_unchanged() -> None:
    async with node_world() as here:
        await running(here)
        mounted = here.mounted()
        await here.stop(drain=False)
        await here.delete(grace=0)
        here.disks.calls.clear()
        line = Line(here.api.core.local())
        starting = asyncio.create_task(here.start(Client(line, component="kubelet")))  # type: ignore[arg-type]
        await asyncio.sleep(0.5)
        assert not starting.done()
        assert here.mounted() == mounted
        assert here.disks.calls == []
        assert await here.in_use() == [unique()]
        line.cut = False
        await starting
        await is_out_of_use(here)
        assert here.mounted() == []


async def test_node_crash_volume_force_detached_node_returns_unpublish_and_unstage_without_the_device() -> (
    None
):
    """The mounts went with the machine, the disk is at another node; only the metadata is left."""
    async with node_world() as here:
        await running(here)
        await here.stop(drain=False)
        for entry in mounts.read_table().under(here.paths.root):
            mounts.unmount(entry.target, detach=True)
        await here.delete(grace=0)
        for attachment in await here.client.list(VolumeAttachment):
            await here.client.delete(VolumeAttachment, attachment.name)
        detached = {"status": {"volumesAttached": None}}
        await here.client.patch(Node, NODE, merge=detached, subresource="status")
        here.disks.calls.clear()
        await here.start()
        await is_out_of_use(here)
        assert [name for name, _ in here.disks.calls] == ["unpublish", "unstage"]

        async def clean() -> bool:
            return not os.listdir(here.paths.real(here.paths.pods))

        await until(clean)
