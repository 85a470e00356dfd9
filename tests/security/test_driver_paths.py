"""Drivers mount, measure and remove nothing outside of the kubelet's directory, whatever a request names."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from google.protobuf.message import Message
from msgspec import Struct

from volplane.csi import v1
from volplane.csi.outcome import CallError, Code
from volplane.drivers import ebs, efs
from volplane.drivers.efs.driver import EfsAllInOneDriver, EfsController
from volplane.drivers.efs.driver import EfsNode as EfsNode
from volplane.host import Host, NodePaths, files, mounts
from volplane.sdk import Driver, Local
from volplane.sdk.mounting import publish_open_directory

pytestmark = [pytest.mark.root]

MOUNT = v1.VolumeCapability(
    mount=v1.VolumeCapability.MountVolume(),
    access_mode=v1.VolumeCapability.AccessMode(mode=v1.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER),
)
ONE_NODE = v1.VolumeCapability(
    mount=v1.VolumeCapability.MountVolume(fs_type="ext4"),
    access_mode=v1.VolumeCapability.AccessMode(mode=v1.VolumeCapability.AccessMode.SINGLE_NODE_WRITER),
)

# As the wire has them, and as the machine does: {root} is the node's directory, {out} another one. None would
# do harm if a driver did not refuse it.
OUTSIDE = {
    "another directory": "{out}/victim",
    "a directory of the kernel": "/proc/volplane-victim",
    "another of the kernel": "/sys/volplane-victim",
    "the kubelet's directory itself": "/var/lib/kubelet",
    "the node's directory itself": "{root}",
    "a directory with the same beginning": "{root}-other/pods/x",
    "up from the wire": "/var/lib/kubelet/../../../{out}/victim",
    "up from the node": "{root}/pods/../../out/victim",
    "a dot": "/var/lib/kubelet/./pods/x",
    "an empty part": "/var/lib/kubelet//pods/x",
    "a link on the way": "/var/lib/kubelet/pods/link/victim",
    "a link to itself": "/var/lib/kubelet/pods/straight",
    "a link inside that leads to one outside": "/var/lib/kubelet/pods/near/link/victim",
    "the devices of the node": "/dev/victim",
    "the logs of the node": "/var/log/pods/victim",
}


AT_FDCWD, RENAME_EXCHANGE = -100, 2
ROUNDS = 100  # of a race: a tenth of them were lost while paths were checked first and used by name


class Machine(Struct, frozen=True):
    host: Host
    ebs: Local
    efs: Local
    volume: str
    root: Path
    out: Path

    def path(self, name: str) -> str:
        return OUTSIDE[name].format(root=self.root, out=self.out)

    def requests(self, path: str) -> Iterator[tuple[Local, str, Message]]:
        disk, good = "vol-1", f"{self.root}/plugins/good"
        yield (
            self.ebs,
            "NodeStageVolume",
            v1.NodeStageVolumeRequest(
                volume_id=disk, staging_target_path=path, volume_capability=ONE_NODE, publish_context=DEVICE
            ),
        )
        unstage = v1.NodeUnstageVolumeRequest(volume_id=disk, staging_target_path=path)
        yield self.ebs, "NodeUnstageVolume", unstage
        for staging, target in ((good, path), (path, good)):
            request = v1.NodePublishVolumeRequest(
                volume_id=disk,
                staging_target_path=staging,
                target_path=target,
                volume_capability=ONE_NODE,
                publish_context=DEVICE,
            )
            yield self.ebs, "NodePublishVolume", request
        publish = v1.NodePublishVolumeRequest(
            volume_id=self.volume, target_path=path, volume_capability=MOUNT
        )
        yield self.efs, "NodePublishVolume", publish
        for driver, volume in ((self.ebs, disk), (self.efs, self.volume)):
            unpublish = v1.NodeUnpublishVolumeRequest(volume_id=volume, target_path=path)
            yield driver, "NodeUnpublishVolume", unpublish
            yield (
                driver,
                "NodeGetVolumeStats",
                v1.NodeGetVolumeStatsRequest(volume_id=volume, volume_path=path),
            )
        yield self.ebs, "NodeExpandVolume", v1.NodeExpandVolumeRequest(volume_id=disk, volume_path=path)


DEVICE = {"devicePath": "/dev/xvdba"}


@asynccontextmanager
async def machine(directory: Path) -> AsyncIterator[Machine]:
    root, out = directory / "node", directory / "out"
    (root / "pods/near").mkdir(parents=True)
    (out / "victim").mkdir(parents=True)
    (root / "pods/link").symlink_to(out)
    (root / "pods/near/link").symlink_to("../link")
    (root / "pods/straight").symlink_to(out / "victim")
    host, shares, paths = Host(), efs.AccessPointStore(str(directory / "efs")), NodePaths(str(root))
    controller = EfsController(shares, host)
    await controller.start()
    made = v1.CreateVolumeRequest(name="one", volume_capabilities=[MOUNT])
    volume = (await Local(controller).call("CreateVolume", made)).volume.volume_id
    node = Local(ebs.EbsNode(ebs.EbsNodeConfig("i-1", "us-east-1a"), host, paths))
    try:
        yield Machine(host, node, Local(EfsNode(shares, "n", host, paths)), volume, root, out)
    finally:
        for entry in mounts.read_table().under(str(directory)):
            mounts.unmount(entry.target, detach=True)
        await host.close()


@pytest.mark.parametrize("name", OUTSIDE)
async def test_a_path_outside_of_the_kubelets_directory_is_refused(tmp_path: Path, name: str) -> None:
    async with machine(tmp_path) as m:
        path = m.path(name)
        before = mounts.read_table().under(str(tmp_path))
        for driver, method, request in m.requests(path):
            with pytest.raises(CallError) as refused:
                await driver.call(method, request)
            assert refused.value.code is Code.INVALID_ARGUMENT, (method, refused.value)
            assert f'_path "{path}" ' in refused.value.message
        assert mounts.read_table().under(str(tmp_path)) == before
        assert (m.out / "victim").is_dir()


async def test_a_path_below_the_kubelets_directory_is_used(tmp_path: Path) -> None:
    async with machine(tmp_path) as m:
        for path in ("/var/lib/kubelet/pods/u/mount", f"{m.root}/pods/near/mount"):
            publish = v1.NodePublishVolumeRequest(
                volume_id=m.volume, target_path=path, volume_capability=MOUNT
            )
            await m.efs.call("NodePublishVolume", publish)
            stats = v1.NodeGetVolumeStatsRequest(volume_id=m.volume, volume_path=path)
            assert (await m.efs.call("NodeGetVolumeStats", stats)).usage
            unpublish = v1.NodeUnpublishVolumeRequest(volume_id=m.volume, target_path=path)
            await m.efs.call("NodeUnpublishVolume", unpublish)
        assert not (m.root / "pods/u/mount").exists()


@pytest.mark.parametrize("volume", ["../../out", "vol-1/../../../out/victim", "/etc"])
@pytest.mark.parametrize("device", ["", "/dev/xvdba"])
async def test_the_id_of_a_disk_is_no_path(tmp_path: Path, volume: str, device: str) -> None:
    async with machine(tmp_path) as m:
        request = v1.NodeStageVolumeRequest(
            volume_id=volume,
            staging_target_path="/var/lib/kubelet/plugins/x",
            volume_capability=ONE_NODE,
            publish_context={"devicePath": device} if device else {},
        )
        with pytest.raises(CallError, match="is not the id of a volume"):
            await m.ebs.call("NodeStageVolume", request)


@pytest.mark.parametrize("device", ["/etc/passwd", "/dev/../etc/passwd", "dev/sda", "/dev", "/devices/x"])
async def test_a_device_is_below_dev(tmp_path: Path, device: str) -> None:
    async with machine(tmp_path) as m:
        request = v1.NodeStageVolumeRequest(
            volume_id="vol-1",
            staging_target_path="/var/lib/kubelet/plugins/x",
            volume_capability=ONE_NODE,
            publish_context={"devicePath": device},
        )
        with pytest.raises(CallError, match="is not below /dev"):
            await m.ebs.call("NodeStageVolume", request)


@pytest.mark.parametrize(
    "handle", ["fs-00000001::../../out", "../../etc/passwd", "fs-00000001::fsap-0/../..", "fs-../::fsap-1"]
)
async def test_the_handle_of_a_share_is_no_path(tmp_path: Path, handle: str) -> None:
    async with machine(tmp_path) as m:
        request = v1.NodePublishVolumeRequest(
            volume_id=handle, target_path="/var/lib/kubelet/pods/u/mount", volume_capability=MOUNT
        )
        with pytest.raises(CallError) as refused:
            await m.efs.call("NodePublishVolume", request)
        assert refused.value.code is Code.NOT_FOUND


async def test_a_share_inside_a_directory_of_a_pod_is_not_made_through_its_link(tmp_path: Path) -> None:
    """A class whose base path is another volume's directory: what is in there is the pod's."""
    host, shares = Host(), efs.AccessPointStore(str(tmp_path / "efs"))
    controller = Local(EfsController(shares, host))
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    theirs = tmp_path / "efs/fs-00000001/theirs"
    theirs.mkdir(parents=True)
    (theirs / "sub").symlink_to(victim)
    owner = os.stat(victim).st_gid
    try:
        for pattern in ("sub", "sub/deeper"):
            parameters = {"basePath": "/theirs", "subPathPattern": pattern, "ensureUniqueDirectory": "false"}
            request = v1.CreateVolumeRequest(name=pattern, volume_capabilities=[MOUNT], parameters=parameters)
            with pytest.raises(CallError, match="through a symbolic link") as refused:
                await controller.call("CreateVolume", request)
            assert refused.value.code is Code.FAILED_PRECONDITION
        assert os.stat(victim).st_gid == owner
        assert not list(victim.iterdir())
    finally:
        await host.close()


class Nested(Struct, frozen=True):
    """A volume inside the directory `team/data`, which a pod that mounts the volume `team` can replace."""

    efs: Local
    team: Path
    victim: Path  # beside the driver's directory, as the machine's own are

    async def create(self, name: str) -> str:
        parameters = {"basePath": "/team/data", "subPathPattern": name, "ensureUniqueDirectory": "false"}
        request = v1.CreateVolumeRequest(name=name, volume_capabilities=[MOUNT], parameters=parameters)
        return str((await self.efs.call("CreateVolume", request)).volume.volume_id)

    def plant_link(self) -> None:
        (self.team / "data").rename(self.team / "kept")
        (self.team / "data").symlink_to(self.victim)

    def check_victim(self) -> None:
        assert os.listdir(self.victim) == ["etc"]
        assert os.listdir(self.victim / "etc") == ["passwd"]
        for directory in (self.victim, self.victim / "etc"):
            found = directory.stat()
            assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (0, 0, 0o755)


@asynccontextmanager
async def make_nested(directory: Path) -> AsyncIterator[Nested]:
    host, shares = Host(), efs.AccessPointStore(str(directory / "efs"))
    victim, team = directory / "victim", directory / "efs/fs-00000001/team"
    (victim / "etc").mkdir(parents=True)
    (victim / "etc/passwd").write_bytes(b"x" * 9000)
    for path in (victim, victim / "etc"):
        path.chmod(0o755)
        os.chown(path, 0, 0)
    (team / "data").mkdir(parents=True)
    driver = EfsAllInOneDriver(shares, "n", host, NodePaths(str(directory / "node")))
    await driver.start()
    try:
        yield Nested(Local(driver), team, victim)
    finally:
        for entry in mounts.read_table().under(str(directory)):
            mounts.unmount(entry.target, detach=True)
        await host.close()


async def test_to_delete_a_share_removes_nothing_that_a_planted_link_leads_to(tmp_path: Path) -> None:
    async with make_nested(tmp_path) as n:
        volume = await n.create("etc")
        n.plant_link()
        delete = v1.DeleteVolumeRequest(volume_id=volume)
        with pytest.raises(CallError, match="through a symbolic link") as refused:
            await n.efs.call("DeleteVolume", delete)
        assert refused.value.code is Code.FAILED_PRECONDITION
        n.check_victim()
        (n.team / "data").unlink()
        (n.team / "kept").rename(n.team / "data")
        await n.efs.call("DeleteVolume", delete)
        assert os.listdir(n.team / "data") == []


async def test_a_link_in_the_place_of_a_share_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    async with make_nested(tmp_path) as n:
        volume = await n.create("etc")
        (n.team / "data/etc").rmdir()
        (n.team / "data/etc").symlink_to(n.victim / "etc")
        await n.efs.call("DeleteVolume", v1.DeleteVolumeRequest(volume_id=volume))
        assert os.listdir(n.team / "data") == []
        assert os.listdir(tmp_path / "efs/.removed") == []
        n.check_victim()


async def test_a_share_behind_a_planted_link_is_not_measured_and_the_others_are(tmp_path: Path) -> None:
    async with make_nested(tmp_path) as n:
        volume = await n.create("etc")
        other = v1.CreateVolumeRequest(name="other", volume_capabilities=[MOUNT])
        await n.efs.call("CreateVolume", other)
        n.plant_link()
        listed = await n.efs.call("ListVolumes", v1.ListVolumesRequest())
        conditions = {e.volume.volume_id: e.status.volume_condition for e in listed.entries}
        seen = await n.efs.call("ControllerGetVolume", v1.ControllerGetVolumeRequest(volume_id=volume))
        for found in (conditions.pop(volume), seen.status.volume_condition):
            assert found.abnormal
            assert "through a symbolic link" in found.message
        assert [c.abnormal for c in conditions.values()] == [False]


async def test_a_directory_that_becomes_a_link_while_a_share_is_made_leads_nowhere(tmp_path: Path) -> None:
    """Whatever the moment: a pod swaps the directory and a link to another one as fast as it can."""
    async with make_nested(tmp_path) as n:
        data, link = os.fsencode(n.team / "data"), os.fsencode(n.team / "link")
        os.symlink(n.victim, link)
        exchange = ctypes.CDLL(None).renameat2
        over = threading.Event()

        def swap() -> None:
            while not over.is_set():
                exchange(AT_FDCWD, data, AT_FDCWD, link, RENAME_EXCHANGE)

        swapping = threading.Thread(target=swap)
        swapping.start()
        try:
            for number in range(ROUNDS):
                with suppress(CallError):
                    volume = await n.create(f"v{number}")
                    target = f"/var/lib/kubelet/pods/{number}/mount"
                    publish = v1.NodePublishVolumeRequest(
                        volume_id=volume, target_path=target, volume_capability=MOUNT
                    )
                    await n.efs.call("NodePublishVolume", publish)
                    assert os.listdir(tmp_path / f"node/pods/{number}/mount") == []
        finally:
            over.set()
            swapping.join()
        n.check_victim()


def test_an_open_directory_is_published_whatever_its_path_leads_to(tmp_path: Path) -> None:
    source, victim, target = tmp_path / "source", tmp_path / "victim", tmp_path / "target"
    source.mkdir()
    victim.mkdir()
    (source / "own").touch()
    with files.open_directory(str(tmp_path), "source") as directory:
        source.rename(tmp_path / "kept")
        source.symlink_to(victim)
        try:
            for _ in range(2):
                publish_open_directory(directory, str(target), readonly=False, exclusive=False)
                assert os.listdir(target) == ["own"]
        finally:
            mounts.unmount(str(target), detach=True)


class Bounded(Driver):
    name = "bounded.example.com"

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        return v1.NodePublishVolumeResponse()

    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        return v1.NodeUnpublishVolumeResponse()

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        return v1.NodeGetInfoResponse(node_id="n")


async def test_a_driver_made_with_the_sdk_can_ask_for_the_same(tmp_path: Path) -> None:
    driver = Bounded()
    driver.kubelet_root = str(tmp_path)
    for path, fits in ((f"{tmp_path}/pods/x", True), (f"{tmp_path}/../x", False), ("/etc", False)):
        request = v1.NodePublishVolumeRequest(volume_id="v", target_path=path, volume_capability=MOUNT)
        if fits:
            await Local(driver).call("NodePublishVolume", request)
            continue
        with pytest.raises(CallError) as refused:
            await Local(driver).call("NodePublishVolume", request)
        assert refused.value.code is Code.INVALID_ARGUMENT
