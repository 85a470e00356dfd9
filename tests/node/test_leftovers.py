"""What a killed node leaves behind: found after the restart, and never removed through a mount."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import (
    DRIVER,
    NODE,
    FakeDiskDriver,
    NodeEnv,
    node_env,
    path_exists,
    read,
    unique_name,
    write,
)
from volplane.cluster import power_loss
from volplane.host import NodePaths
from volplane.node.kubelet import Kubelet
from volplane.node.options import NodeOptions
from volplane.sdk import Driver

pytestmark = pytest.mark.root

PROCESS = {"image": "busybox", "command": ["sleep", "1000"]}


class Shares(FakeDiskDriver):
    """A driver that stages nothing."""

    node_stage_volume = Driver.node_stage_volume
    node_unstage_volume = Driver.node_unstage_volume


async def started(here: NodeEnv) -> None:
    await here.start()
    await here.start_driver()
    await here.wait_until_registered()


def left(here: NodeEnv) -> list[str]:
    # os.walk skips directories that are removed meanwhile.
    csi = os.walk(here.paths.real(f"{here.paths.plugins}/kubernetes.io/csi"))
    staged = [os.path.join(place, name) for place, folders, files in csi for name in (*folders, *files)]
    return [*os.listdir(here.paths.real(here.paths.pods)), *staged, *here.list_mounts()]


async def until_clean(here: NodeEnv) -> None:
    """Nothing of a pod or of a volume is left."""

    async def clean() -> bool:
        return not left(here) and not await here.in_use()

    await until(clean)


async def test_a_directory_that_was_made_for_staging_and_no_more_goes() -> None:
    async with node_env() as here:
        await started(here)
        await here.stop()
        for handle, inside in (("a", "globalmount"), ("b", ""), ("c", "globalmount")):
            os.makedirs(
                os.path.join(os.path.dirname(here.paths.real(here.paths.staging(DRIVER, handle))), inside)
            )
        write(
            here.paths.real(f"{os.path.dirname(here.paths.staging(DRIVER, 'c'))}/.vol_data.json.7.8.tmp"), "{"
        )
        await here.start()
        await until_clean(here)


async def test_the_directory_of_a_pod_whose_metadata_was_half_written_goes() -> None:
    async with node_env() as here:
        await started(here)
        await here.stop()
        place = os.path.dirname(here.paths.real(here.paths.csi_data("a-uid", "pv-data")))
        os.makedirs(place)
        write(f"{place}/.vol_data.json.7.8.tmp", "{")
        await here.start()
        await until_clean(here)


async def test_a_driver_that_does_not_stage_leaves_no_directory_of_a_pod_that_went_meanwhile() -> None:
    async with node_env() as here:
        here.disks = Shares(here.paths)
        await started(here)
        await here.volume()
        await here.pod(claim="data")
        await here.wait_until_ready()
        await here.stop(drain=False)
        await here.delete(grace=0)
        await here.start()
        await until_clean(here)


async def test_a_volume_whose_staging_cannot_be_read_stays_in_use() -> None:
    async with node_env() as here:
        await started(here)
        await here.volume()
        await here.pod(claim="data")
        await here.wait_until_ready()
        await here.stop(drain=False)
        await here.delete(grace=0)
        damaged = here.paths.real(here.paths.staging_data(DRIVER, "vol-data"))
        whole = read(damaged)
        write(damaged, "{")
        await here.start(shutdown_grace_period=0.1)

        async def told() -> bool:
            assert here.role is not None
            return any("failed to read volume data" in w.why for w in here.role.wait_reports())

        await until(told)
        assert await here.in_use() == [unique_name()]
        assert here.disks.count_calls()["unstage"] == 0
        write(damaged, whole)  # as its administrator does
        await until_clean(here)


async def test_a_container_that_ignores_its_signal_is_killed_before_the_node_gives_up() -> None:
    """Its pod allows it more time than the node has."""
    async with node_env() as here:
        await here.start(shutdown_grace_period=3.0)
        await here.start_driver()
        await here.wait_until_registered()
        await here.volume()
        stubborn = {"image": "busybox", "command": ["sh", "-c", "trap '' TERM; sleep 1000 & wait; wait"]}
        await here.pod(claim="data", container=stubborn)
        await here.wait_until_ready()
        await here.stop()
        assert here.list_mounts() == []


def _overwrite(here: NodeEnv, content: str) -> int:
    files = list(Path(here.paths.root).rglob("vol_data.json"))
    for file in files:
        write(file, content)
    return len(files)


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00" * 80], ids=["empty", "cut", "other", "zeros"])
async def test_metadata_that_a_power_cut_has_emptied_keeps_nothing_back(content: str) -> None:
    """A power loss ends all mounts, so unreadable metadata can be removed."""
    async with node_env() as here:
        await started(here)
        await here.volume()
        await here.pod(claim="data")
        await here.wait_until_ready()
        await here.stop(drain=False)
        await power_loss.lose_power(Path(here.paths.root), here.host)
        await here.delete(grace=0)
        assert _overwrite(here, content) == 2  # that of the device, and that of the pod
        await here.start()
        await until_clean(here)


async def test_a_part_of_a_host_path_is_unmounted_for_a_pod_that_went_meanwhile(tmp_path: Path) -> None:
    """Such a volume has no directory of its own by which it could be found."""
    (tmp_path / "part").mkdir()
    write(tmp_path / "part" / "kept", "data")
    async with node_env() as here:
        await started(here)
        await here.pod(
            volumes=[{"name": "v", "hostPath": {"path": str(tmp_path)}}],
            mounts=[{"name": "v", "mountPath": "/x", "subPath": "part"}],
            container=PROCESS,
        )
        await here.wait_until_ready()
        await here.stop(drain=False)
        await here.delete(grace=0)
        assert here.list_mounts()
        await here.start()
        await until_clean(here)
    assert read(tmp_path / "part" / "kept") == "data"


async def test_a_node_whose_directory_is_reached_by_a_link_deletes_nothing_in_a_volume(
    tmp_path: Path,
) -> None:
    """The mount table knows the directory by another name."""
    async with node_env() as here:
        link = tmp_path / "link"
        link.symlink_to(here.directory)
        here.paths = here.disks.paths = NodePaths(f"{link}/n/1")
        found: list[str] = []

        async def fill(request: Any) -> None:
            root = here.paths.real(request.staging_target_path)
            os.mkdir(f"{root}/part")
            write(f"{root}/part/file", "kept")

        async def look(request: Any) -> None:
            file = f"{here.paths.real(request.staging_target_path)}/part/file"
            found.append(read(file) if path_exists(file) else "lost")

        here.disks.after["stage"], here.disks.hooks["unstage"] = fill, look
        await started(here)
        await here.volume()
        await here.pod(
            volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            mounts=[{"name": "data", "mountPath": "/x", "subPath": "part"}],
            container=PROCESS,
        )
        await here.wait_until_ready()
        await here.delete(grace=0)
        await here.wait_for_phase("gone")
        await until_clean(here)
        assert found == ["kept"]


async def test_a_node_that_is_stopped_before_it_began_takes_down_the_root_of_an_earlier_life() -> None:
    async with node_env() as here:
        os.makedirs(here.paths.root, exist_ok=True)
        await here.host.make_shared(here.paths.root)
        client = here.api.separate_client("kubelet")
        settings = NodeOptions(hostname_override=NODE, root_dir=here.paths.root)
        await Kubelet(settings, client, here.host, here.images).stop(drain=True)
        await client.close()
        assert not await here.host.is_mount(here.paths.root)


async def test_a_root_that_is_a_disk_of_the_machines_own_stays_mounted() -> None:
    async with node_env() as here:
        os.makedirs(here.paths.root, exist_ok=True)
        await here.host.mount("none", here.paths.root, "tmpfs")
        await here.start()
        await here.stop()
        assert await here.host.is_mount(here.paths.root)
