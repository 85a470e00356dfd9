"""NodeResourcesFit: the requested resources are free; the refusal lists all that are insufficient."""

from __future__ import annotations

from volplane.api.core import Node, Pod
from volplane.rules import resources
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

TOO_MANY = "Too many pods"


def prepare(pod: Pod, snapshot: SchedulingSnapshot) -> NodeCheck | None:
    wanted = tuple(resources.requests(pod).items())

    def check(info: NodeInfo) -> NodeRefusal | None:
        have, used = info.allocatable, info.requested
        full = len(info.pods) >= have.get(resources.PODS, 0)
        short = [name for name, amount in wanted if amount > have.get(name, 0) - used[name]]
        if not full and not short:
            return None
        reasons = (*((TOO_MANY,) if full else ()), *(f"Insufficient {name}" for name in short))
        # What exceeds the whole node does not fit after evictions either.
        return NodeRefusal(reasons, final=any(amount > have.get(name, 0) for name, amount in wanted))

    return check


FILTER = Filter("NodeResourcesFit", prepare, frozenset({Node, Pod}))
