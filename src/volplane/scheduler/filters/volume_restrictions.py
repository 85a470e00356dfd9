"""VolumeRestrictions: which volumes a pod may not share with the pods that run already.

A ReadWriteOncePod claim is used by one pod in the whole cluster. A disk that pods name without a claim is
used by one pod of a node: an EBS disk always, an iSCSI disk unless all pods only read it.
"""

from __future__ import annotations

from volplane.api.core import PersistentVolumeClaim, Pod, Volume
from volplane.rules import access, pods
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal, PodRefusal
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

REASON = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by "
    "another pod"
)
IN_USE = NodeRefusal((REASON,), final=False)
DISK_CONFLICT = NodeRefusal(("node(s) had no available disk",), final=False)


def prepare(pod: Pod, snapshot: SchedulingSnapshot) -> NodeCheck | PodRefusal | None:
    taken = False
    for use in pods.claim_uses(pod):
        claim = snapshot.claim(f"{pod.namespace}/{use.claim}")
        if claim is None:
            if use.ephemeral:
                continue  # VolumeBinding has the better message
            return PodRefusal(f'persistentvolumeclaim "{use.claim}" not found')
        taken |= access.is_for_one_pod(claim) and snapshot.node_cache.is_claim_used(claim.key)
    if taken:
        return lambda info: IN_USE
    disks = [volume for volume in pod.spec.volumes if _is_exclusive(volume)]
    return (lambda info: _find_disk_conflict(disks, info)) if disks else None


def _is_exclusive(volume: Volume) -> bool:
    return volume.aws_elastic_block_store is not None or volume.iscsi is not None


def _find_disk_conflict(disks: list[Volume], info: NodeInfo) -> NodeRefusal | None:
    others = [volume for usage in info.pods.values() for volume in usage.pod.spec.volumes]
    clash = any(_is_same_disk(disk, other) for disk in disks for other in others if _is_exclusive(other))
    return DISK_CONFLICT if clash else None


def _is_same_disk(disk: Volume, other: Volume) -> bool:
    if disk.iscsi is not None and other.iscsi is not None:
        return disk.iscsi.iqn == other.iscsi.iqn and not (disk.iscsi.read_only and other.iscsi.read_only)
    ebs, other_ebs = disk.aws_elastic_block_store, other.aws_elastic_block_store
    return ebs is not None and other_ebs is not None and ebs.volume_id == other_ebs.volume_id


FILTER = Filter("VolumeRestrictions", prepare, frozenset({Pod, PersistentVolumeClaim}))
