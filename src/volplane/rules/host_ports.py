"""Ports of its node that a pod asks for; 0.0.0.0 stands for all addresses of the node."""

from __future__ import annotations

from collections.abc import Iterable

from volplane.api.core import Pod

Port = tuple[str, str, int]  # address, protocol, number

ANY = "0.0.0.0"
NO_FREE_PORTS = "node(s) didn't have free ports for the requested pod ports"


def host_ports(pod: Pod) -> tuple[Port, ...]:
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return tuple(
        (port.host_ip or ANY, port.protocol or "TCP", port.host_port)
        for container in containers
        for port in container.ports
        if port.host_port
    )


def do_ports_clash(wanted: Iterable[Port], held: Iterable[Port]) -> bool:
    taken = tuple(held)
    return any(_clashes(mine, theirs) for mine in wanted for theirs in taken)


def _clashes(mine: Port, theirs: Port) -> bool:
    return mine[1:] == theirs[1:] and (mine[0] == theirs[0] or ANY in (mine[0], theirs[0]))
