"""NodePorts: one pod per host port; 0.0.0.0 stands for all addresses."""

from __future__ import annotations

from volplane.api.core import Node, Pod
from volplane.scheduler.filters.base import Filter, NodeCheck, NodeRefusal
from volplane.scheduler.node_cache import NodeInfo, Port, host_ports
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

ANY = "0.0.0.0"
REFUSED = NodeRefusal(("node(s) didn't have free ports for the requested pod ports",), final=False)


def prepare(pod: Pod, snapshot: SchedulingSnapshot) -> NodeCheck | None:
    wanted = host_ports(pod)
    if not wanted:
        return None

    def check(info: NodeInfo) -> NodeRefusal | None:
        clash = info.ports and any(_clashes(mine, theirs) for mine in wanted for theirs in info.ports)
        return REFUSED if clash else None

    return check


def _clashes(mine: Port, theirs: Port) -> bool:
    return mine[1:] == theirs[1:] and (mine[0] == theirs[0] or ANY in (mine[0], theirs[0]))


FILTER = Filter("NodePorts", prepare, frozenset({Node, Pod}))
