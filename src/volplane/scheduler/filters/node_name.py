"""NodeName: a pod that names its node goes nowhere else."""

from __future__ import annotations

from volplane.api.core import Node, Pod
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

REFUSED = NodeRefusal(("node(s) didn't match the requested node name",))


def prepare(pod: Pod, world: SchedulingSnapshot) -> NodeCheck | None:
    wanted = pod.spec.node_name
    return (lambda info: None if info.name == wanted else REFUSED) if wanted else None


FILTER = Filter("NodeName", prepare, frozenset({Node}))
