"""A pod fails if another pod of the node has one of its host ports, as when it was bound without a scheduler.

A port counts as free when the containers of its pod have ended, before the pod is gone: its replacement may
arrive at that moment.
"""

from __future__ import annotations

from volplane.api.core import Pod
from volplane.node.admission import Rejection
from volplane.rules.host_ports import NO_FREE_PORTS, Port, do_ports_clash, host_ports

REASON = "NodePorts"  # upstream's name of the check


class HostPortAdmission:
    def __init__(self) -> None:
        self._held: dict[str, tuple[Port, ...]] = {}  # by pod uid

    def check(self, pod: Pod) -> Rejection | None:
        wanted = host_ports(pod)
        others = (port for uid, ports in self._held.items() if uid != pod.uid for port in ports)
        if wanted and do_ports_clash(wanted, others):
            return Rejection(REASON, f"Predicate {REASON} failed: {NO_FREE_PORTS}")
        return None

    def hold(self, pod: Pod) -> None:
        """The pod is admitted, or has run here before."""
        if ports := host_ports(pod):
            self._held[pod.uid] = ports

    def release(self, uid: str) -> None:
        self._held.pop(uid, None)
