"""NodeUnschedulable: cordoned nodes accept only pods that tolerate it."""

from __future__ import annotations

from volplane.api.core import Node, Pod, Taint
from volplane.rules import taints
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

CORDON = Taint(key=taints.UNSCHEDULABLE, effect=taints.NO_SCHEDULE)
REFUSED = NodeRefusal(("node(s) were unschedulable",))


def prepare(pod: Pod, snapshot: SchedulingSnapshot) -> NodeCheck | None:
    return None if taints.find_untolerated_taint((CORDON,), pod.spec.tolerations) is None else check


def check(info: NodeInfo) -> NodeRefusal | None:
    return REFUSED if info.unschedulable else None


FILTER = Filter("NodeUnschedulable", prepare, frozenset({Node}))
