"""Raw block volumes, on real loop devices: the layout, the pin, the device in the container, the way back."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.contract.attach_and_mount.grounds import node_world
from tests.loops.inprocess import until
from tests.node.node_env import NODE, NodeEnv, path_exists, read, unique_name
from volplane.api.core import Event
from volplane.csi.outcome import CallError, Code
from volplane.host import devices, mounts

pytestmark = pytest.mark.root

SIZE, CONTENT = 4 << 20, b"on the disk"
LAYOUT = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices"


@contextmanager
def a_disk() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        image = Path(directory) / "disk.img"
        image.write_bytes(CONTENT)
        os.truncate(image, SIZE)
        disk = devices.loop_attach(str(image))
        try:
            yield disk
        finally:
            devices.loop_detach(disk, str(image))


@asynccontextmanager
async def with_disk() -> AsyncIterator[tuple[NodeEnv, str]]:
    """A node whose driver has one disk, and the claim `data` for it."""
    with a_disk() as disk:
        async with node_world() as here:
            here.disks.devices["vol-data"] = disk
            await here.start()
            await here.start_driver()
            await here.wait_until_registered()
            await here.volume(volumeMode="Block")
            yield here, disk


def content(path: str, size: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(size)


def pins(here: NodeEnv) -> list[str]:
    """Loop devices that hold what the node has mapped."""
    return [backing for backing in devices.loops().values() if here.paths.root in backing]


async def until_unused(here: NodeEnv) -> None:
    async def unused() -> bool:
        return not await here.in_use()

    await until(unused)


def nothing_left(here: NodeEnv) -> bool:
    left = here.paths.real(LAYOUT)
    return not pins(here) and here.list_mounts() == [] and not (os.path.isdir(left) and os.listdir(left))


async def test_block_pv_device_node_in_the_container_loop_device_exists_while_in_use_gone_after() -> None:
    async with with_disk() as (here, disk):
        said = f"{here.directory}/said"
        os.mkdir(said)
        script = (
            "head -c 11 /dev/xvda > /said/a; printf written | dd of=/dev/xvda conv=notrunc,fsync; sleep 999"
        )
        pod = await here.pod(
            claim="data",
            device="/dev/xvda",
            volumes=[{"name": "said", "hostPath": {"path": said}}],
            container={
                "image": "busybox",
                "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "said", "mountPath": "/said"}],
            },
        )
        await here.wait_until_ready()

        async def written() -> bool:
            return content(disk, 7) == b"written"

        await until(written)
        assert content(f"{said}/a", 99) == CONTENT
        paths = here.paths
        staged = next(r for name, r in here.disks.calls if name == "stage")
        published = next(r for name, r in here.disks.calls if name == "publish")
        assert staged.volume_capability.HasField("block")
        assert staged.staging_target_path == published.staging_target_path == f"{LAYOUT}/staging/pv-data"
        assert published.target_path == f"{LAYOUT}/publish/pv-data/{pod.uid}"
        mapped = paths.real(f"{LAYOUT}/pv-data/dev/{pod.uid}")
        assert os.stat(mapped).st_rdev == os.stat(disk).st_rdev
        assert pins(here) == [mapped]
        link = paths.real(f"/var/lib/kubelet/pods/{pod.uid}/volumeDevices/kubernetes.io~csi/pv-data")
        assert os.readlink(link)
        assert stat.S_ISBLK(os.stat(link).st_mode)
        metadata = json.loads(read(paths.real(f"{LAYOUT}/pv-data/data/vol_data.json")))
        assert set(metadata) == {"attachmentID", "driverName", "nodeName", "specVolID", "volumeHandle"}
        await here.list_event_messages()
        reported = [
            e for e in await here.client.list(Event, "default") if e.reason == "SuccessfulMountVolume"
        ]
        assert sorted(e.message for e in reported) == [
            f'MapVolume.MapPodDevice succeeded for volume "pv-data" globalMapPath "{LAYOUT}/pv-data/dev"',
            'MapVolume.MapPodDevice succeeded for volume "pv-data" volumeMapPath '
            f'"/var/lib/kubelet/pods/{pod.uid}/volumeDevices/kubernetes.io~csi"',
        ]
        assert await here.in_use() == [unique_name()]
        await here.delete()
        await here.wait_for_phase("gone")
        await until_unused(here)
        assert here.disks.count_calls() == {"stage": 1, "publish": 1, "unpublish": 1, "unstage": 1}
        assert nothing_left(here)


async def test_two_pods_on_one_block_pv() -> None:
    async with with_disk() as (here, _):
        for name in ("a", "b"):
            await here.pod(name, claim="data", device="/dev/xvda")
        for name in ("a", "b"):
            await here.wait_until_ready(name)
        assert here.disks.count_calls() == {"stage": 1, "publish": 2}
        assert len(pins(here)) == 2
        await here.delete("a")
        await here.wait_for_phase("gone", "a")
        assert len(pins(here)) == 1
        assert here.disks.count_calls()["unstage"] == 0
        await here.delete("b")
        await until_unused(here)
        assert here.disks.count_calls() == {"stage": 1, "publish": 2, "unpublish": 2, "unstage": 1}
        assert nothing_left(here)


async def test_a_pod_whose_claim_is_read_only_cannot_write_to_the_device() -> None:
    async with with_disk() as (here, disk):
        script = "printf no | dd of=/dev/xvda conv=notrunc,fsync 2>/dev/null && exit 7; exit 3"
        command = {"image": "busybox", "command": ["sh", "-c", script]}
        await here.pod(
            claim="data", device="/dev/xvda", readonly=True, container=command, restartPolicy="Never"
        )
        await here.wait_for_phase("Failed")
        published = next(r for name, r in here.disks.calls if name == "publish")
        assert published.readonly
        assert content(disk, 11) == CONTENT
        await here.delete()
        await until_unused(here)
        assert nothing_left(here)


async def test_a_refused_map_is_told_as_failed_map_volume_and_leaves_nothing() -> None:
    async with with_disk() as (here, _):
        refusals = iter([CallError(Code.INVALID_ARGUMENT, "not this way")])

        async def refuse(request: object) -> None:
            for error in refusals:
                raise error

        here.disks.hooks["publish"] = refuse
        await here.pod(claim="data", device="/dev/xvda")
        await here.wait_for_event(
            'MapVolume.MapPodDevice failed for volume "pv-data" : rpc error: code = InvalidArgument desc'
        )
        assert [e.reason for e in await here.client.list(Event, "default") if "not this" in e.message] == [
            "FailedMapVolume"
        ]
        await here.wait_until_ready()
        await here.delete()
        await until_unused(here)
        assert nothing_left(here)


async def test_a_restarted_node_maps_again_for_a_pod_that_lives_and_unmaps_for_one_that_is_gone() -> None:
    async with with_disk() as (here, _):
        await here.pod("stays", claim="data", device="/dev/xvda")
        await here.pod("goes", claim="data", device="/dev/xvda")
        await here.wait_until_ready("stays")
        await here.wait_until_ready("goes")
        await here.stop(drain=False)
        assert len(pins(here)) == 2
        await here.delete("goes", grace=0)
        here.disks.calls.clear()
        await here.start()

        async def one_left() -> bool:
            counted = here.disks.count_calls()
            return len(pins(here)) == 1 and counted["unpublish"] == counted["publish"] == 1

        await until(one_left)
        await here.wait_until_ready("stays")
        assert here.disks.count_calls()["stage"] == 1
        assert here.disks.count_calls()["unstage"] == 0
        await here.delete("stays")
        await until_unused(here)
        assert nothing_left(here)


async def test_a_stage_that_is_refused_after_a_restart_keeps_what_is_needed_to_unmap() -> None:
    async with with_disk() as (here, _):
        await here.pod(claim="data", device="/dev/xvda")
        await here.wait_until_ready()
        await here.stop(drain=False)
        here.disks.calls.clear()

        async def refuse(request: object) -> None:
            raise CallError(Code.INTERNAL, "no more")

        here.disks.hooks["stage"] = refuse
        await here.start()
        await here.wait_for_event("no more")
        await here.delete(grace=0)
        await until_unused(here)
        assert here.disks.count_calls()["unpublish"] == here.disks.count_calls()["unstage"] == 1
        assert nothing_left(here)


async def test_a_node_killed_while_the_driver_publishes_finds_the_pod_again_and_undoes_it() -> None:
    """The pod is gone when the node returns; only the empty file of its map tells of the call."""
    async with with_disk() as (here, _):
        pod = await here.pod(claim="data", device="/dev/xvda")
        await here.wait_until_ready()
        await here.stop(drain=False)
        await here.delete(grace=0)
        mapped = here.paths.real(here.paths.block_map(pod.uid, "pv-data"))
        for device, backing in devices.loops().items():
            if backing == mapped:
                devices.loop_detach(device)
        for path in (mapped, here.paths.real(here.paths.block_target(pod.uid, "pv-data"))):
            mounts.unmount(path)
        os.unlink(here.paths.real(here.paths.block_target(pod.uid, "pv-data")))
        os.unlink(here.paths.real(here.paths.block_link(pod.uid, "pv-data")))
        assert path_exists(mapped)
        here.disks.calls.clear()
        await here.start()
        await until_unused(here)
        assert here.disks.count_calls() == {"unpublish": 1, "unstage": 1}
        assert nothing_left(here)
        assert here.role is not None
        assert here.role.name == NODE
