"""nfs and iscsi volumes of pods with a real NFS server and a real iSCSI target, in a virtual machine."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import NodeEnv, node_env, path_exists, read, write
from tests.support import storage_servers
from tests.support.storage_servers import ADDRESS, EXPORT, PORTAL
from volplane.api.codec import convert
from volplane.api.core import Pod, Secret
from volplane.host import mounts

pytestmark = [pytest.mark.root, pytest.mark.vm]

OPEN, CLOSED = "iqn.2026-01.com.example:open", "iqn.2026-01.com.example:closed"
USER, PASSWORD = "worker", "correct-password"  # twelve characters at least
MOUNT = {"name": "data", "mountPath": "/data"}


@pytest.fixture(scope="module", autouse=True)
def _servers() -> None:
    storage_servers.start_nfs("shared")
    storage_servers.start_iscsi()


@pytest.fixture(scope="module")
def _targets() -> Iterator[None]:
    # Not below the tests' directory: the target has its disks open until the VM ends.
    disks = [Path(f"/run/disk-{number}") for number in range(2)]
    for disk in disks:
        with disk.open("wb") as file:
            file.truncate(64 << 20)
    storage_servers.add_target(1, OPEN, disks[0])
    storage_servers.add_target(2, CLOSED, disks[1], account=(USER, PASSWORD))
    yield
    assert not storage_servers.list_sessions()


@asynccontextmanager
async def node() -> AsyncIterator[NodeEnv]:
    async with node_env() as here:
        here.timeout = 300.0
        await here.start()
        yield here


async def restart(here: NodeEnv) -> None:
    """As a kubelet that was killed: mounts and containers stay, and the new one finds them."""
    await here.stop(drain=False)
    await here.start()


def path_of(here: NodeEnv, pod: Pod) -> str:
    assert here.role is not None
    return here.role.volumes.mounted_volumes(pod.uid)["data"].path


async def remove(here: NodeEnv, *pods: str) -> None:
    for name in pods:
        await here.delete(name)
    for name in pods:
        await here.wait_for_phase("gone", name)


async def test_pods_share_an_export_and_one_of_them_may_only_read() -> None:
    source = {"server": ADDRESS, "path": "/shared"}
    async with node() as here:
        await here.volume(
            attached=False,
            csi=None,
            nfs=source,
            accessModes=["ReadWriteMany"],
            mountOptions=["nfsvers=4.1", "noatime"],
        )
        await here.pod("writer", claim="data")
        volume = {"name": "data", "nfs": source | {"readOnly": True}}
        await here.pod("reader", volumes=[volume], mounts=[MOUNT])
        writer, reader = [path_of(here, await here.wait_until_ready(name)) for name in ("writer", "reader")]
        table = mounts.read_table()
        written, seen = table.at(writer), table.at(reader)
        assert written is not None
        assert seen is not None
        assert (written.fstype, written.source) == ("nfs4", f"{ADDRESS}:/shared")
        assert "noatime" in written.options
        assert not written.readonly
        assert seen.readonly
        write(f"{writer}/file", "over the network")
        assert read(EXPORT / "shared" / "file") == "over the network"
        assert read(f"{reader}/file") == "over the network"
        with pytest.raises(OSError, match="Read-only file system"):
            write(f"{reader}/file", "")
        await restart(here)
        assert read(f"{reader}/file") == "over the network"
        await remove(here, "writer", "reader")
        assert not here.list_mounts()
        assert not path_exists(writer)
        assert read(EXPORT / "shared" / "file") == "over the network"


async def test_a_pod_whose_export_does_not_exist_gets_the_servers_reason() -> None:
    async with node() as here:
        volume = {"name": "data", "nfs": {"server": ADDRESS, "path": "/missing"}}
        await here.pod(volumes=[volume], mounts=[MOUNT])
        text = await here.wait_for_event("MountVolume.SetUp failed")
        assert f"cannot mount {ADDRESS}:/missing: " in text
        assert "No such file or directory" in text
        (EXPORT / "missing").mkdir()  # the kubelet tries again
        await here.wait_until_ready()
        await remove(here, "app")


@pytest.mark.usefixtures("_targets")
async def test_a_disk_is_formatted_once_and_has_its_data_in_the_next_pod() -> None:
    source = {"targetPortal": ADDRESS, "iqn": OPEN, "lun": 1, "fsType": "ext4"}
    async with node() as here:
        await here.volume(attached=False, csi=None, iscsi=source, mountOptions=["noatime"])
        await here.pod("first", claim="data")
        path = path_of(here, await here.wait_until_ready("first"))
        entry = mounts.read_table().at(path)
        assert entry is not None
        assert entry.fstype == "ext4"
        assert "noatime" in entry.options
        assert entry.source == device_of(link_of(OPEN))
        (session,) = storage_servers.list_sessions()
        assert f"{PORTAL},1 {OPEN}" in session
        write(f"{path}/file", "kept")
        await restart(here)
        assert read(f"{path}/file") == "kept"
        await remove(here, "first")
        await until_logged_out(here, OPEN)
        await here.pod("second", claim="data")
        path = path_of(here, await here.wait_until_ready("second"))
        assert read(f"{path}/file") == "kept"
        await remove(here, "second")
        await until_logged_out(here, OPEN)


@pytest.mark.usefixtures("_targets")
async def test_a_pod_gets_the_device_of_a_block_volume() -> None:
    source = {"targetPortal": ADDRESS, "iqn": OPEN, "lun": 1}
    async with node() as here:
        await here.volume(attached=False, csi=None, iscsi=source, volumeMode="Block")
        await here.pod(claim="data", device="/dev/disk")
        await here.wait_until_ready()
        pod = await here.client.get(Pod, "app", "default")
        link = here.paths.real(here.paths.volume_device(pod.uid, "kubernetes.io/iscsi", "pv-data"))
        assert device_of(link) == device_of(link_of(OPEN))
        await remove(here, "app")
        await until_logged_out(here, OPEN)


@pytest.mark.usefixtures("_targets")
async def test_a_target_that_asks_for_chap_refuses_a_wrong_password() -> None:
    source = {"targetPortal": ADDRESS, "iqn": CLOSED, "lun": 1, "chapAuthSession": True}
    volume = {"name": "data", "iscsi": source | {"secretRef": {"name": "chap"}}}
    async with node() as here:
        await here.client.create(convert(Secret, chap_secret("mistaken-password")))
        await here.pod(volumes=[volume], mounts=[MOUNT])
        text = await here.wait_for_event("MountVolume.MountDevice failed")
        assert f"cannot attach {PORTAL}:{CLOSED}:1: portal {PORTAL}: " in text
        assert "authorization failure" in text
        assert "mistaken-password" not in text
        assert not storage_servers.list_sessions()
        data = chap_secret(PASSWORD)["data"]
        await here.client.patch(Secret, "chap", "default", merge={"data": data})
        path = path_of(here, await here.wait_until_ready())
        write(f"{path}/file", "kept")
        await remove(here, "app")
        await until_logged_out(here, CLOSED)


def link_of(iqn: str) -> str:
    return f"/dev/disk/by-path/ip-{PORTAL}-iscsi-{iqn}-lun-1"


def device_of(link: str) -> str:
    return os.path.realpath(link)


def chap_secret(password: str) -> dict[str, Any]:
    values = {"node.session.auth.username": USER, "node.session.auth.password": password}
    return {
        "metadata": {"name": "chap", "namespace": "default"},
        "type": "kubernetes.io/iscsi-chap",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()},
    }


async def until_logged_out(here: NodeEnv, iqn: str) -> None:
    """The record of the target is gone, too: discovery has made records of all targets."""

    async def logged_out() -> bool:
        return not storage_servers.list_sessions() and iqn not in storage_servers.list_records()

    await until(logged_out, here.timeout)
    assert not here.list_mounts()
