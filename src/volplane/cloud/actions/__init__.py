"""EC2's actions: each is a function from parameters to the tree of the response."""

from __future__ import annotations

from volplane.cloud.actions import instances, snapshots, tags, volumes
from volplane.cloud.actions.base import Action

__all__ = ["ACTIONS", "CHECKS", "Action"]

# What a dry run checks besides the signature.
CHECKS = {"CreateVolume": volumes.check_create_volume}

ACTIONS: dict[str, Action] = {
    "CreateVolume": volumes.create_volume,
    "CopyVolumes": volumes.copy_volumes,
    "DeleteVolume": volumes.delete_volume,
    "AttachVolume": volumes.attach_volume,
    "DetachVolume": volumes.detach_volume,
    "ModifyVolume": volumes.modify_volume,
    "DescribeVolumes": volumes.describe_volumes,
    "DescribeVolumesModifications": volumes.describe_volumes_modifications,
    "CreateSnapshot": snapshots.create_snapshot,
    "CreateSnapshots": snapshots.create_snapshots,
    "DeleteSnapshot": snapshots.delete_snapshot,
    "DescribeSnapshots": snapshots.describe_snapshots,
    "CreateTags": tags.create_tags,
    "DeleteTags": tags.delete_tags,
    "DescribeTags": tags.describe_tags,
    "DescribeInstances": instances.describe_instances,
    "DescribeAvailabilityZones": instances.describe_availability_zones,
    "StopInstances": instances.stop_instances,
    "StartInstances": instances.start_instances,
    "RegisterInstance": instances.register_instance,
    "DeregisterInstance": instances.deregister_instance,
    "DescribeDiskCapacity": instances.describe_disk_capacity,
}
