"""What classes ask of the EBS driver, carried out: formats, shared disks, fast restores, locks, tags."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.ebs import GIB, MODE, EbsEnvironment, ebs_environment, expect_error
from volplane.csi import convert, v1
from volplane.csi.outcome import Code
from volplane.drivers.ebs import connect_ec2

pytestmark = pytest.mark.root
SHARED = convert.capability(MODE.MULTI_NODE_MULTI_WRITER, block=True)


async def create(
    w: EbsEnvironment, capability: v1.VolumeCapability, gib: int = 1, **parameters: str
) -> v1.Volume:
    request = v1.CreateVolumeRequest(
        name="pvc-1",
        volume_capabilities=[capability],
        capacity_range={"required_bytes": gib * GIB},
        parameters=parameters,
    )
    made: v1.Volume = (await w.controller.call("CreateVolume", request)).volume
    return made


@pytest.mark.parametrize(("kind", "size"), [("ext4", "1024"), ("xfs", "1024")])
async def test_a_blank_disk_is_formatted_with_the_block_size_of_its_class(
    tmp_path: Path, kind: str, size: str
) -> None:
    capability = convert.capability(MODE.SINGLE_NODE_WRITER, fs_type=kind)
    async with ebs_environment(tmp_path) as w:
        made = await create(w, capability, blockSize=size)
        assert dict(made.volume_context) == {"blocksize": size}
        context = await w.publish(made.volume_id, "i-1", capability)
        staging = w.paths["i-1"].staging("ebs.csi.aws.com", made.volume_id)
        request = v1.NodeStageVolumeRequest(
            volume_id=made.volume_id,
            staging_target_path=staging,
            publish_context=context,
            volume_capability=capability,
            volume_context=made.volume_context,
        )
        await w.nodes["i-1"].call("NodeStageVolume", request)
        mounted = await w.host.call(os.statvfs, w.paths["i-1"].real(staging))
        await w.unstage(made.volume_id, "i-1")
        await w.unpublish(made.volume_id, "i-1")
        await w.delete(made.volume_id)
        assert mounted.f_bsize == int(size)


async def test_a_format_that_the_file_system_does_not_have_is_refused(tmp_path: Path) -> None:
    capability = convert.capability(MODE.SINGLE_NODE_WRITER, fs_type="xfs")
    async with ebs_environment(tmp_path) as w:
        await expect_error(Code.INVALID_ARGUMENT, create(w, capability, numberOfInodes="100"))


async def test_a_raw_io2_disk_is_attached_to_several_nodes(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        await expect_error(Code.INVALID_ARGUMENT, create(w, SHARED, type="gp3"))
        volume = (await create(w, SHARED, 4, type="io2", iops="100")).volume_id
        contexts = [await w.publish(volume, node, SHARED) for node in ("i-1", "i-2")]
        assert contexts == [{"devicePath": "/dev/xvdba"}] * 2
        assert await w.publish(volume, "i-2", SHARED) == contexts[1]  # a repeated call
        listed = await w.controller.call("ListVolumes", v1.ListVolumesRequest())
        assert sorted(listed.entries[0].status.published_node_ids) == ["i-1", "i-2"]
        for node in ("i-1", "i-2"):
            await w.unpublish(volume, node)
        await w.delete(volume)


async def snapshot(w: EbsEnvironment, volume: str, **parameters: str) -> str:
    request = v1.CreateSnapshotRequest(name="s-1", source_volume_id=volume, parameters=parameters)
    made = await w.controller.call("CreateSnapshot", request)
    return str(made.snapshot.snapshot_id)


async def test_a_snapshot_with_fast_restores_and_a_lock(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        volume, ec2 = await w.create(), await connect_ec2(w.account, w.host)
        asked = {
            "fastSnapshotRestoreAvailabilityZones": "us-east-1a",
            "lockMode": "governance",
            "lockDuration": "1",
        }
        made = await snapshot(w, volume, **asked)
        assert await snapshot(w, volume, **asked) == made
        assert await ec2.fast_restore_zones(made) == {"us-east-1a"}
        assert await ec2.is_locked(made)
        await ec2.call("UnlockSnapshot", {"SnapshotId": made})
        await w.controller.call("DeleteSnapshot", v1.DeleteSnapshotRequest(snapshot_id=made))
        await w.delete(volume)
        await ec2.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"fastSnapshotRestoreAvailabilityZones": "mars-1a"},
        {"lockMode": "governance"},  # without a time
        {"outpostArn": "arn:aws:outposts:us-east-1:000000000000:outpost/op-1"},
    ],
)
async def test_a_snapshot_that_cannot_be_as_its_class_says_is_not_kept(
    tmp_path: Path, wrong: dict[str, str]
) -> None:
    async with ebs_environment(tmp_path) as w:
        volume, ec2 = await w.create(), await connect_ec2(w.account, w.host)
        await expect_error(Code.INVALID_ARGUMENT, snapshot(w, volume, **wrong))
        assert await ec2.snapshots() == []
        await w.delete(volume)
        await ec2.close()


async def test_tags_and_iops_follow_the_class(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        ec2 = await connect_ec2(w.account, w.host)
        capability = convert.capability(MODE.SINGLE_NODE_WRITER)
        made = await create(
            w,
            capability,
            10,
            type="io2",
            iopsPerGB="50",
            allowAutoIOPSIncreaseOnModify="true",
            tagSpecification_1="of={{ .PVCName }}",
            **{"csi.storage.k8s.io/pvc/name": "data"},
        )
        wanted = {"tagSpecification_1": "team=db", "tagDeletion_1": "of"}
        change = v1.ControllerModifyVolumeRequest(volume_id=made.volume_id, mutable_parameters=wanted)
        assert (await ec2.volume(made.volume_id)).tags["of"] == "data"
        await w.controller.call("ControllerModifyVolume", change)
        grow = v1.ControllerExpandVolumeRequest(
            volume_id=made.volume_id,
            capacity_range={"required_bytes": 20 * GIB},
            volume_capability=capability,
        )
        await w.controller.call("ControllerExpandVolume", grow)
        found = await ec2.volume(made.volume_id)
        assert (found.size, found.iops, found.tags["team"]) == (20, 1000, "db")
        assert "of" not in found.tags
        await w.delete(made.volume_id)
        await ec2.close()


async def test_a_disk_may_be_attached_only_when_it_is_initialized(tmp_path: Path) -> None:
    async with ebs_environment(tmp_path) as w:
        made = await create(
            w, convert.capability(MODE.SINGLE_NODE_WRITER), blockAttachUntilInitialized="true"
        )
        request = v1.ControllerPublishVolumeRequest(
            volume_id=made.volume_id,
            node_id="i-1",
            volume_capability=convert.capability(MODE.SINGLE_NODE_WRITER),
            volume_context=made.volume_context,
        )
        assert dict(made.volume_context) == {"blockattachuntilinitialized": "true"}
        await w.controller.call("ControllerPublishVolume", request)
        await w.wipe(made.volume_id, "i-1")
