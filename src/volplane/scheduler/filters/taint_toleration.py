"""TaintToleration: NoSchedule and NoExecute taints refuse pods that do not tolerate them."""

from __future__ import annotations

from volplane.api.core import Node, Pod
from volplane.rules import taints
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

REFUSED = NodeRefusal(("node(s) had untolerated taint(s)",))


def prepare(pod: Pod, snapshot: SchedulingSnapshot) -> NodeCheck | None:
    tolerations = pod.spec.tolerations

    def check(info: NodeInfo) -> NodeRefusal | None:
        if not info.taints or taints.find_untolerated_taint(info.taints, tolerations) is None:
            return None
        return REFUSED

    return check


FILTER = Filter("TaintToleration", prepare, frozenset({Node}))
