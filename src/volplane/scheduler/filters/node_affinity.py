"""NodeAffinity: nodeSelector and required node affinity; both must match."""

from __future__ import annotations

from volplane.api.core import Node, Pod
from volplane.rules import topology
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

REFUSED = NodeRefusal(("node(s) didn't match Pod's node affinity/selector",))


def prepare(pod: Pod, snapshot: SchedulingSnapshot) -> NodeCheck | None:
    labels = pod.spec.node_selector.items()
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    if not labels and required is None:
        return None

    def check(info: NodeInfo) -> NodeRefusal | None:
        if labels and not labels <= info.labels.items():
            return REFUSED
        return None if required is None or topology.selects(required, info.labels, info.name) else REFUSED

    return check


FILTER = Filter("NodeAffinity", prepare, frozenset({Node}))
