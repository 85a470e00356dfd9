"""The driver of shared directories: many nodes at once, owners, sizes, crashes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, structs

from volplane.csi import convert, v1
from volplane.csi.client import CsiChannel
from volplane.csi.outcome import CallError, Code
from volplane.drivers.efs import AccessPointStore, EfsController, EfsNode
from volplane.drivers.efs.access_points import DEFAULT_FILE_SYSTEM, access_point_id
from volplane.drivers.efs.parameters import parse
from volplane.host import Host, NodePaths
from volplane.sdk import Local
from volplane.sdk.errors import InvalidArgument

pytestmark = pytest.mark.root

GIB = 1 << 30
MODE = v1.VolumeCapability.AccessMode
SHARED = convert.capability(MODE.MULTI_NODE_MULTI_WRITER)


class EfsTestEnv(Struct):
    host: Host
    root: Path
    controller: Local
    nodes: dict[str, Local]
    paths: dict[str, NodePaths]

    async def create(self, name: str = "pvc-1", size: int = GIB, **parameters: str) -> str:
        request = v1.CreateVolumeRequest(
            name=name,
            volume_capabilities=[SHARED],
            capacity_range={"required_bytes": size},
            parameters=parameters,
        )
        reply = await self.controller.call("CreateVolume", request)
        return str(reply.volume.volume_id)

    async def publish(
        self,
        volume: str,
        node: str,
        pod: str = "a",
        capability: v1.VolumeCapability = SHARED,
        *,
        readonly: bool = False,
    ) -> Path:
        target = self.paths[node].csi_target(pod, "pv")
        request = v1.NodePublishVolumeRequest(
            volume_id=volume, target_path=target, volume_capability=capability, readonly=readonly
        )
        await self.nodes[node].call("NodePublishVolume", request)
        return Path(self.paths[node].real(target))

    async def unpublish(self, volume: str, node: str, pod: str = "a") -> None:
        target = self.paths[node].csi_target(pod, "pv")
        request = v1.NodeUnpublishVolumeRequest(volume_id=volume, target_path=target)
        await self.nodes[node].call("NodeUnpublishVolume", request)

    async def delete(self, volume: str) -> None:
        await self.controller.call("DeleteVolume", v1.DeleteVolumeRequest(volume_id=volume))


@asynccontextmanager
async def efs_env(directory: Path) -> AsyncIterator[EfsTestEnv]:
    host, shares = Host(), AccessPointStore(str(directory / "efs"))
    controller = EfsController(shares, host)
    await controller.start()
    paths = {n: NodePaths(str(directory / n)) for n in ("n1", "n2")}
    nodes = {n: Local(EfsNode(shares, n, host, p)) for n, p in paths.items()}
    try:
        yield EfsTestEnv(host, directory / "efs", Local(controller), nodes, paths)
    finally:
        await host.close()


async def assert_refused(code: Code, call: object) -> str:
    with pytest.raises(CallError) as caught:
        await call  # type: ignore[misc]
    assert caught.value.code is code, caught.value
    return caught.value.message


async def test_two_nodes_write_into_one_volume(tmp_path: Path) -> None:
    async with efs_env(tmp_path) as w:
        volume = await w.create()
        assert re.fullmatch(r"fs-00000001::fsap-[0-9a-f]{17}", volume)
        assert await w.create() == volume
        one, two = await w.publish(volume, "n1"), await w.publish(volume, "n2")
        assert await w.publish(volume, "n1") == one
        (one / "from-1").write_bytes(b"1")
        (two / "from-2").write_bytes(b"2")
        assert sorted(os.listdir(one)) == sorted(os.listdir(two)) == ["from-1", "from-2"]
        reader = await w.publish(volume, "n2", "b", readonly=True)
        with pytest.raises(OSError, match="Read-only"):
            (reader / "x").write_bytes(b"")
        await assert_refused(Code.ALREADY_EXISTS, w.publish(volume, "n2", "b"))
        for node, pod in (("n1", "a"), ("n2", "a"), ("n2", "b"), ("n2", "b")):
            await w.unpublish(volume, node, pod)
        again = await w.publish(volume, "n2")
        assert (again / "from-1").read_bytes() == b"1"
        await w.unpublish(volume, "n2")
        for _ in range(2):
            await w.delete(volume)
        assert [p for p in w.root.rglob("*") if p.is_file()] == []
        await assert_refused(Code.NOT_FOUND, w.publish(volume, "n1"))


async def test_owners_and_directories(tmp_path: Path) -> None:
    async with efs_env(tmp_path) as w:
        own = await w.create("one", uid="1000", gid="2000", directoryPerms="750")
        point = AccessPointStore(str(w.root)).get(own.partition("::")[2])
        assert point is not None
        found = (w.root / point.file_system / point.path).stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (1000, 2000, 0o750)
        named: dict[str, Any] = {
            "subPathPattern": "${.PVC.namespace}/${.PVC.name}",
            "basePath": "/dynamic",
            "csi.storage.k8s.io/pvc/name": "data",
            "csi.storage.k8s.io/pvc/namespace": "default",
        }
        await w.create("two", **named)
        (made,) = (w.root / "fs-00000001" / "dynamic" / "default").iterdir()
        assert made.name.startswith("data-fsap-")
        ids = [await w.create(f"many-{n}", gidRangeStart="60000", gidRangeEnd="60002") for n in range(3)]
        assert len(set(ids)) == 3
        narrow: dict[str, Any] = {"gidRangeStart": "60000", "gidRangeEnd": "60002"}
        await assert_refused(Code.RESOURCE_EXHAUSTED, w.create("one-too-many", **narrow))
        await assert_refused(Code.ALREADY_EXISTS, w.create("one", directoryPerms="700"))
        await assert_refused(Code.ALREADY_EXISTS, w.create("two", 2 * GIB, **named))


@pytest.mark.parametrize(
    "parameters",
    [
        {"provisioningMode": "efs-dir"},
        {"fileSystemId": "../../etc"},
        {"directoryPerms": "rwx"},
        {"uid": "-1"},
        {"colour": "red"},
        {"gidRangeStart": "5", "gidRangeEnd": "4"},
    ],
    ids=str,
)
def test_parameters_that_are_refused(parameters: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        parse(parameters)


@pytest.mark.parametrize("pattern", ["../x", "a/../../b", ".points/x"])
def test_no_pattern_leads_out_of_the_file_system(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        structs.replace(parse({"subPathPattern": pattern}), unique=False).path("fsap-1", {})


async def test_capabilities(tmp_path: Path) -> None:
    async with efs_env(tmp_path) as w:
        block = convert.capability(MODE.SINGLE_NODE_WRITER, block=True)
        request = v1.CreateVolumeRequest(name="x", volume_capabilities=[block])
        await assert_refused(Code.INVALID_ARGUMENT, w.controller.call("CreateVolume", request))
        alone = convert.capability(MODE.SINGLE_NODE_SINGLE_WRITER)
        volume = await w.create()
        await w.publish(volume, "n1", "a", alone)
        await assert_refused(Code.FAILED_PRECONDITION, w.publish(volume, "n1", "b", alone))
        await w.unpublish(volume, "n1")
        flags = convert.capability(MODE.MULTI_NODE_MULTI_WRITER, mount_flags=["tls", "iam"])
        await w.publish(volume, "n1", "a", flags)
        await w.unpublish(volume, "n1")
        wrong = convert.capability(MODE.MULTI_NODE_MULTI_WRITER, mount_flags=["suid"])
        await assert_refused(Code.INVALID_ARGUMENT, w.publish(volume, "n1", "a", wrong))


async def test_a_volume_that_holds_too_much_is_reported(tmp_path: Path) -> None:
    async with efs_env(tmp_path) as w:
        volume = await w.create(size=1 << 20)
        target = await w.publish(volume, "n1")

        async def stats() -> v1.NodeGetVolumeStatsResponse:
            request = v1.NodeGetVolumeStatsRequest(
                volume_id=volume, volume_path=w.paths["n1"].csi_target("a", "pv")
            )
            reply: v1.NodeGetVolumeStatsResponse = await w.nodes["n1"].call("NodeGetVolumeStats", request)
            return reply

        (target / "half").write_bytes(b"x" * (512 << 10))
        os.link(target / "half", target / "same")
        reply = await stats()
        assert (reply.usage[0].total, reply.usage[0].used) == (1 << 20, 512 << 10)
        assert not reply.volume_condition.abnormal
        (target / "more").write_bytes(b"x" * (1 << 20))
        reply = await stats()
        assert reply.volume_condition.abnormal
        assert reply.usage[0].available == 0
        seen = v1.ControllerGetVolumeRequest(volume_id=volume)
        assert (await w.controller.call("ControllerGetVolume", seen)).status.volume_condition.abnormal
        grow = v1.ControllerExpandVolumeRequest(
            volume_id=volume, capacity_range={"required_bytes": 2 << 20}, volume_capability=SHARED
        )
        grown = await w.controller.call("ControllerExpandVolume", grow)
        assert (grown.capacity_bytes, grown.node_expansion_required) == (2 << 20, False)
        assert not (await stats()).volume_condition.abnormal
        await w.unpublish(volume, "n1")


async def test_more_than_the_machine_has_is_refused(tmp_path: Path) -> None:
    async with efs_env(tmp_path) as w:
        reply = await w.controller.call("GetCapacity", v1.GetCapacityRequest())
        left = reply.available_capacity
        assert left > 0
        await assert_refused(Code.OUT_OF_RANGE, w.create(size=2 * left))


async def test_names_at_once_get_groups_of_their_own(tmp_path: Path) -> None:
    async with efs_env(tmp_path) as w:
        made = await asyncio.gather(*(w.create(f"v{n}") for n in range(8)))
        points = [AccessPointStore(str(w.root)).get(v.partition("::")[2]) for v in made]
        assert len({p.gid for p in points if p}) == 8
        listed = await w.controller.call("ListVolumes", v1.ListVolumesRequest(max_entries=5))
        more = v1.ListVolumesRequest(starting_token=listed.next_token)
        rest = await w.controller.call("ListVolumes", more)
        ids = [e.volume.volume_id for reply in (listed, rest) for e in reply.entries]
        assert ids == sorted(made)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff"])
async def test_a_record_that_cannot_be_read_keeps_its_data_and_its_group(
    tmp_path: Path, content: bytes
) -> None:
    async with efs_env(tmp_path) as w:
        volume = await w.create("pvc-1")
        (record,) = (w.root / ".points").glob("*.json")
        (directory,) = (p for p in (w.root / DEFAULT_FILE_SYSTEM).iterdir())
        group = directory.stat().st_gid
        record.write_bytes(content)
        request = v1.DeleteVolumeRequest(volume_id=volume)
        assert str(record) in await assert_refused(Code.ABORTED, w.controller.call("DeleteVolume", request))
        assert directory.is_dir()
        await w.create("pvc-2")
        groups = [p.stat().st_gid for p in (w.root / DEFAULT_FILE_SYSTEM).iterdir()]
        assert len(groups) == 2
        assert groups.count(group) == 1


async def test_what_was_being_removed_is_removed_at_the_next_start(tmp_path: Path) -> None:
    async with efs_env(tmp_path) as w:
        volume = await w.create()
        point = AccessPointStore(str(w.root)).get(volume.partition("::")[2])
        assert point is not None
        data = w.root / point.file_system / point.path
        (data / "file").write_bytes(b"x")
        data.rename(w.root / ".removed" / point.id)  # killed here
    async with efs_env(tmp_path) as w:
        assert os.listdir(w.root / ".removed") == []
        await w.delete(volume)
        reply = await w.controller.call("ListVolumes", v1.ListVolumesRequest())
        assert not reply.entries


@asynccontextmanager
async def controller(directory: Path, failpoint: str = "") -> AsyncIterator[CsiChannel]:
    """The controller as a process; with a fail point it dies there."""
    socket = str(directory / "csi.sock")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "volplane", "driver", "controller", "--driver=efs"),
        *(f"--endpoint=unix://{socket}", f"--shared-dir={directory}/efs"),
        env={**os.environ, "VOLPLANE_FAILPOINT": failpoint},
    )
    async with CsiChannel(socket) as channel:
        try:
            await channel.ready(60)
            yield channel
        finally:
            if process.returncode is None:
                process.terminate()
            code = await process.wait()
            assert code == (-signal.SIGKILL if failpoint else 0)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["efs:CreateVolume:directory", "efs:DeleteVolume:aside"])
async def test_a_controller_that_was_killed_half_way(tmp_path: Path, point: str) -> None:
    create = v1.CreateVolumeRequest(name="pvc-1", volume_capabilities=[SHARED])
    handle = f"{DEFAULT_FILE_SYSTEM}::{access_point_id('pvc-1')}"
    delete = v1.DeleteVolumeRequest(volume_id=handle)
    async with controller(tmp_path, point) as channel:
        if "Delete" in point:
            await channel.call("CreateVolume", create)
            await assert_refused(Code.UNAVAILABLE, channel.call("DeleteVolume", delete))
        else:
            await assert_refused(Code.UNAVAILABLE, channel.call("CreateVolume", create))
    async with controller(tmp_path) as channel:
        if "Create" in point:
            made = await channel.call("CreateVolume", create)
            assert made.volume.volume_id == handle
            (directory,) = (tmp_path / "efs" / DEFAULT_FILE_SYSTEM).iterdir()
            assert directory.stat().st_uid >= 50_000
        await channel.call("DeleteVolume", delete)
        assert not (await channel.call("ListVolumes", v1.ListVolumesRequest())).entries
    assert list((tmp_path / "efs").rglob("fsap-*")) == []
