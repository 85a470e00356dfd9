"""What the disk service tells about zones, regions, instances, their types, and the health of volumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.ec2_client import ZONE, assert_refused, cloud, script
from volplane.drivers.ebs import AwsAccount, connect_ec2
from volplane.drivers.ebs.ec2 import Ec2Error
from volplane.host import Host
from volplane.store.memory import MemoryStore

pytestmark = pytest.mark.root


def named(name: str, *values: str) -> list[dict[str, Any]]:
    return [{"Name": name, "Values": list(values)}]


async def test_zones_have_ids_and_regions(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        zones = ec2.describe_availability_zones()["AvailabilityZones"]
        assert [(z["ZoneName"], z["ZoneId"]) for z in zones] == [
            ("us-east-1a", "use1-az1"),
            ("us-east-1b", "use1-az2"),
        ]
        for given in ({"ZoneIds": ["use1-az2"]}, {"Filters": named("zone-id", "*az2")}):
            (zone,) = ec2.describe_availability_zones(**given)["AvailabilityZones"]
            assert zone["ZoneName"] == "us-east-1b"
        assert_refused("InvalidParameterValue", ec2.describe_availability_zones, ZoneIds=["use1-az9"])
        both = {"ZoneIds": ["use1-az1"], "ZoneNames": [ZONE]}
        assert_refused("InvalidParameterCombination", ec2.describe_availability_zones, **both)
        (region,) = ec2.describe_regions()["Regions"]
        assert (region["RegionName"], region["OptInStatus"]) == ("us-east-1", "opt-in-not-required")
        assert ec2.meta.endpoint_url == f"http://{region['Endpoint']}"
        assert ec2.describe_regions(Filters=named("region-name", "eu-*"))["Regions"] == []
        assert_refused("InvalidParameterValue", ec2.describe_regions, RegionNames=["eu-west-1"])

    await script(tmp_path, use_ec2)


async def test_volumes_are_created_and_found_by_zone_id(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        made = ec2.create_volume(AvailabilityZoneId="use1-az2", Size=1, VolumeType="gp3")
        assert (made["AvailabilityZone"], made["AvailabilityZoneId"]) == ("us-east-1b", "use1-az2")
        ec2.create_volume(AvailabilityZone=ZONE, Size=1, VolumeType="gp3")
        (found,) = ec2.describe_volumes(Filters=named("availability-zone-id", "use1-az2"))["Volumes"]
        assert found["VolumeId"] == made["VolumeId"]
        assert len(ec2.describe_volumes(Filters=named("operator.managed", "false"))["Volumes"]) == 2
        assert ec2.describe_volumes(Filters=named("operator.managed", "true"))["Volumes"] == []
        both = {"AvailabilityZone": ZONE, "AvailabilityZoneId": "use1-az1", "Size": 1}
        assert_refused("InvalidParameterCombination", ec2.create_volume, **both)
        assert_refused("InvalidParameterValue", ec2.create_volume, AvailabilityZoneId="use1-az9", Size=1)

    await script(tmp_path, use_ec2)


async def test_instances_have_types_with_ebs_limits(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        (found,) = ec2.describe_instances(InstanceIds=["i-01"])["Reservations"][0]["Instances"]
        assert found["Placement"]["AvailabilityZoneId"] == "use1-az1"
        for name, wanted in [
            ("instance-type", "m5.*"),
            ("owner-id", "000000000000"),
            ("availability-zone-id", "use1-az1"),
            ("operator.managed", "false"),
        ]:
            assert len(ec2.describe_instances(Filters=named(name, wanted))["Reservations"]) == 2
        assert ec2.describe_instances(Filters=named("instance-type", "t3.*"))["Reservations"] == []
        (kind,) = ec2.describe_instance_types(InstanceTypes=[found["InstanceType"]])["InstanceTypes"]
        assert kind["EbsInfo"]["MaximumEbsAttachments"] == 28
        assert kind["EbsInfo"]["EbsOptimizedInfo"]["BaselineThroughputInMBps"] == 81.25
        assert (kind["VCpuInfo"]["DefaultVCpus"], kind["MemoryInfo"]["SizeInMiB"]) == (2, 8192)
        few = ec2.describe_instance_types(Filters=named("vcpu-info.default-vcpus", "4", "8"))
        assert [t["InstanceType"] for t in few["InstanceTypes"]] == ["m5.2xlarge", "m5.xlarge"]
        assert_refused("InvalidInstanceType", ec2.describe_instance_types, InstanceTypes=["z9.tiny"])

    await script(tmp_path, use_ec2)


async def test_a_stopped_instance_has_no_status_unless_all_are_asked_for(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        ec2.stop_instances(InstanceIds=["i-01"])
        (running,) = ec2.describe_instance_status()["InstanceStatuses"]
        assert running["InstanceId"] == "i-02"
        assert running["InstanceStatus"]["Status"] == running["AttachedEbsStatus"]["Status"] == "ok"
        stopped, _ = ec2.describe_instance_status(IncludeAllInstances=True)["InstanceStatuses"]
        assert stopped["SystemStatus"]["Status"] == "not-applicable"
        ok = named("instance-status.reachability", "passed")
        every = ec2.describe_instance_status(IncludeAllInstances=True, Filters=ok)["InstanceStatuses"]
        assert [s["InstanceId"] for s in every] == ["i-02"]

    await script(tmp_path, use_ec2)


async def test_a_lost_disk_is_impaired(tmp_path: Path) -> None:
    store, made = MemoryStore(), dict[str, str]()

    def attach(ec2: Any) -> None:
        made["id"] = ec2.create_volume(AvailabilityZone=ZONE, Size=1, VolumeType="gp3")["VolumeId"]
        ec2.attach_volume(VolumeId=made["id"], InstanceId="i-01", Device="/dev/xvdba")
        (status,) = ec2.describe_volume_status()["VolumeStatuses"]
        assert status["VolumeStatus"]["Status"] == "ok"
        assert {d["Name"]: d["Status"] for d in status["VolumeStatus"]["Details"]} == {
            "io-enabled": "passed",
            "io-performance": "normal",
            "initialization-state": "not-applicable",
        }

    def look(ec2: Any) -> None:
        (status,) = ec2.describe_volume_status(VolumeIds=[made["id"]])["VolumeStatuses"]
        assert status["VolumeStatus"]["Status"] == "impaired"
        impaired = named("volume-status.status", "impaired")
        assert len(ec2.describe_volume_status(Filters=impaired)["VolumeStatuses"]) == 1
        degraded = named("attached-ebs-status.status", "impaired")
        (instance,) = ec2.describe_instance_status(Filters=degraded)["InstanceStatuses"]
        assert instance["InstanceId"] == "i-01"

    await script(tmp_path, attach, store=store)
    (tmp_path / "disks" / f"{made['id']}.img").unlink()
    await script(tmp_path, look, store=store)


async def test_attributes_of_volumes_snapshots_and_the_account(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        volume = ec2.create_volume(AvailabilityZone=ZONE, Size=1, VolumeType="gp3")["VolumeId"]
        snapshot = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
        shown = ec2.describe_volume_attribute(VolumeId=volume, Attribute="autoEnableIO")
        assert shown["AutoEnableIO"] == {"Value": False}
        shared = {"SnapshotId": snapshot, "Attribute": "createVolumePermission"}
        assert ec2.describe_snapshot_attribute(**shared)["CreateVolumePermissions"] == []
        wrong = {"VolumeId": volume, "Attribute": "colour"}
        assert_refused("InvalidParameterValue", ec2.describe_volume_attribute, **wrong)
        lost = {**shared, "SnapshotId": "snap-00000000"}
        assert_refused("InvalidSnapshot.NotFound", ec2.describe_snapshot_attribute, **lost)
        assert len(ec2.describe_snapshots(Filters=named("owner-id", "000000000000"))["Snapshots"]) == 1
        assert ec2.get_ebs_encryption_by_default()["EbsEncryptionByDefault"] is False
        (platform,) = ec2.describe_account_attributes(AttributeNames=["supported-platforms"])[
            "AccountAttributes"
        ]
        assert platform["AttributeValues"] == [{"AttributeValue": "VPC"}]

    await script(tmp_path, use_ec2)


async def test_an_instance_keeps_its_type_when_it_registers_again(tmp_path: Path) -> None:
    given = {"InstanceId": "i-03", "AvailabilityZone": ZONE, "DeviceDirectory": str(tmp_path / "n3")}
    host, store = Host(), MemoryStore()
    for kind in ({"InstanceType": "m5.2xlarge"}, {}):
        async with cloud(tmp_path, store=store) as client:
            account = AwsAccount(client.meta.endpoint_url, access_key="AKIAVOLPLANE", secret_key="secret")
            ec2 = await connect_ec2(account, host)
            answer = await ec2.call("RegisterInstance", given | kind)
            assert answer.findtext("instanceType") == "m5.2xlarge"
            with pytest.raises(Ec2Error, match="InvalidParameterValue"):
                await ec2.call("RegisterInstance", given | {"InstanceType": "z9.tiny"})
            await ec2.close()
    await host.close()
