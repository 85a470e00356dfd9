"""The parameters that each action understands.

A request with another one is refused before anything happens: an option that was silently dropped would make
a client believe that it has what it asked for.
"""

from __future__ import annotations

from volplane.cloud.errors import Ec2ErrorResponse
from volplane.cloud.query import QueryParameters

_ALL = {"Action", "Version", "DryRun"}
_PAGED = {"Filter", "MaxResults", "NextToken"}
_MANAGED = {"IncludeManagedResources"}  # accepted: nothing here is managed by a service of AWS
_SHAPE = {"Size", "VolumeType", "Iops", "Throughput", "MultiAttachEnabled"}
_MADE = {"TagSpecification", "ClientToken", "Encrypted", "KmsKeyId"}
_FAST_RESTORES = {"AvailabilityZone", "AvailabilityZoneId", "SourceSnapshotId"}
_TAGS = {"ResourceId", "Tag"}

_OWN: dict[str, set[str]] = {
    "CreateVolume": _SHAPE
    | _MADE
    | {"AvailabilityZone", "AvailabilityZoneId", "SnapshotId", "OutpostArn", "VolumeInitializationRate"},
    "CopyVolumes": _SHAPE | _MADE | {"SourceVolumeId"},
    "DeleteVolume": {"VolumeId"},
    "AttachVolume": {"VolumeId", "InstanceId", "Device", "EbsCardIndex"},
    "DetachVolume": {"VolumeId", "InstanceId", "Device", "Force"},
    "ModifyVolume": _SHAPE | {"VolumeId"},
    "DescribeVolumes": _PAGED | _MANAGED | {"VolumeId"},
    "DescribeVolumesModifications": _PAGED | _MANAGED | {"VolumeId"},
    "DescribeVolumeStatus": _PAGED | _MANAGED | {"VolumeId"},
    "DescribeVolumeAttribute": {"VolumeId", "Attribute"},
    "CreateSnapshot": {"VolumeId", "Description", "TagSpecification", "OutpostArn", "Location"},
    "CreateSnapshots": {
        "InstanceSpecification",
        "Description",
        "TagSpecification",
        "CopyTagsFromSource",
        "OutpostArn",
        "Location",
    },
    "CopySnapshot": {
        "SourceSnapshotId",
        "SourceRegion",
        "DestinationRegion",
        "DestinationOutpostArn",
        "DestinationAvailabilityZone",
        "PresignedUrl",
        "Description",
        "TagSpecification",
        "Encrypted",
        "KmsKeyId",
        "CompletionDurationMinutes",
    },
    "DeleteSnapshot": {"SnapshotId"},
    "DescribeSnapshots": _PAGED | {"SnapshotId", "Owner"},
    "DescribeSnapshotAttribute": {"SnapshotId", "Attribute"},
    "EnableFastSnapshotRestores": _FAST_RESTORES,
    "DisableFastSnapshotRestores": _FAST_RESTORES,
    "DescribeFastSnapshotRestores": _PAGED,
    "LockSnapshot": {"SnapshotId", "LockMode", "CoolOffPeriod", "LockDuration", "ExpirationDate"},
    "UnlockSnapshot": {"SnapshotId"},
    "DescribeLockedSnapshots": _PAGED | {"SnapshotId"},
    "CreateTags": _TAGS,
    "DeleteTags": _TAGS,
    "DescribeTags": _PAGED,
    "DescribeInstances": _PAGED | _MANAGED | {"InstanceId"},
    "DescribeInstanceStatus": _PAGED | _MANAGED | {"InstanceId", "IncludeAllInstances"},
    "DescribeInstanceTypes": _PAGED | {"InstanceType"},
    "DescribeAvailabilityZones": {"Filter", "ZoneName", "ZoneId", "AllAvailabilityZones"},
    "DescribeRegions": {"Filter", "RegionName", "AllRegions"},
    "DescribeAccountAttributes": {"AttributeName"},
    "GetEbsEncryptionByDefault": set(),
    # An instance that is stopped loses its power: there is no operating system that is asked first.
    "StopInstances": {"InstanceId", "Force", "SkipOsShutdown"},
    "StartInstances": {"InstanceId"},
    "RegisterInstance": {
        "InstanceId",
        "InstanceType",
        "AvailabilityZone",
        "DeviceDirectory",
        "PrivateDnsName",
    },
    "DeregisterInstance": {"InstanceId"},
    "DescribeDiskCapacity": set(),
}
PARAMETERS = {action: frozenset(own | _ALL) for action, own in _OWN.items()}


def check_names(action: str, parameters: QueryParameters) -> None:
    """Raise Ec2ErrorResponse for a parameter that the action does not understand."""
    for name in parameters.names():
        if name not in PARAMETERS[action]:
            text = f"The parameter {name} is not recognized by this disk service"
            raise Ec2ErrorResponse("UnknownParameter", text)
