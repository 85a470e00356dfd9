"""botocore's own client over every operation: answers, errors, pages, waiters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.ec2_client import ZONE, assert_refused, script, tag_specification
from volplane.host import Host

pytestmark = pytest.mark.root


async def test_volumes_with_waiters(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        made = ec2.create_volume(
            AvailabilityZone=ZONE,
            Size=10,
            VolumeType="io2",
            Iops=500,
            ClientToken="one",
            TagSpecifications=tag_specification("volume", Name="db"),
        )
        volume = made["VolumeId"]
        assert (made["Iops"], made["Size"], made["VolumeType"], made["Encrypted"]) == (500, 10, "io2", False)
        ec2.get_waiter("volume_available").wait(VolumeIds=[volume])
        held = ec2.attach_volume(VolumeId=volume, InstanceId="i-01", Device="/dev/xvdba")
        assert (held["InstanceId"], held["Device"]) == ("i-01", "/dev/xvdba")
        ec2.get_waiter("volume_in_use").wait(VolumeIds=[volume])
        (shown,) = ec2.describe_volumes(Filters=[{"Name": "tag:Name", "Values": ["d*"]}])["Volumes"]
        assert [(a["InstanceId"], a["State"]) for a in shown["Attachments"]] == [("i-01", "attached")]
        (device,) = ec2.describe_instances(InstanceIds=["i-01"])["Reservations"][0]["Instances"][0][
            "BlockDeviceMappings"
        ]
        assert device["Ebs"]["VolumeId"] == volume
        changed = ec2.modify_volume(VolumeId=volume, Size=20, VolumeType="gp3")["VolumeModification"]
        assert (changed["OriginalIops"], changed["TargetIops"], changed["TargetSize"]) == (500, 3000, 20)
        states = ec2.describe_volumes_modifications(
            Filters=[{"Name": "modification-state", "Values": ["completed"]}]
        )
        assert [m["VolumeId"] for m in states["VolumesModifications"]] == [volume]
        ec2.detach_volume(VolumeId=volume)
        ec2.get_waiter("volume_available").wait(VolumeIds=[volume])
        ec2.delete_volume(VolumeId=volume)
        ec2.get_waiter("volume_deleted").wait(VolumeIds=[volume])

    await script(tmp_path, use_ec2)


async def test_snapshots_with_waiters(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        volume = ec2.create_volume(AvailabilityZone=ZONE, Size=1, VolumeType="gp3")["VolumeId"]
        taken = [
            ec2.create_snapshot(
                VolumeId=volume,
                Description=f"number {n}",
                TagSpecifications=tag_specification("snapshot", n=str(n)),
            )["SnapshotId"]
            for n in range(6)
        ]
        ec2.get_waiter("snapshot_completed").wait(SnapshotIds=taken)
        pages = ec2.get_paginator("describe_snapshots").paginate(
            OwnerIds=["self"], PaginationConfig={"PageSize": 5}
        )
        shown = [s for page in pages for s in page["Snapshots"]]
        assert sorted(s["SnapshotId"] for s in shown) == sorted(taken)
        assert {s["Progress"] for s in shown} == {"100%"}
        (third,) = ec2.describe_snapshots(Filters=[{"Name": "tag:n", "Values": ["3"]}])["Snapshots"]
        assert (third["Description"], third["VolumeId"], third["VolumeSize"]) == ("number 3", volume, 1)
        assert ec2.describe_snapshots(OwnerIds=["123456789012"])["Snapshots"] == []
        restored = ec2.create_volume(AvailabilityZone="us-east-1b", SnapshotId=taken[3], VolumeType="gp3")
        assert (restored["SnapshotId"], restored["Size"]) == (taken[3], 1)
        (copy,) = ec2.copy_volumes(SourceVolumeId=volume, Size=2)["Volumes"]
        assert (copy["SourceVolumeId"], copy["Size"], copy["VolumeType"]) == (volume, 2, "gp3")
        found = ec2.describe_volumes(Filters=[{"Name": "snapshot-id", "Values": [taken[3]]}])["Volumes"]
        assert [v["VolumeId"] for v in found] == [restored["VolumeId"]]
        ec2.delete_volume(VolumeId=volume)
        for snapshot in taken:
            ec2.delete_snapshot(SnapshotId=snapshot)
        assert_refused("InvalidSnapshot.NotFound", ec2.describe_snapshots, SnapshotIds=taken[:1])
        assert ec2.describe_snapshots()["Snapshots"] == []

    await script(tmp_path, use_ec2)


async def test_snapshots_of_all_volumes_of_an_instance(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        volumes = []
        for device in ("/dev/xvdba", "/dev/xvdbb", "/dev/xvdbc"):
            tags = tag_specification("volume", at=device)
            made = ec2.create_volume(AvailabilityZone="us-east-1a", Size=1, TagSpecifications=tags)
            ec2.attach_volume(VolumeId=made["VolumeId"], InstanceId="i-01", Device=device)
            volumes.append(made["VolumeId"])
        instance = {"InstanceId": "i-01", "ExcludeBootVolume": True, "ExcludeDataVolumeIds": volumes[2:]}
        taken = ec2.create_snapshots(
            InstanceSpecification=instance,
            Description="both",
            CopyTagsFromSource="volume",
            TagSpecifications=tag_specification("snapshot", of="all"),
        )["Snapshots"]
        assert {s["VolumeId"] for s in taken} == set(volumes[:2])
        assert {s["State"] for s in taken} == {"completed"}
        assert len({s["StartTime"] for s in taken}) == 1
        ec2.get_waiter("snapshot_completed").wait(SnapshotIds=[s["SnapshotId"] for s in taken])
        assert {s["Description"] for s in ec2.describe_snapshots()["Snapshots"]} == {"both"}
        (one,) = ec2.describe_snapshots(Filters=[{"Name": "tag:at", "Values": ["/dev/xvdba"]}])["Snapshots"]
        assert (one["VolumeId"], one["VolumeSize"]) == (volumes[0], 1)
        unknown = {"InstanceId": "i-09"}
        assert_refused("InvalidInstanceID.NotFound", ec2.create_snapshots, InstanceSpecification=unknown)
        nothing = {"InstanceId": "i-01", "ExcludeDataVolumeIds": volumes}
        assert_refused("InvalidParameterCombination", ec2.create_snapshots, InstanceSpecification=nothing)
        loose = ec2.create_volume(AvailabilityZone="us-east-1a", Size=1)["VolumeId"]
        wrong = {"InstanceId": "i-01", "ExcludeDataVolumeIds": [loose]}
        assert_refused("InvalidAttachment.NotFound", ec2.create_snapshots, InstanceSpecification=wrong)
        whole = {"InstanceId": "i-01"}
        assert_refused("DryRunOperation", ec2.create_snapshots, InstanceSpecification=whole, DryRun=True)
        assert len(ec2.describe_snapshots()["Snapshots"]) == 2
        for volume in volumes:
            ec2.detach_volume(VolumeId=volume)

    await script(tmp_path, use_ec2)


async def test_every_refusal_has_its_code(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        def create(**given: Any) -> Any:
            return ec2.create_volume(**{"AvailabilityZone": ZONE, "Size": 1, "VolumeType": "gp3", **given})

        volume = create(ClientToken="t")["VolumeId"]
        assert create(ClientToken="t")["VolumeId"] == volume
        assert_refused("IdempotentParameterMismatch", create, ClientToken="t", Size=2)
        assert_refused("DryRunOperation", create, DryRun=True)
        assert_refused("InvalidZone.NotFound", create, AvailabilityZone="mars-1a")
        assert_refused("InvalidParameterValue", create, VolumeType="floppy")
        assert_refused("InvalidParameterValue", create, Size=65537)
        assert_refused("InvalidParameterValue", create, VolumeType="st1", Size=124)
        assert_refused("InvalidParameterValue", create, VolumeType="io2", Size=4, Iops=4001)
        assert_refused("InvalidParameterCombination", create, VolumeType="io2", Size=4)
        assert_refused("InvalidParameterCombination", create, VolumeType="gp2", Iops=100)
        assert_refused("InvalidParameterValue", create, DryRun=True, VolumeType="floppy")
        assert_refused("InvalidParameterCombination", create, VolumeType="st1", Size=125, Iops=100)
        assert_refused("InvalidParameterValue", create, Size=100, Throughput=1000)  # needs 4000 IOPS
        create(Size=100, Throughput=1000, Iops=4000)
        assert_refused("InvalidSnapshot.NotFound", create, SnapshotId="snap-00000000")
        assert_refused("InvalidParameterValue", create, SnapshotId="nonsense")
        assert_refused("MissingParameter", ec2.create_volume, AvailabilityZone=ZONE)
        assert_refused("InvalidParameterCombination", create, MultiAttachEnabled=True)
        assert_refused("InvalidVolume.NotFound", ec2.delete_volume, VolumeId="vol-00000000")
        assert_refused("InvalidVolume.NotFound", ec2.create_snapshot, VolumeId="vol-00000000")
        assert_refused("InvalidVolume.NotFound", ec2.copy_volumes, SourceVolumeId="vol-00000000")
        assert_refused("InvalidSnapshot.NotFound", ec2.delete_snapshot, SnapshotId="snap-00000000")
        assert_refused("IncorrectState", ec2.detach_volume, VolumeId=volume)
        attach = {"VolumeId": volume, "InstanceId": "i-01", "Device": "/dev/xvdba"}
        assert_refused("InvalidInstanceID.NotFound", ec2.attach_volume, **{**attach, "InstanceId": "i-09"})
        assert_refused("InvalidParameterValue", ec2.attach_volume, **{**attach, "Device": "xvdba"})
        ec2.attach_volume(**attach)
        assert_refused("VolumeInUse", ec2.attach_volume, **attach)
        assert_refused("VolumeInUse", ec2.attach_volume, **{**attach, "InstanceId": "i-02"})
        assert_refused("VolumeInUse", ec2.delete_volume, VolumeId=volume)
        assert_refused("InvalidAttachment.NotFound", ec2.detach_volume, VolumeId=volume, InstanceId="i-02")
        other = create()["VolumeId"]
        assert_refused("InvalidParameterValue", ec2.attach_volume, **{**attach, "VolumeId": other})
        far = create(AvailabilityZone="us-east-1b")["VolumeId"]
        wrong = {**attach, "VolumeId": far, "Device": "/dev/xvdbb"}
        assert_refused("InvalidVolume.ZoneMismatch", ec2.attach_volume, **wrong)
        assert_refused("InvalidParameterValue", ec2.modify_volume, VolumeId=volume, Size=0, Iops=1)
        ec2.modify_volume(VolumeId=volume, Size=2)
        assert_refused("InvalidParameterValue", ec2.modify_volume, VolumeId=volume, Size=1)
        assert_refused(
            "InvalidVolumeModification.NotFound", ec2.describe_volumes_modifications, VolumeIds=[other]
        )
        tag = [{"Key": "a", "Value": "b"}]
        for missing, code in [
            ("vol-00000000", "InvalidVolume.NotFound"),
            ("snap-00000000", "InvalidSnapshot.NotFound"),
            ("i-09", "InvalidInstanceID.NotFound"),
            ("vpc-1", "InvalidID"),
        ]:
            assert_refused(code, ec2.create_tags, Resources=[missing], Tags=tag)
        reserved = [{"Key": "aws:a", "Value": "b"}]
        assert_refused("InvalidParameterValue", ec2.create_tags, Resources=[volume], Tags=reserved)
        assert_refused(
            "InvalidParameterValue", ec2.describe_volumes, Filters=[{"Name": "x", "Values": ["y"]}]
        )
        assert_refused("InvalidParameterValue", ec2.describe_volumes, NextToken="%%%", MaxResults=5)
        assert_refused("InvalidParameterValue", ec2.describe_volumes, MaxResults=1)
        assert_refused("InvalidParameterCombination", ec2.describe_volumes, MaxResults=5, VolumeIds=[volume])
        assert_refused("InvalidZone.NotFound", ec2.describe_availability_zones, ZoneNames=["mars-1a"])
        assert_refused("InvalidAction", ec2.describe_vpcs)
        ec2.stop_instances(InstanceIds=["i-02"])
        assert_refused(
            "IncorrectState", ec2.attach_volume, **{**attach, "VolumeId": other, "InstanceId": "i-02"}
        )
        ec2.detach_volume(VolumeId=volume, Force=True)

    await script(tmp_path, use_ec2)


async def test_tags_on_everything(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        volume = ec2.create_volume(AvailabilityZone=ZONE, Size=1)["VolumeId"]
        snapshot = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
        everything = [volume, snapshot, "i-01"]
        ec2.create_tags(Resources=everything, Tags=[{"Key": "team", "Value": "storage"}])
        by_type = {t["ResourceType"]: t["ResourceId"] for t in ec2.describe_tags()["Tags"]}
        assert by_type == {"volume": volume, "snapshot": snapshot, "instance": "i-01"}
        ec2.delete_tags(Resources=everything, Tags=[{"Key": "team", "Value": "other"}])
        assert len(ec2.describe_tags()["Tags"]) == 3
        ec2.delete_tags(Resources=everything, Tags=[{"Key": "team"}])
        assert ec2.describe_tags()["Tags"] == []

    await script(tmp_path, use_ec2)


async def test_too_many_requests(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        for _ in range(3):
            ec2.describe_volumes()
        text = assert_refused("RequestLimitExceeded", ec2.describe_volumes)
        assert text == "Request limit exceeded."
        ec2.describe_instances()  # a bucket of its own

    await script(tmp_path, use_ec2, request_rate=0.001, request_burst=3)


async def test_who_comes_again_gets_through(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        for _ in range(6):
            ec2.describe_volumes()

    await script(tmp_path, use_ec2, request_rate=20.0, request_burst=2, attempts=8)


async def test_a_second_modification_waits(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        volume = ec2.create_volume(AvailabilityZone=ZONE, Size=1)["VolumeId"]
        ec2.modify_volume(VolumeId=volume, Size=2)
        assert_refused("VolumeModificationRateExceeded", ec2.modify_volume, VolumeId=volume, Size=3)

    await script(tmp_path, use_ec2, modification_pause=6 * 3600.0)


async def test_a_full_machine(tmp_path: Path) -> None:
    host, small = Host(), tmp_path / "small"
    small.mkdir()
    await host.mount("tmpfs", str(small), "tmpfs", ["size=2500m"])

    def use_ec2(ec2: Any) -> None:
        volume = ec2.create_volume(AvailabilityZone=ZONE, Size=1)["VolumeId"]
        text = assert_refused("InsufficientVolumeCapacity", ec2.create_volume, AvailabilityZone=ZONE, Size=2)
        assert "1 GiB are left" in text
        assert_refused("InsufficientVolumeCapacity", ec2.modify_volume, VolumeId=volume, Size=3)
        ec2.modify_volume(VolumeId=volume, Size=2)
        assert_refused("InsufficientVolumeCapacity", ec2.create_volume, AvailabilityZone=ZONE, Size=1)

    try:
        await script(small, use_ec2, thin=1.0)
    finally:
        await host.unmount(str(small))
        await host.close()
