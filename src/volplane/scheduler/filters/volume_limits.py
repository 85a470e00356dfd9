"""NodeVolumeLimits: a driver attaches only so many volumes to a node.

Counted are the volumes of the pods on the node and those that a VolumeAttachment puts there, each once. A
claim that is not bound yet counts as a volume of its own, known by the claim's name until it has another.
"""

from __future__ import annotations

from collections.abc import Iterable

from volplane.api.core import Node, PersistentVolumeClaim, Pod
from volplane.api.storage import CSINode, VolumeAttachment
from volplane.rules import classes, pods
from volplane.rules.binding import claim_class
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

EXCEEDED = NodeRefusal(("node(s) exceed max volume count",), final=False)
Disk = tuple[str, str]  # driver, handle


def prepare(pod: Pod, world: SchedulingSnapshot) -> NodeCheck | None:
    wanted = disks_of(pods.claim_keys(pod), world)
    if not wanted:
        return None
    drivers = {driver for driver, _ in wanted}

    def check(info: NodeInfo) -> NodeRefusal | None:
        limits = limits_of(info.name, world)
        limited = [(driver, limits[driver]) for driver in drivers if driver in limits]
        if not limited:
            return None
        attached = list(world.attached(info.name))
        most = len(info.claims) + len(attached) + len(wanted)
        if all(most <= limit for _, limit in limited):
            return None  # however many of them are the same: enough room, and no need to look closer
        held = disks_of(info.claims, world) | _attached_disks(attached, world)
        for driver, limit in limited:
            here = {disk for disk in held if disk[0] == driver}
            new = {disk for disk in wanted if disk[0] == driver} - here
            if new and len(here) + len(new) > limit:
                return EXCEEDED
        return None

    return check


def limits_of(node: str, world: SchedulingSnapshot) -> dict[str, int]:
    csi_node = world.csi_node(node)
    drivers = csi_node.spec.drivers if csi_node is not None else ()
    return {d.name: d.allocatable.count for d in drivers if d.allocatable and d.allocatable.count is not None}


def disks_of(claims: Iterable[str], world: SchedulingSnapshot) -> set[Disk]:
    found = (disk_of(key, world) for key in claims)
    return {disk for disk in found if disk is not None}


def disk_of(key: str, world: SchedulingSnapshot) -> Disk | None:
    claim = world.claim(key)
    if claim is None:
        return None
    volume = world.volume(claim.spec.volume_name) if claim.spec.volume_name else None
    if volume is not None:
        source = volume.spec.csi
        return (source.driver, source.volume_handle) if source is not None else None
    storage_class = world.storage_class(claim_class(claim) or "")
    if storage_class is None or not classes.is_external(storage_class.provisioner):
        return None
    return classes.driver_name(storage_class.provisioner), key


def _attached_disks(volumes: Iterable[str], world: SchedulingSnapshot) -> set[Disk]:
    sources = (volume.spec.csi for name in volumes if (volume := world.volume(name)) is not None)
    return {(source.driver, source.volume_handle) for source in sources if source is not None}


FILTER = Filter(
    "NodeVolumeLimits", prepare, frozenset({Node, CSINode, Pod, PersistentVolumeClaim, VolumeAttachment})
)
