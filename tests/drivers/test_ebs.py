"""The EBS driver over real sockets, against the real disk service, with real file systems."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.support.ebs import BLOCK, EXT4, GIB, MODE, ebs_environment, expect_error
from tests.support.vm_tests import CAP_SYS_RESOURCE
from volplane.csi import convert, v1
from volplane.csi.outcome import Code
from volplane.drivers.ebs import AwsAccount, EbsController, connect_ec2
from volplane.drivers.ebs.disk_attacher import poll_while
from volplane.drivers.ebs.ec2 import Ec2, Ec2Unreachable
from volplane.host import Host, devices
from volplane.sdk import Local
from volplane.sdk.errors import Aborted
from volplane.web.sigv4 import AwsKeys

pytestmark = pytest.mark.root


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
async def test_data_moves_with_the_disk_from_node_to_node(tmp_path: Path, kind: str) -> None:
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mkfs.{kind} is not installed")
    capability = convert.capability(MODE.SINGLE_NODE_WRITER, fs_type=kind, mount_flags=["noatime"])
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        for node in ("i-1", "i-2"):
            context = await w.publish(volume, node, capability)
            assert context == {"devicePath": "/dev/xvdba"}
            await w.stage(volume, node, context, capability)
            target = await w.mount(volume, node, "a", capability)
            entry = (await w.host.mounts()).at(target)
            assert entry is not None
            assert (entry.fstype, "noatime" in entry.options) == (kind, True)
            note = os.path.join(target, "note")
            if node == "i-1":
                await w.host.atomic_write(note, b"hello")
            else:
                assert await w.host.call(Path(note).read_bytes) == b"hello"
            await w.unmount(volume, node, "a")
            await w.unstage(volume, node)
            await w.unpublish(volume, node)
        await w.delete(volume)


async def test_everything_may_run_twice(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        assert await w.create() == volume
        context = await w.publish(volume, "i-1")
        assert await w.publish(volume, "i-1") == context
        for _ in range(2):
            await w.stage(volume, "i-1", context)
        for _ in range(2):
            target = await w.mount(volume, "i-1", "a")
        table = await w.host.mounts()
        assert len([e for e in table if e.target == target]) == 1
        for _ in range(2):
            await w.unmount(volume, "i-1", "a")
        for _ in range(2):
            await w.unstage(volume, "i-1")
        for _ in range(2):
            await w.unpublish(volume, "i-1")
        for _ in range(2):
            await w.delete(volume)
        await w.unpublish(volume, "i-1")
        await w.delete("not-even-an-id")


async def test_two_attachers_at_once_attach_once(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        both = await asyncio.gather(w.publish(volume, "i-1"), w.publish(volume, "i-1"))
        assert list(both) == [{"devicePath": "/dev/xvdba"}] * 2
        text = await expect_error(Code.FAILED_PRECONDITION, w.publish(volume, "i-2"))
        assert "already attached to node i-1" in text
        await w.wipe(volume, "i-1")


async def test_a_name_that_is_taken_is_found_out(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        one, two = await w.create("one"), await w.create("two")
        assert await w.publish(one, "i-1") == {"devicePath": "/dev/xvdba"}
        # A driver that has just started believes that every name is free.
        ec2 = await connect_ec2(w.account, w.host)
        fresh = structs.replace(w, controller=Local(EbsController(ec2)))
        assert await fresh.publish(two, "i-1") == {"devicePath": "/dev/xvdbb"}
        await ec2.close()
        await w.wipe(one, "i-1")
        await w.wipe(two, "i-1")


async def test_a_volume_with_that_name_but_other_arguments(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume = await w.create(gib=2)
        assert await w.create(gib=1) == volume  # large enough, so it is what is asked for
        await expect_error(Code.ALREADY_EXISTS, w.create(gib=3))
        await expect_error(Code.ALREADY_EXISTS, w.create(gib=2, parameters={"type": "gp2"}))
        await w.delete(volume)


async def test_what_cannot_be_made(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        many = convert.capability(MODE.MULTI_NODE_MULTI_WRITER)
        request = v1.CreateVolumeRequest(name="x", volume_capabilities=[many])
        await expect_error(Code.INVALID_ARGUMENT, w.controller.call("CreateVolume", request))
        await expect_error(Code.INVALID_ARGUMENT, w.create(parameters={"type": "floppy"}))
        await expect_error(Code.OUT_OF_RANGE, w.create(gib=1 << 20))
        mars = v1.TopologyRequirement(
            requisite=[convert.topology({"topology.kubernetes.io/zone": "mars-1a"})]
        )
        await expect_error(Code.INVALID_ARGUMENT, w.create(accessibility_requirements=mars))
        await expect_error(Code.RESOURCE_EXHAUSTED, w.create(gib=60_000))


async def test_what_cannot_be_attached(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        await expect_error(Code.NOT_FOUND, w.publish("vol-00000000", "i-1"))
        await expect_error(Code.NOT_FOUND, w.publish("nonsense", "i-1"))
        volume = await w.create()
        await expect_error(Code.NOT_FOUND, w.publish(volume, "i-9"))
        await expect_error(Code.NOT_FOUND, w.publish(volume, "a node/that cannot be"))
        await w.delete(volume)


async def test_a_disk_in_use_is_neither_detached_nor_deleted(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        await w.stage(volume, "i-1", await w.publish(volume, "i-1"))
        assert "is mounted at" in await expect_error(Code.FAILED_PRECONDITION, w.unpublish(volume, "i-1"))
        await expect_error(Code.FAILED_PRECONDITION, w.delete(volume))
        await w.wipe(volume, "i-1")


async def test_topology_listing_and_capacity(tmp_path: Path) -> None:
    zone = {"topology.kubernetes.io/zone": "us-east-1a"}
    async with ebs_environment(tmp_path) as w:
        info = await w.nodes["i-1"].call("NodeGetInfo", v1.NodeGetInfoRequest())
        assert (info.node_id, info.max_volumes_per_node) == ("i-1", 28)
        assert dict(info.accessible_topology.segments) == zone | {
            "topology.ebs.csi.aws.com/zone": "us-east-1a"
        }
        volumes = sorted([await w.create(f"pvc-{n}") for n in range(3)])
        await w.publish(volumes[1], "i-2")
        first = await w.controller.call("ListVolumes", v1.ListVolumesRequest(max_entries=2))
        assert [e.volume.volume_id for e in first.entries] == volumes[:2]
        assert dict(first.entries[0].volume.accessible_topology[0].segments) == zone
        assert list(first.entries[1].status.published_node_ids) == ["i-2"]
        rest = v1.ListVolumesRequest(starting_token=first.next_token)
        second = await w.controller.call("ListVolumes", rest)
        assert [e.volume.volume_id for e in second.entries] == volumes[2:]
        assert second.next_token == ""
        capacity = await w.controller.call("GetCapacity", v1.GetCapacityRequest())
        assert capacity.available_capacity > GIB
        got = await w.controller.call(
            "ControllerGetVolume", v1.ControllerGetVolumeRequest(volume_id=volumes[1])
        )
        assert list(got.status.published_node_ids) == ["i-2"]
        await w.unpublish(volumes[1], "")
        for volume in volumes:
            await w.delete(volume)


async def test_validating_capabilities(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        request = v1.ValidateVolumeCapabilitiesRequest(volume_id=volume, volume_capabilities=[EXT4, BLOCK])
        reply = await w.controller.call("ValidateVolumeCapabilities", request)
        assert len(reply.confirmed.volume_capabilities) == 2
        request.volume_capabilities.append(convert.capability(MODE.MULTI_NODE_MULTI_WRITER))
        reply = await w.controller.call("ValidateVolumeCapabilities", request)
        assert not reply.HasField("confirmed")
        assert "MULTI_NODE" in reply.message
        await w.delete(volume)
        await expect_error(Code.NOT_FOUND, w.controller.call("ValidateVolumeCapabilities", request))


async def test_pods_share_a_staged_volume_and_one_reads_only(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        await expect_error(Code.FAILED_PRECONDITION, w.mount(volume, "i-1", "a"))
        await w.stage(volume, "i-1", await w.publish(volume, "i-1"))
        writable = await w.mount(volume, "i-1", "a")
        readonly = await w.mount(volume, "i-1", "b", readonly=True)
        await w.host.atomic_write(os.path.join(writable, "note"), b"x")
        with pytest.raises(OSError, match="Read-only"):
            await w.host.atomic_write(os.path.join(readonly, "other"), b"x")
        await expect_error(Code.ALREADY_EXISTS, w.mount(volume, "i-1", "b"))
        await w.wipe(volume, "i-1")


async def test_one_pod_only(tmp_path: Path) -> None:
    alone = convert.capability(MODE.SINGLE_NODE_SINGLE_WRITER, fs_type="ext4")
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        await w.stage(volume, "i-1", await w.publish(volume, "i-1"), alone)
        await w.mount(volume, "i-1", "a", alone)
        await w.mount(volume, "i-1", "a", alone)
        await expect_error(Code.FAILED_PRECONDITION, w.mount(volume, "i-1", "b", alone))
        await w.wipe(volume, "i-1")


async def test_data_is_never_formatted_over(tmp_path: Path) -> None:
    xfs = convert.capability(MODE.SINGLE_NODE_WRITER, fs_type="xfs")
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        context = await w.publish(volume, "i-1")
        await w.stage(volume, "i-1", context)
        assert "ext4" in await expect_error(Code.ALREADY_EXISTS, w.stage(volume, "i-1", context, xfs))
        await w.unstage(volume, "i-1")
        assert "contains ext4" in await expect_error(
            Code.FAILED_PRECONDITION, w.stage(volume, "i-1", context, xfs)
        )
        device = os.path.realpath(w.paths["i-1"].real("/dev/xvdba"))  # noqa: ASYNC240
        descriptor = os.open(device, os.O_WRONLY)
        os.pwrite(descriptor, bytes(4096), 0)  # the superblock is gone, the data is not
        os.close(descriptor)
        await expect_error(Code.FAILED_PRECONDITION, w.stage(volume, "i-1", context))
        await w.wipe(volume, "i-1")


async def test_a_name_used_again_does_not_lead_to_another_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("volplane.drivers.ebs.node.DEVICE_TIMEOUT", 0.1)
    async with ebs_environment(tmp_path) as w:
        one, two = await w.create("one"), await w.create("two")
        context = await w.publish(one, "i-1")
        await w.unpublish(one, "i-1")
        assert await w.publish(two, "i-1") == context
        request = v1.NodeStageVolumeRequest(
            volume_id=one,
            staging_target_path="/var/lib/kubelet/s",
            publish_context=context,
            volume_capability=EXT4,
        )
        await expect_error(Code.FAILED_PRECONDITION, w.nodes["i-1"].call("NodeStageVolume", request))
        await w.wipe(two, "i-1")
        await w.delete(one)


async def test_a_device_that_was_taken_away_from_the_service_is_not_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("volplane.drivers.ebs.node.DEVICE_TIMEOUT", 0.1)
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        context = await w.publish(volume, "i-1")
        link = Path(w.paths["i-1"].real("/dev/xvdba"))
        stranger = tmp_path / "stranger.img"
        stranger.touch()
        os.truncate(stranger, 64 << 20)
        other = devices.loop_attach(str(stranger))
        try:
            for name in (link, *link.parent.glob("disk/by-id/*")):
                name.unlink()
                name.symlink_to(other)
            await expect_error(Code.FAILED_PRECONDITION, w.stage(volume, "i-1", context))
        finally:
            devices.loop_detach(other, str(stranger))
        assert await w.host.call(devices.serial, other) == ""
        await w.unpublish(volume, "i-1")
        await w.delete(volume)


async def test_a_disk_is_not_taken_away_between_finding_and_mounting_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        context = await w.publish(volume, "i-1")
        probe = w.host.probe

        async def detached_meanwhile(device: str) -> Any:
            assert "still in use" in await expect_error(Code.FAILED_PRECONDITION, w.unpublish(volume, "i-1"))
            return await probe(device)

        monkeypatch.setattr(w.host, "probe", detached_meanwhile)
        await w.stage(volume, "i-1", context)
        monkeypatch.undo()
        await w.wipe(volume, "i-1")


async def test_block_volumes(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        context = await w.publish(volume, "i-1", BLOCK)
        await w.stage(volume, "i-1", context, BLOCK)
        target = w.paths["i-1"].block_target("a", "pv")
        request = v1.NodePublishVolumeRequest(
            volume_id=volume,
            staging_target_path=w.paths["i-1"].block_staging("pv"),
            target_path=target,
            publish_context=context,
            volume_capability=BLOCK,
        )
        node, real = w.nodes["i-1"], w.paths["i-1"].real(target)
        for _ in range(2):
            await node.call("NodePublishVolume", request)
        assert await w.host.size_of(real) == GIB
        stats = v1.NodeGetVolumeStatsRequest(volume_id=volume, volume_path=target)
        assert [u.total for u in (await node.call("NodeGetVolumeStats", stats)).usage] == [GIB]
        await expect_error(Code.FAILED_PRECONDITION, w.unpublish(volume, "i-1"))
        for _ in range(2):
            undo = v1.NodeUnpublishVolumeRequest(volume_id=volume, target_path=target)
            await node.call("NodeUnpublishVolume", undo)
        assert os.listdir(os.path.dirname(real)) == []
        await w.wipe(volume, "i-1")


@pytest.mark.parametrize(
    "kind", [pytest.param("ext4", marks=pytest.mark.capability(CAP_SYS_RESOURCE, long=True)), "xfs"]
)
async def test_a_volume_grows_while_it_is_used(tmp_path: Path, kind: str) -> None:
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mkfs.{kind} is not installed")
    capability = convert.capability(MODE.SINGLE_NODE_WRITER, fs_type=kind)
    async with ebs_environment(tmp_path) as w:
        volume = await w.create()
        await w.stage(volume, "i-1", await w.publish(volume, "i-1"), capability)
        target = await w.mount(volume, "i-1", "a", capability)
        grow = v1.ControllerExpandVolumeRequest(
            volume_id=volume, capacity_range={"required_bytes": 3 * GIB - 5}, volume_capability=capability
        )
        for _ in range(2):
            reply = await w.controller.call("ControllerExpandVolume", grow)
            assert (reply.capacity_bytes, reply.node_expansion_required) == (3 * GIB, True)
        path = w.paths["i-1"].csi_target("a", "pv")
        request = v1.NodeExpandVolumeRequest(
            volume_id=volume, volume_path=path, capacity_range={"required_bytes": 3 * GIB}
        )
        for _ in range(2):
            assert (await w.nodes["i-1"].call("NodeExpandVolume", request)).capacity_bytes == 3 * GIB
        assert (await w.host.stats(target)).capacity > 2.5 * GIB
        stats = v1.NodeGetVolumeStatsRequest(volume_id=volume, volume_path=path)
        usage = (await w.nodes["i-1"].call("NodeGetVolumeStats", stats)).usage
        assert [u.unit for u in usage] == [v1.VolumeUsage.BYTES, v1.VolumeUsage.INODES]
        stats.volume_path = "/var/lib/kubelet/nowhere"
        await expect_error(Code.NOT_FOUND, w.nodes["i-1"].call("NodeGetVolumeStats", stats))
        await w.wipe(volume, "i-1")


async def test_a_cloud_that_does_not_answer_leaves_the_outcome_open(tmp_path: Path) -> None:
    host = Host()
    ec2 = await connect_ec2(AwsAccount("http://127.0.0.1:9", access_key="a", secret_key="b"), host)
    caller = Local(EbsController(ec2))
    request = v1.CreateVolumeRequest(name="x", volume_capabilities=[EXT4])
    await expect_error(Code.UNAVAILABLE, caller.call("CreateVolume", request))
    await ec2.close()
    await host.close()


async def test_a_cloud_that_is_silent_is_reported_with_the_call_and_the_time() -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    ec2 = Ec2(endpoint, region="r", keys=lambda: AwsKeys("a", "b"), timeout=0.1)
    with pytest.raises(Ec2Unreachable, match=f"^AttachVolume: {endpoint}/ did not answer within 0.1 s$"):
        await ec2.call("AttachVolume", {})
    await ec2.close()
    server.close()


@pytest.mark.virtual
async def test_a_state_that_does_not_end_is_uncertain_and_named() -> None:
    async def state() -> str:
        return "attaching"

    with pytest.raises(Aborted, match="EC2: vol-1 on i-1 is still attaching after 300 s"):
        await poll_while("vol-1 on i-1", state, "attaching")
