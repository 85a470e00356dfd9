"""EC2's actions: each is a function from parameters to the tree of the response."""

from __future__ import annotations

from volplane.cloud.actions import (
    account,
    fast_restores,
    instance_types,
    instances,
    snapshot_locks,
    snapshots,
    status,
    tags,
    volumes,
    zones,
)
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
    "CopySnapshot": snapshots.copy_snapshot,
    "EnableFastSnapshotRestores": fast_restores.enable_fast_snapshot_restores,
    "DisableFastSnapshotRestores": fast_restores.disable_fast_snapshot_restores,
    "DescribeFastSnapshotRestores": fast_restores.describe_fast_snapshot_restores,
    "LockSnapshot": snapshot_locks.lock_snapshot,
    "UnlockSnapshot": snapshot_locks.unlock_snapshot,
    "DescribeLockedSnapshots": snapshot_locks.describe_locked_snapshots,
    "DeleteSnapshot": snapshots.delete_snapshot,
    "DescribeSnapshots": snapshots.describe_snapshots,
    "CreateTags": tags.create_tags,
    "DeleteTags": tags.delete_tags,
    "DescribeTags": tags.describe_tags,
    "DescribeInstances": instances.describe_instances,
    "DescribeAvailabilityZones": zones.describe_availability_zones,
    "DescribeRegions": zones.describe_regions,
    "DescribeInstanceStatus": status.describe_instance_status,
    "DescribeInstanceTypes": instance_types.describe_instance_types,
    "DescribeVolumeStatus": status.describe_volume_status,
    "DescribeVolumeAttribute": status.describe_volume_attribute,
    "DescribeSnapshotAttribute": status.describe_snapshot_attribute,
    "DescribeAccountAttributes": account.describe_account_attributes,
    "GetEbsEncryptionByDefault": account.get_ebs_encryption_by_default,
    "StopInstances": instances.stop_instances,
    "StartInstances": instances.start_instances,
    "RegisterInstance": instances.register_instance,
    "DeregisterInstance": instances.deregister_instance,
    "DescribeDiskCapacity": instances.describe_disk_capacity,
}
