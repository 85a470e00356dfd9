"""TaintToleration: NoSchedule and NoExecute keep out who does not tolerate them."""

from __future__ import annotations

from volplane.api.core import Node, Pod
from volplane.rules import taints
from volplane.scheduler.filters.base import Check, Filter, No
from volplane.scheduler.ledger import Info
from volplane.scheduler.world import World

REFUSED = No(("node(s) had untolerated taint(s)",))


def prepare(pod: Pod, world: World) -> Check | None:
    tolerations = pod.spec.tolerations

    def check(info: Info) -> No | None:
        if not info.taints or taints.untolerated(info.taints, tolerations) is None:
            return None
        return REFUSED

    return check


FILTER = Filter("TaintToleration", prepare, frozenset({Node}))
