"""No option is silently dropped: it is kept and shown, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import botocore.session
import pytest

from tests.support.ec2_client import ZONE, assert_refused, script
from volplane.cloud.actions import ACTIONS
from volplane.cloud.actions.parameters import PARAMETERS

KEY = "arn:aws:kms:us-east-1:000000000000:key/1234"
MODEL = botocore.session.Session().get_service_model("ec2")
OWN = {"RegisterInstance", "DeregisterInstance", "DescribeDiskCapacity"}
# What EC2 has and this service refuses with UnknownParameter.
REFUSED = {
    "CreateVolume": {"Operator"},
    "DescribeInstanceTypes": {"IncludeUnsupportedInRegion"},
    "DescribeSnapshots": {"RestorableBy"},
    "StartInstances": {"AdditionalInfo"},
    "StopInstances": {"Hibernate"},
}


def wire_names(action: str) -> set[str]:
    """The names of an action's parameters as botocore sends them."""
    shape = MODEL.operation_model(action).input_shape
    given = {m: s.serialization for m, s in shape.members.items()}
    named = {s.get("queryName") or s.get("name") or member for member, s in given.items()}
    return {name[0].upper() + name[1:] for name in named}


def test_every_parameter_of_ec2_is_known_or_refused() -> None:
    assert set(PARAMETERS) == set(ACTIONS)
    for action in ACTIONS.keys() - OWN:
        known, refused = wire_names(action), REFUSED.get(action, set())
        assert known - PARAMETERS[action] == refused, action
        assert PARAMETERS[action] - {"Action", "Version"} <= known, action


@pytest.mark.root
async def test_what_a_volume_is_asked_to_have_is_shown(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        wanted = {"AvailabilityZone": ZONE, "Size": 4, "VolumeType": "gp3"}
        made = ec2.create_volume(**wanted, Encrypted=True, KmsKeyId=KEY)
        assert (made["KmsKeyId"], made["Operator"]) == (KEY, {"Managed": False})
        volume = made["VolumeId"]
        snapshot = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
        assert ec2.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"][0]["KmsKeyId"] == KEY
        restored = ec2.create_volume(
            AvailabilityZone=ZONE, SnapshotId=snapshot, VolumeType="gp3", VolumeInitializationRate=200
        )
        (shown,) = ec2.describe_volumes(VolumeIds=[restored["VolumeId"]])["Volumes"]
        assert (shown["KmsKeyId"], shown["Encrypted"], shown["VolumeInitializationRate"]) == (KEY, True, 200)
        (copied,) = ec2.copy_volumes(SourceVolumeId=volume)["Volumes"]
        assert copied["KmsKeyId"] == KEY
        (copied,) = ec2.copy_volumes(SourceVolumeId=volume, Encrypted=True, KmsKeyId=f"{KEY}5")["Volumes"]
        assert copied["KmsKeyId"] == f"{KEY}5"
        held = ec2.attach_volume(VolumeId=volume, InstanceId="i-01", Device="/dev/xvdba", EbsCardIndex=0)
        assert held["EbsCardIndex"] == 0
        (shown,) = ec2.describe_volumes(VolumeIds=[volume])["Volumes"]
        assert shown["Attachments"][0]["EbsCardIndex"] == 0
        (instance,) = ec2.describe_instances(InstanceIds=["i-01"])["Reservations"][0]["Instances"]
        assert instance["BlockDeviceMappings"][0]["Ebs"]["EbsCardIndex"] == 0

    await script(tmp_path, use_ec2)


@pytest.mark.root
async def test_what_cannot_be_had_is_refused(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        wanted = {"AvailabilityZone": ZONE, "Size": 4, "VolumeType": "gp3"}
        volume = ec2.create_volume(**wanted)["VolumeId"]
        snapshot = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
        restored = {"AvailabilityZone": ZONE, "SnapshotId": snapshot}
        outpost = "arn:aws:outposts:us-east-1:000000000000:outpost/op-1"
        create = ec2.create_volume
        assert_refused("UnsupportedOperation", create, **wanted, OutpostArn=outpost)
        assert_refused("InvalidParameterDependency", create, **wanted, KmsKeyId=KEY)
        assert_refused("InvalidParameterCombination", create, **wanted, VolumeInitializationRate=200)
        assert_refused("InvalidParameterValue", create, **restored, VolumeInitializationRate=99)
        text = assert_refused("UnknownParameter", create, **wanted, Operator={"Principal": "x"})
        assert text == "The parameter Operator is not recognized by this disk service"
        ec2.enable_fast_snapshot_restores(AvailabilityZones=[ZONE], SourceSnapshotIds=[snapshot])
        assert_refused("InvalidParameterCombination", create, **restored, VolumeInitializationRate=200)
        assert_refused("UnsupportedOperation", ec2.create_snapshot, VolumeId=volume, OutpostArn=outpost)
        assert_refused("InvalidParameterValue", ec2.create_snapshot, VolumeId=volume, Location="local")
        place = {"VolumeId": volume, "InstanceId": "i-01", "Device": "/dev/xvdba"}
        assert_refused("InvalidParameterValue", ec2.attach_volume, **place, EbsCardIndex=1)
        ec2.attach_volume(**place)
        assert_refused("InvalidAttachment.NotFound", ec2.detach_volume, VolumeId=volume, Device="/dev/xvdbb")
        ec2.detach_volume(**place)
        assert len(ec2.describe_volumes()["Volumes"]) == 1

    await script(tmp_path, use_ec2)


@pytest.mark.root
async def test_an_instance_has_a_root_device_a_network_interface_and_a_type(tmp_path: Path) -> None:
    def use_ec2(ec2: Any) -> None:
        named = [{"Name": "instance-type", "Values": ["m5.large"]}, {"Name": "owner-id", "Values": ["0*"]}]
        named.append({"Name": "operator.managed", "Values": ["false"]})
        found = [r["Instances"][0] for r in ec2.describe_instances(Filters=named)["Reservations"]]
        assert [i["InstanceId"] for i in found] == ["i-01", "i-02"]
        first, second = found
        assert (first["RootDeviceName"], first["RootDeviceType"]) == ("/dev/xvda", "ebs")
        assert first["BlockDeviceMappings"] == []  # the root disk is the machine's, not a volume
        (interface,) = first["NetworkInterfaces"]
        assert (interface["Status"], interface["Attachment"]["DeviceIndex"]) == ("in-use", 0)
        assert interface["MacAddress"] != second["NetworkInterfaces"][0]["MacAddress"]

    await script(tmp_path, use_ec2)
