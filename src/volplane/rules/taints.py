"""Taints of nodes and the tolerations of pods."""

from __future__ import annotations

from collections.abc import Iterable

from volplane.api.core import Node, Taint, Toleration

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
PREFER_NO_SCHEDULE = "PreferNoSchedule"

UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
INSTANCE_STOPPED = "instance-stopped"  # value of the taint when the fencer has set it
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
MEMORY_PRESSURE = "node.kubernetes.io/memory-pressure"
DISK_PRESSURE = "node.kubernetes.io/disk-pressure"
PID_PRESSURE = "node.kubernetes.io/pid-pressure"
NETWORK_UNAVAILABLE = "node.kubernetes.io/network-unavailable"


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """An empty effect tolerates all effects; an empty key with Exists tolerates everything."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and bool(toleration.key) and toleration.value == taint.value


def find_untolerated_taint(
    taints: Iterable[Taint],
    tolerations: tuple[Toleration, ...],
    effects: tuple[str, ...] = (NO_SCHEDULE, NO_EXECUTE),
) -> Taint | None:
    """The first taint with one of the effects that is not tolerated."""
    for taint in taints:
        if taint.effect in effects and not any(tolerates(t, taint) for t in tolerations):
            return taint
    return None


def is_out_of_service(node: Node | None) -> bool:
    """Whether an operator or the fencer has declared that nothing runs on the node; any effect counts."""
    return node is not None and any(t.key == OUT_OF_SERVICE for t in node.spec.taints)


def is_ready(node: Node | None) -> bool:
    return node is not None and any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
