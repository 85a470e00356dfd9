"""NodeName: a pod with spec.nodeName fits on no other node."""

from __future__ import annotations

from volplane.api.core import Node, Pod
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

REFUSED = NodeRefusal(("node(s) didn't match the requested node name",))


def prepare(pod: Pod, snapshot: SchedulingSnapshot) -> NodeCheck | None:
    wanted = pod.spec.node_name
    return (lambda info: None if info.name == wanted else REFUSED) if wanted else None


FILTER = Filter("NodeName", prepare, frozenset({Node}))
