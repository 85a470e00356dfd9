"""NodeUnschedulable: cordoned nodes take only pods that tolerate it."""

from __future__ import annotations

from volplane.api.core import Node, Pod, Taint
from volplane.rules import taints
from volplane.scheduler.filters.base import Check, Filter, No
from volplane.scheduler.ledger import Info
from volplane.scheduler.world import World

CORDON = Taint(key=taints.UNSCHEDULABLE, effect=taints.NO_SCHEDULE)
REFUSED = No(("node(s) were unschedulable",))


def prepare(pod: Pod, world: World) -> Check | None:
    return None if taints.untolerated((CORDON,), pod.spec.tolerations) is None else check


def check(info: Info) -> No | None:
    return REFUSED if info.unschedulable else None


FILTER = Filter("NodeUnschedulable", prepare, frozenset({Node}))
