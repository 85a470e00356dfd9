"""local volumes on a real node: directories, disks with a file system, raw devices, and their expansion."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import NODE, NodeEnv, node_env, path_exists, read
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.host import devices, mounts
from volplane.volumes import local
from volplane.volumes.base import NodeContext, PodVolumeSpec
from volplane.volumes.ownership import apply_fs_group

pytestmark = pytest.mark.root

PLUGIN = "kubernetes.io/local-volume"
MIB = 1 << 20


class LoopDisk:
    """A sparse file behind a loop device."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()
        os.truncate(file, 320 * MIB)
        self.device = devices.loop_attach(str(file))

    def grow(self, size: int) -> None:
        os.truncate(self.file, size)
        devices.loop_resize(self.device)

    def close(self) -> None:
        devices.loop_detach(self.device, str(self.file))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    made = LoopDisk(tmp_path / "disk")
    yield made
    made.close()


async def local_volume(here: NodeEnv, path: str, *, host: str = NODE, **more: Any) -> None:
    """A claim `data` bound to a local volume of the node."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}
    source = {"path": path, **more.pop("local", {})}
    affinity = {"required": {"nodeSelectorTerms": [term]}}
    await here.volume(attached=False, csi=None, local=source, nodeAffinity=affinity, **more)


def volume_path(here: NodeEnv, pod: Pod) -> str:
    return here.paths.real(here.paths.volume(pod.uid, PLUGIN, "pv-data"))


async def remove(here: NodeEnv, name: str = "app") -> None:
    await here.delete(name)
    await here.wait_for_phase("gone", name)


async def test_a_blank_disk_is_formatted_once_and_keeps_its_files(disk: LoopDisk) -> None:
    async with node_env() as here:
        await here.start()
        await local_volume(here, disk.device, local={"fsType": "ext3"})
        for turn in range(2):
            await here.pod(claim="data")
            path = volume_path(here, await here.wait_until_ready())
            entry = mounts.read_table().at(path)
            assert entry is not None
            assert (entry.fstype, entry.source) == ("ext3", disk.device)
            if turn == 0:
                await here.host.call(Path(f"{path}/file").write_text, "kept")
            assert read(f"{path}/file") == "kept"
            await remove(here)
            await until(lambda: _is_free(disk.device))


async def _is_free(device: str) -> bool:
    return not mounts.read_table().references(device)


async def test_a_disk_is_still_mounted_after_a_restart_and_unmounted_with_its_pod(disk: LoopDisk) -> None:
    async with node_env() as here:
        await here.start()
        await local_volume(here, disk.device)
        await here.pod(claim="data")
        await here.wait_until_ready()
        await here.stop(drain=False)
        await here.start()
        await here.wait_until_ready()
        assert len(mounts.read_table().references(disk.device)) == 2
        await remove(here)
        await until(lambda: _is_free(disk.device))


async def set_claimed_size(here: NodeEnv) -> None:
    status = {"capacity": {"storage": "1Gi"}}
    await here.client.patch(
        PersistentVolumeClaim, "data", "default", merge={"status": status}, subresource="status"
    )


async def has_grown(here: NodeEnv) -> bool:
    claim = await here.client.get(PersistentVolumeClaim, "data", "default")
    return claim.status.capacity.get("storage") == "2Gi"


async def test_an_unmounted_ext_file_system_grows_before_it_is_mounted(disk: LoopDisk) -> None:
    async with node_env() as here:
        await here.start()
        await local_volume(here, disk.device)
        await set_claimed_size(here)
        await here.pod(claim="data")
        before = os.statvfs(volume_path(here, await here.wait_until_ready())).f_blocks
        await remove(here)
        await until(lambda: _is_free(disk.device))
        disk.grow(1024 * MIB)
        await here.client.patch(PersistentVolume, "pv-data", merge={"spec": {"capacity": {"storage": "2Gi"}}})
        await here.pod(claim="data")
        path = volume_path(here, await here.wait_until_ready())
        assert os.statvfs(path).f_blocks > 2 * before
        assert await has_grown(here)


async def test_a_file_system_grows_with_its_volume(disk: LoopDisk) -> None:
    async with node_env() as here:
        await here.start(claim_read_frequency=0.1)
        await local_volume(here, disk.device, local={"fsType": "xfs"})
        await set_claimed_size(here)
        await here.pod(claim="data")
        path = volume_path(here, await here.wait_until_ready())
        before = os.statvfs(path).f_blocks
        disk.grow(1024 * MIB)
        await here.client.patch(PersistentVolume, "pv-data", merge={"spec": {"capacity": {"storage": "2Gi"}}})

        await until(lambda: has_grown(here))
        assert os.statvfs(path).f_blocks > 2 * before


async def test_a_raw_device_is_passed_to_the_pod_and_held(disk: LoopDisk) -> None:
    async with node_env() as here:
        await here.start()
        await local_volume(here, disk.device, volumeMode="Block")
        await here.pod(claim="data", device="/dev/data")
        pod = await here.wait_until_ready()
        assert here.role is not None
        link = here.role.volumes.mounted_volumes(pod.uid)["data"].path
        shown = here.paths.wire(link)
        assert shown == f"/var/lib/kubelet/pods/{pod.uid}/volumeDevices/kubernetes.io~local-volume/pv-data"
        assert os.stat(link).st_rdev == os.stat(disk.device).st_rdev
        held = here.paths.real(f"{here.paths.local_block_maps}/pv-data/{pod.uid}")
        assert held in devices.loops().values()
        await here.stop(drain=False)
        await here.start()
        await here.wait_until_ready()
        await remove(here)
        await until(lambda: _is_released(held))
        assert not path_exists(link)
        assert stat.S_ISBLK(os.stat(disk.device).st_mode)


async def _is_released(held: str) -> bool:
    return not path_exists(held) and held not in devices.loops().values()


async def test_a_read_only_raw_device_refuses_writes(disk: LoopDisk) -> None:
    async with node_env() as here:
        await here.start()
        await local_volume(here, disk.device, volumeMode="Block")
        await here.pod(claim="data", device="/dev/data", readonly=True)
        pod = await here.wait_until_ready()
        assert here.role is not None
        link = here.role.volumes.mounted_volumes(pod.uid)["data"].path
        with pytest.raises(PermissionError):
            await here.host.call(_write_sector, link)
        await remove(here)


def _write_sector(device: str, data: bytes = bytes(512)) -> None:
    with open(device, "r+b", buffering=0) as opened:
        opened.write(data)


@pytest.mark.parametrize(
    ("name", "mode", "why"),
    [
        (
            "missing",
            "Filesystem",
            'MountVolume.MountDevice failed for volume "pv-data" : path "{}" does not exist',
        ),
        ("file", "Filesystem", "only directory and block device are supported"),
        ("missing", "Block", 'MapVolume.SetUpDevice failed for volume "pv-data" : path "{}" does not exist'),
        ("file", "Block", 'path "{}" is not a block device'),
    ],
)
async def test_a_path_that_cannot_be_a_volume_is_named(
    tmp_path: Path, name: str, mode: str, why: str
) -> None:
    (tmp_path / "file").touch()
    async with node_env() as here:
        await here.start()
        await local_volume(here, f"{tmp_path}/{name}", volumeMode=mode)
        await here.pod(claim="data", device="/dev/data" if mode == "Block" else "")
        await here.wait_for_event(why.format(f"{tmp_path}/{name}"))


async def test_data_of_an_unknown_type_is_not_formatted(disk: LoopDisk) -> None:
    async with node_env() as here:
        await here.host.call(_write_sector, disk.device, b"precious" * 64)
        await here.start()
        await local_volume(here, disk.device)
        await here.pod(claim="data")
        mount = "/var/lib/kubelet/plugins/kubernetes.io/local-volume/mounts/pv-data"
        await here.wait_for_event(
            f"local: failed to mount device {disk.device} at {mount} (fstype: ext4), error"
        )
        assert (await here.host.call(Path(disk.device).read_bytes))[:8] == b"precious"


async def test_a_volume_of_another_node_is_refused(tmp_path: Path) -> None:
    async with node_env() as here:
        await here.start()
        await local_volume(here, str(tmp_path), host="worker-2")
        await here.pod(claim="data")
        await here.wait_for_event(
            'MountVolume.NodeAffinity check failed for volume "pv-data" : no matching NodeSelectorTerms'
        )


async def test_only_the_first_pod_changes_the_group(tmp_path: Path) -> None:
    async with node_env() as here:
        await here.start()
        await here.host.call(tmp_path.chmod, 0o755)
        await local_volume(here, str(tmp_path))
        await here.pod("first", claim="data", securityContext={"fsGroup": 4321})
        await here.wait_until_ready("first")
        info = os.stat(tmp_path)
        assert (info.st_gid, stat.S_IMODE(info.st_mode)) == (4321, 0o2775)
        await here.pod("second", claim="data", securityContext={"fsGroup": 1234})
        await here.wait_until_ready("second")
        await here.wait_for_event(
            "The requested fsGroup is 1234, but the volume pv-data has GID 4321. "
            "The volume may not be shareable."
        )
        assert os.stat(tmp_path).st_gid == 4321
        for name in ("first", "second"):
            await remove(here, name)


async def test_a_group_that_could_not_be_set_is_set_at_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    async def fail_once(context: NodeContext, spec: PodVolumeSpec, path: str) -> None:
        attempts.append(path)
        if len(attempts) == 1:
            raise OSError(errno.EIO, "Input/output error")
        await apply_fs_group(context, spec, path)

    monkeypatch.setattr(local, "apply_fs_group", fail_once)
    async with node_env() as here:
        await here.start()
        await local_volume(here, str(tmp_path))
        await here.pod(claim="data", securityContext={"fsGroup": 4321})
        await here.wait_until_ready()
        assert os.stat(tmp_path).st_gid == 4321
        assert len(attempts) == 2
        await remove(here)


async def test_a_read_only_pod_changes_nothing(tmp_path: Path) -> None:
    async with node_env() as here:
        await here.start()
        await local_volume(here, str(tmp_path))
        group = os.stat(tmp_path).st_gid
        await here.pod(claim="data", readonly=True, securityContext={"fsGroup": 4321})
        path = volume_path(here, await here.wait_until_ready())
        assert os.stat(tmp_path).st_gid == group
        with pytest.raises(OSError, match="Read-only"):
            await here.host.call(Path(f"{path}/file").touch)
        await remove(here)
