"""VolumeZone: the zone and region labels of a bound volume must match those of the node.

Both spellings of the labels count for each other, a value may be a set (`a__b`), and a node without any such
label passes.
"""

from __future__ import annotations

from volplane.api.core import Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.labels import BETA_REGION_LABEL, BETA_ZONE_LABEL, REGION_LABEL, ZONE_LABEL
from volplane.rules import pods
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

SPELLINGS = {
    ZONE_LABEL: ZONE_LABEL,
    REGION_LABEL: REGION_LABEL,
    BETA_ZONE_LABEL: ZONE_LABEL,
    BETA_REGION_LABEL: REGION_LABEL,
}
REFUSED = NodeRefusal(("node(s) had no available volume zone",))


def prepare(pod: Pod, snapshot: SchedulingSnapshot) -> NodeCheck | None:
    wanted = []
    for key in pods.claim_keys(pod):
        claim = snapshot.claim(key)
        volume = snapshot.volume(claim.spec.volume_name) if claim and claim.spec.volume_name else None
        if volume is not None:  # VolumeBinding checks the others
            wanted += _zones(volume)
    if not wanted:
        return None

    def check(info: NodeInfo) -> NodeRefusal | None:
        here = {SPELLINGS[k]: v for k, v in info.labels.items() if k in SPELLINGS}
        if not here or all(here.get(label) in values for label, values in wanted):
            return None
        return REFUSED

    return check


def _zones(volume: PersistentVolume) -> list[tuple[str, set[str]]]:
    labels = volume.metadata.labels
    return [(label, set(labels[key].split("__"))) for key, label in SPELLINGS.items() if key in labels]


FILTER = Filter("VolumeZone", prepare, frozenset({Node, PersistentVolume, PersistentVolumeClaim}))
