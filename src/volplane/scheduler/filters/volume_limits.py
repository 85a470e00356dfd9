"""NodeVolumeLimits: the maximum number of volumes that a driver attaches to a node.

Counted are the volumes of the pods on the node and those of VolumeAttachments for it, each once. A claim that
is not bound yet counts as a separate volume, identified by the claim's name. In-tree volumes count for the
CSI driver that replaces their plugin.
"""

from __future__ import annotations

from collections.abc import Iterable

from volplane.api.core import Node, PersistentVolumeClaim, Pod
from volplane.api.storage import CSINode, VolumeAttachment
from volplane.rules import classes, pods
from volplane.rules.binding import claim_class
from volplane.rules.csi_translation import find_csi_source
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal
from volplane.scheduler.node_cache import Disk, NodeInfo, inline_disks
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

EXCEEDED = NodeRefusal(("node(s) exceed max volume count",), final=False)


def prepare(pod: Pod, snapshot: SchedulingSnapshot) -> NodeCheck | None:
    wanted = disks_of(pods.claim_keys(pod), snapshot) | set(inline_disks(pod))
    if not wanted:
        return None
    drivers = {driver for driver, _ in wanted}

    def check(info: NodeInfo) -> NodeRefusal | None:
        limits = limits_of(info.name, snapshot)
        limited = [(driver, limits[driver]) for driver in drivers if driver in limits]
        if not limited:
            return None
        attached = list(snapshot.attached(info.name))
        most = len(info.claims) + len(info.inline_disks) + len(attached) + len(wanted)
        if all(most <= limit for _, limit in limited):
            return None  # even if all are different, they are below the limit
        held = disks_of(info.claims, snapshot) | {*info.inline_disks} | _attached_disks(attached, snapshot)
        for driver, limit in limited:
            here = {disk for disk in held if disk[0] == driver}
            new = {disk for disk in wanted if disk[0] == driver} - here
            if new and len(here) + len(new) > limit:
                return EXCEEDED
        return None

    return check


def limits_of(node: str, snapshot: SchedulingSnapshot) -> dict[str, int]:
    csi_node = snapshot.csi_node(node)
    drivers = csi_node.spec.drivers if csi_node is not None else ()
    return {d.name: d.allocatable.count for d in drivers if d.allocatable and d.allocatable.count is not None}


def disks_of(claims: Iterable[str], snapshot: SchedulingSnapshot) -> set[Disk]:
    found = (disk_of(key, snapshot) for key in claims)
    return {disk for disk in found if disk is not None}


def disk_of(key: str, snapshot: SchedulingSnapshot) -> Disk | None:
    claim = snapshot.claim(key)
    if claim is None:
        return None
    volume = snapshot.volume(claim.spec.volume_name) if claim.spec.volume_name else None
    if volume is not None:
        source = find_csi_source(volume)
        return (source.driver, source.volume_handle) if source is not None else None
    storage_class = snapshot.storage_class(claim_class(claim) or "")
    if storage_class is None or not classes.is_external(storage_class.provisioner):
        return None
    return classes.driver_name(storage_class.provisioner), key


def _attached_disks(volumes: Iterable[str], snapshot: SchedulingSnapshot) -> set[Disk]:
    sources = (find_csi_source(snapshot.volume(name)) for name in volumes)
    return {(source.driver, source.volume_handle) for source in sources if source is not None}


FILTER = Filter(
    "NodeVolumeLimits", prepare, frozenset({Node, CSINode, Pod, PersistentVolumeClaim, VolumeAttachment})
)
