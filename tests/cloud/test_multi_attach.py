"""Multi-Attach: one disk on several instances, and what a killed service leaves of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cloud.test_service import Killed, assert_refused, backing, cloud, is_there, settings
from tests.support.ec2_client import ZONE, script
from tests.support.ec2_client import assert_refused as assert_call_refused
from volplane.cloud import CloudInstance, open_service
from volplane.cloud.create_volume import CloudVolumeRequest
from volplane.cloud.model import AttachmentState, VolumeShape, VolumeState
from volplane.host import Host
from volplane.store.memory import MemoryStore

pytestmark = pytest.mark.root

SHARED = CloudVolumeRequest(zone=ZONE, shape=VolumeShape(4, "io2", 100, multi_attach=True), token="shared")


def is_bound(device: str) -> bool:
    return Path(f"/sys/block/{device[5:]}/loop/backing_file").exists()


async def test_two_instances_have_one_disk_until_the_last_has_left_it(tmp_path: Path) -> None:
    async with cloud(tmp_path) as service:
        volume = await service.create(SHARED)
        first = await service.attach(volume.id, "i-1", "/dev/xvdba")
        second = await service.attach(volume.id, "i-2", "/dev/xvdbb")
        assert {first.state, second.state} == {AttachmentState.ATTACHED}
        device = os.readlink(tmp_path / "n1" / "xvdba")
        assert os.readlink(tmp_path / "n2" / "xvdbb") == device
        await assert_refused("VolumeInUse", service.attach(volume.id, "i-1", "/dev/xvdbc"))
        await assert_refused("InvalidVolume.ZoneMismatch", service.attach(volume.id, "i-3", "/dev/xvdba"))
        await assert_refused("MissingParameter", service.detach(volume.id))
        await service.detach(volume.id, "i-1")
        assert not is_there(tmp_path / "n1" / "xvdba")
        assert backing(device).endswith(f"{volume.id}.img")
        assert [a.instance for a in service.volume(volume.id).attachments] == ["i-2"]
        assert service.volume(volume.id).state is VolumeState.IN_USE
        await assert_refused("VolumeInUse", service.delete(volume.id))
        await service.detach(volume.id, "i-2")
        assert service.volume(volume.id).state is VolumeState.AVAILABLE
        assert not is_bound(device)
        await service.delete(volume.id)


async def test_an_instance_that_still_mounts_the_disk_keeps_it_and_another_can_leave(tmp_path: Path) -> None:
    host, point = Host(), tmp_path / "node1" / "mounted"
    point.mkdir(parents=True)
    async with cloud(tmp_path / "c") as service:
        for number in (1, 2):
            directory = tmp_path / f"node{number}" / "dev"
            await service.register(CloudInstance(f"i-{number}", ZONE, str(directory)))
        volume = await service.create(SHARED)
        for name in ("i-1", "i-2"):
            await service.attach(volume.id, name, "/dev/xvdba")
        device = os.readlink(tmp_path / "node1" / "dev" / "xvdba")
        point.rmdir()
        point.touch()
        await host.bind(device, str(point))  # as a raw block volume of a pod
        await assert_refused("VolumeInUse", service.detach(volume.id, "i-1"))
        assert os.readlink(tmp_path / "node1" / "dev" / "xvdba") == device
        await service.detach(volume.id, "i-2")
        await assert_refused("VolumeInUse", service.detach(volume.id, "i-1"))
        await service.attach(volume.id, "i-2", "/dev/xvdba")
        await service.detach(volume.id, "i-1", force=True)  # unmounts what the instance has left
        assert not await host.is_mount(str(point))
        await service.detach(volume.id, "i-2")
    await host.close()


async def test_a_restart_gives_the_disk_to_all_its_instances_again(tmp_path: Path) -> None:
    store = MemoryStore()
    async with cloud(tmp_path, store) as service:
        volume = await service.create(SHARED)
        for name in ("i-1", "i-2"):
            await service.attach(volume.id, name, "/dev/xvdba")
        device = os.readlink(tmp_path / "n1" / "xvdba")
    assert not is_bound(device)
    async with cloud(tmp_path, store) as service:
        links = {os.readlink(tmp_path / node / "xvdba") for node in ("n1", "n2")}
        (device,) = links
        assert backing(device).endswith(f"{volume.id}.img")


@pytest.mark.parametrize("point", ["intent", "effect", "result"])
@pytest.mark.parametrize("action", ["AttachVolume", "DetachVolume"])
async def test_a_service_killed_at_one_attachment_keeps_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, point: str
) -> None:
    store, stop, host = MemoryStore(), f"cloud:{action}:{point}", Host()

    def hit(name: str) -> None:
        if name == stop:
            raise Killed

    killed_service = open_service(settings(tmp_path), host, store)  # held: without a reference it is closed
    service = await killed_service.__aenter__()
    volume = await service.create(SHARED)
    await service.attach(volume.id, "i-1", "/dev/xvdba")
    if action == "DetachVolume":
        await service.attach(volume.id, "i-2", "/dev/xvdba")
    monkeypatch.setattr("volplane.base.failpoint.is_armed", True)
    monkeypatch.setattr("volplane.base.failpoint.hit", hit)
    attach, detach = service.attach(volume.id, "i-2", "/dev/xvdba"), service.detach(volume.id, "i-2")
    killed, unused = (attach, detach) if action == "AttachVolume" else (detach, attach)
    unused.close()
    with pytest.raises(Killed):
        await killed
    await service.records._background.close()
    monkeypatch.setattr("volplane.base.failpoint.is_armed", False)
    async with open_service(settings(tmp_path), host, store) as service:
        found = service.volume(volume.id)
        wanted = ["i-1", "i-2"] if action == "AttachVolume" else ["i-1"]
        assert sorted(a.instance for a in found.attachments) == wanted
        assert {a.state for a in found.attachments} == {AttachmentState.ATTACHED}
        assert is_there(tmp_path / "n1" / "xvdba")
        assert is_there(tmp_path / "n2" / "xvdba") is (action == "AttachVolume")
        for name in wanted:
            await service.detach(volume.id, name)
        await service.delete(volume.id)
    await host.close()


async def test_botocore_creates_and_changes_multi_attach(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        wanted = {"AvailabilityZone": ZONE, "Size": 4, "VolumeType": "io2", "Iops": 100}
        assert_call_refused(
            "InvalidParameterCombination",
            ec2.create_volume,
            AvailabilityZone=ZONE,
            Size=4,
            VolumeType="gp3",
            MultiAttachEnabled=True,
        )
        made = ec2.create_volume(**wanted, MultiAttachEnabled=True)
        assert made["MultiAttachEnabled"] is True
        volume = made["VolumeId"]
        for name, device in (("i-01", "/dev/xvdba"), ("i-02", "/dev/xvdbb")):
            ec2.attach_volume(VolumeId=volume, InstanceId=name, Device=device)
        by_instance = [{"Name": "attachment.instance-id", "Values": ["i-02"]}]
        enabled = [{"Name": "multi-attach-enabled", "Values": ["true"]}]
        for given in (by_instance, enabled):
            (shown,) = ec2.describe_volumes(Filters=given)["Volumes"]
            assert {a["InstanceId"]: a["Device"] for a in shown["Attachments"]} == {
                "i-01": "/dev/xvdba",
                "i-02": "/dev/xvdbb",
            }
        for name, device in (("i-01", "/dev/xvdba"), ("i-02", "/dev/xvdbb")):
            (found,) = ec2.describe_instances(InstanceIds=[name])["Reservations"][0]["Instances"]
            assert [(d["DeviceName"], d["Ebs"]["VolumeId"]) for d in found["BlockDeviceMappings"]] == [
                (device, volume)
            ]
        assert_call_refused("IncorrectState", ec2.modify_volume, VolumeId=volume, MultiAttachEnabled=False)
        ec2.modify_volume(VolumeId=volume, Size=8)
        ec2.detach_volume(VolumeId=volume, InstanceId="i-01")
        change = ec2.modify_volume(VolumeId=volume, MultiAttachEnabled=False)["VolumeModification"]
        assert (change["OriginalMultiAttachEnabled"], change["TargetMultiAttachEnabled"]) == (True, False)
        # Only a volume that no instance has can be shared from now on.
        assert_call_refused("IncorrectState", ec2.modify_volume, VolumeId=volume, MultiAttachEnabled=True)
        ec2.detach_volume(VolumeId=volume, InstanceId="i-02")
        ec2.modify_volume(VolumeId=volume, MultiAttachEnabled=True)
        assert_call_refused(
            "InvalidParameterCombination", ec2.modify_volume, VolumeId=volume, VolumeType="gp3"
        )
        ec2.modify_volume(VolumeId=volume, VolumeType="gp3", MultiAttachEnabled=False)
        assert_call_refused(
            "InvalidParameterCombination", ec2.modify_volume, VolumeId=volume, MultiAttachEnabled=True
        )

    await script(tmp_path, use_ec2)
