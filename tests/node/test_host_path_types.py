"""hostPath volumes of every type on a real node."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.node_env import NodeEnv, node_env, path_exists
from volplane.api.core import Pod
from volplane.host import devices
from volplane.node.network.interface import NetworkAttachment
from volplane.node.pods.container_spec import ContainerSpecBuilder

pytestmark = pytest.mark.root

FILES = {
    "Directory": "directory",
    "File": "file",
    "Socket": "socket",
    "CharDevice": "/dev/null",
    "BlockDevice": "block",
}


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Path]:
    """One file of every type."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(tmp_path / "socket"))
    disk = tmp_path / "disk"
    disk.touch()
    os.truncate(disk, 1 << 20)
    device = devices.loop_attach(str(disk))
    (tmp_path / "block").symlink_to(device)
    yield tmp_path
    devices.loop_detach(device, str(disk))


async def use(here: NodeEnv, path: str, kind: str | None, name: str = "app", **volume: Any) -> Pod:
    source = {"name": "v", "hostPath": {"path": path, **({"type": kind} if kind is not None else {})}}
    return await here.pod(name, volumes=[source], mounts=[{"name": "v", "mountPath": "/v", **volume}])


@pytest.mark.parametrize("kind", FILES)
async def test_each_type_takes_its_own_files_and_refuses_others(files: Path, kind: str) -> None:
    phrases = {
        "Directory": "a directory",
        "File": "a file",
        "Socket": "a socket file",
        "CharDevice": "a character device",
        "BlockDevice": "a block device",
    }
    other = "directory" if kind == "File" else "file"
    async with node_env() as here:
        await here.start()
        await use(here, str(files / FILES[kind]), kind)
        await here.wait_until_ready()
        for name, bad in (("other", other), ("missing", "missing")):
            await use(here, str(files / bad), kind, name)
            await here.wait_for_event(
                f'MountVolume.SetUp failed for volume "v" : hostPath type check failed: {files / bad} '
                f"is not {phrases[kind]}"
            )


@pytest.mark.parametrize(
    ("kind", "mode"), [("DirectoryOrCreate", stat.S_IFDIR | 0o755), ("FileOrCreate", stat.S_IFREG | 0o644)]
)
async def test_what_is_missing_is_created_and_stays(tmp_path: Path, kind: str, mode: int) -> None:
    path = tmp_path / "made"
    async with node_env() as here:
        await here.start()
        await use(here, str(path), kind)
        await here.wait_until_ready()
        assert os.stat(path).st_mode == mode
        await here.delete()
        await here.wait_for_phase("gone")
        assert path_exists(path)


@pytest.mark.parametrize(
    ("kind", "path", "why"),
    [
        ("DirectoryOrCreate", "file", "hostPath type check failed: {} is not a directory"),
        ("FileOrCreate", "directory", "hostPath type check failed: {} is not a file"),
        ("FileOrCreate", "no/parent", "cannot create {}: No such file or directory"),
        ("DirectoryOrCreate", "file/below", "cannot create {}: Not a directory"),
    ],
)
async def test_what_cannot_be_created_is_named(files: Path, kind: str, path: str, why: str) -> None:
    async with node_env() as here:
        await here.start()
        await use(here, str(files / path), kind)
        await here.wait_for_event(why.format(files / path))


async def test_an_error_shows_the_path_of_the_manifest() -> None:
    async with node_env() as here:
        await here.start()
        await use(here, "/var/lib/kubelet/plugins/missing/file", "FileOrCreate")
        message = await here.wait_for_event("cannot create /var/lib/kubelet/plugins/missing/file")
        assert here.directory not in message


async def test_the_nodes_devices_are_those_of_the_machine_and_its_own_disks() -> None:
    async with node_env() as here:
        await here.start()
        os.symlink("/dev/loop99", f"{here.paths.dev}/xvdba")
        pod = await use(here, "/dev/", "Directory")
        await here.wait_until_ready()
        assert here.role is not None
        volumes = here.role.volumes.mounted_volumes(pod.uid)
        assert os.listdir(here.paths.dev) == ["xvdba"]  # a built-in image needs no more
        builder = ContainerSpecBuilder(here.role.volumes.context, {})
        spec = await builder.build(
            pod, pod.spec.containers[0], volumes, NetworkAttachment(""), id="1", attempt=0, builtin=False
        )
        assert spec.mounts[0].source == here.paths.dev
        assert os.readlink(f"{here.paths.dev}/xvdba") == "/dev/loop99"
        assert os.stat(f"{here.paths.dev}/null").st_rdev == os.stat("/dev/null").st_rdev


async def test_a_persistent_volume_is_a_host_path_too(tmp_path: Path) -> None:
    async with node_env() as here:
        await here.start()
        await here.volume(attached=False, csi=None, hostPath={"path": str(tmp_path), "type": "Directory"})
        pod = await here.pod(claim="data")
        await here.wait_until_ready()
        assert here.role is not None
        assert here.role.volumes.mounted_volumes(pod.uid)["data"].path == str(tmp_path)


async def test_a_host_path_is_no_raw_device(tmp_path: Path) -> None:
    async with node_env() as here:
        await here.start()
        await here.volume(attached=False, csi=None, hostPath={"path": str(tmp_path)}, volumeMode="Block")
        await here.pod(claim="data", device="/dev/data")
        await here.wait_for_event('no volume plugin matched for volume "data"')


async def test_a_missing_path_without_a_type_becomes_a_directory_when_the_container_starts(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a" / "b"
    async with node_env() as here:
        await here.start()
        await use(here, str(path), None)
        await here.wait_until_ready()
        assert os.stat(path).st_mode == stat.S_IFDIR | 0o755


async def test_a_path_that_cannot_become_a_directory_is_named_as_in_the_manifest() -> None:
    why = 'failed to mkdir "/var/lib/kubelet/node.lock/x": Not a directory'
    async with node_env() as here:
        await here.start()
        await use(here, "/var/lib/kubelet/node.lock/x", None)
        await here.wait_for_event(f"Error: {why}")
        waiting = (await here.client.get(Pod, "app", "default")).status.container_statuses[0].state.waiting
        assert waiting is not None
        assert (waiting.reason, waiting.message) == ("CreateContainerError", why)
