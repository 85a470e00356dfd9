"""Names of the driver, of topology keys and of tags."""

from volplane.api.labels import ZONE_LABEL

NAME, VERSION = "ebs.csi.aws.com", "0.2.0"
ZONE_KEY, OWN_ZONE_KEY = ZONE_LABEL, "topology.ebs.csi.aws.com/zone"
NAME_TAG, SNAPSHOT_TAG = "CSIVolumeName", "CSIVolumeSnapshotName"
GROUP_TAG, COMPLETE_TAG = "CSIVolumeGroupSnapshotId", "ebs.csi.aws.com/group-complete"
INLINE_TAG = "CSIInlineVolume"  # its value is the kubelet's handle
CLUSTER_TAG = "ebs.csi.aws.com/cluster"
PARTITION = "partition"  # volume attribute of translated in-tree volumes
