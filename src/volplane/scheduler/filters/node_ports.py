"""NodePorts: one pod per host port."""

from __future__ import annotations

from volplane.api.core import Node, Pod
from volplane.rules.host_ports import NO_FREE_PORTS, do_ports_clash, host_ports
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

REFUSED = NodeRefusal((NO_FREE_PORTS,), final=False)


def prepare(pod: Pod, snapshot: SchedulingSnapshot) -> NodeCheck | None:
    wanted = host_ports(pod)
    if not wanted:
        return None

    def check(info: NodeInfo) -> NodeRefusal | None:
        return REFUSED if info.ports and do_ports_clash(wanted, info.ports) else None

    return check


FILTER = Filter("NodePorts", prepare, frozenset({Node, Pod}))
