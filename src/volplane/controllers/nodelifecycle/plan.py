"""What missing heartbeats and conditions of a node lead to: its Ready condition, taints, readiness of its
pods.

A node that is not Ready gets the taint not-ready, one that is Unknown the taint unreachable: each with
NoSchedule at once, and with NoExecute as fast as the zone's health allows. Taints of others are never
touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import isinf

from msgspec import Struct, structs

from volplane.api.core import Node, NodeCondition, Pod, Taint
from volplane.rules.steps import TICK, CommonStep, normal, warning
from volplane.rules.taints import (
    DISK_PRESSURE,
    MEMORY_PRESSURE,
    NETWORK_UNAVAILABLE,
    NO_EXECUTE,
    NO_SCHEDULE,
    NOT_READY,
    PID_PRESSURE,
    UNREACHABLE,
    UNSCHEDULABLE,
)
from volplane.rules.waits import Wait, WaitData, WaitReason

# What the kubelet reports. NetworkUnavailable is reported by others.
REPORTED = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_KEYS = {
    ("Ready", "False"): NOT_READY,
    ("Ready", "Unknown"): UNREACHABLE,
    ("MemoryPressure", "True"): MEMORY_PRESSURE,
    ("DiskPressure", "True"): DISK_PRESSURE,
    ("NetworkUnavailable", "True"): NETWORK_UNAVAILABLE,
    ("PIDPressure", "True"): PID_PRESSURE,
}
_OURS = {(key, NO_SCHEDULE) for key in (*_KEYS.values(), UNSCHEDULABLE)} | {
    (NOT_READY, NO_EXECUTE),
    (UNREACHABLE, NO_EXECUTE),
}


class NodeHealth(Struct, frozen=True):
    node: Node
    now: datetime
    silent: float  # seconds since the last heartbeat
    grace: float  # seconds without a heartbeat before it is Unknown
    eviction_delay: float = 0.0  # seconds until its pods may be evicted; infinite while the zone is disrupted
    pods: Sequence[Pod] = ()  # on the node, and still marked ready


class SetUnknown(Struct, frozen=True):
    """Set conditions to Unknown: the kubelet no longer reports them."""

    conditions: tuple[NodeCondition, ...]


class SetTaints(Struct, frozen=True):
    """Replace the node's taints."""

    taints: tuple[Taint, ...]
    evicts_pods: bool = False  # a NoExecute taint is new: the zone's next eviction has to wait


class MarkPodNotReady(Struct, frozen=True):
    pod: Pod


Step = SetUnknown | SetTaints | MarkPodNotReady


def plan(view: NodeHealth) -> Iterator[Step | CommonStep]:
    node, conditions = view.node, {c.type: c for c in view.node.status.conditions}
    if view.silent >= view.grace - TICK:
        lost = tuple(_unknown_conditions(view, conditions))
        if lost:
            yield SetUnknown(lost)
            before = conditions.get("Ready")
            conditions.update({c.type: c for c in lost})
            if before is not None and before.status == "True":
                yield normal("NodeNotReady", f"Node {node.name} status is now: NodeNotReady")
    else:
        yield Wait(WaitReason.HEARTBEAT, WaitData(node=node.name), view.grace - view.silent)
    yield from _taints(view, conditions)
    if _status(conditions) == "Unknown":
        for pod in view.pods:
            yield MarkPodNotReady(pod)
            yield warning("NodeNotReady", "Node is not ready", pod)


def grace_of(node: Node, monitor: float, startup: float) -> float:
    """Seconds without a heartbeat before a node is Unknown; more for one that never reported."""
    return monitor if any(c.type == "Ready" for c in node.status.conditions) else startup


def _status(conditions: dict[str, NodeCondition]) -> str:
    return conditions["Ready"].status if "Ready" in conditions else "Unknown"


def _unknown_conditions(view: NodeHealth, conditions: dict[str, NodeCondition]) -> Iterator[NodeCondition]:
    moment = _stamp(view.now)
    for type in REPORTED:
        held = conditions.get(type)
        if held is None:
            yield NodeCondition(
                type=type,
                status="Unknown",
                last_heartbeat_time=view.node.metadata.creation_timestamp,
                last_transition_time=moment,
                reason="NodeStatusNeverUpdated",
                message="Kubelet never posted node status.",
            )
        elif held.status != "Unknown":
            yield structs.replace(
                held,
                status="Unknown",
                last_transition_time=moment,
                reason="NodeStatusUnknown",
                message="Kubelet stopped posting node status.",
            )


# Taints


def _taints(view: NodeHealth, conditions: dict[str, NodeCondition]) -> Iterator[SetTaints | Wait]:
    held = view.node.spec.taints
    keeps_away = {_KEYS[c.type, c.status] for c in conditions.values() if (c.type, c.status) in _KEYS}
    wanted = {(key, NO_SCHEDULE) for key in keeps_away}
    if view.node.spec.unschedulable:
        wanted.add((UNSCHEDULABLE, NO_SCHEDULE))
    ready = (
        conditions["Ready"].status if "Ready" in conditions else "True"
    )  # a new node gets no NoExecute taint
    drives = _KEYS.get(("Ready", ready))
    driving = any(t.effect == NO_EXECUTE and t.key in (NOT_READY, UNREACHABLE) for t in held)
    if drives is not None:
        if driving and not isinf(view.eviction_delay):
            wanted.add((drives, NO_EXECUTE))  # one taint replaces the other at once: tolerations already run
        elif view.eviction_delay == 0:
            wanted.add((drives, NO_EXECUTE))
        else:
            yield _eviction_wait(view)
    kept = tuple(t for t in held if (t.key, t.effect) in wanted or (t.key, t.effect) not in _OURS)
    there = {(t.key, t.effect) for t in kept}
    added = tuple(
        Taint(key=key, effect=effect, time_added=_stamp(view.now)) for key, effect in sorted(wanted - there)
    )
    if added or kept != held:
        fresh = not driving and any(t.effect == NO_EXECUTE for t in added)
        yield SetTaints((*kept, *added), evicts_pods=fresh)


def _eviction_wait(view: NodeHealth) -> Wait:
    data = WaitData(node=view.node.name)
    if isinf(view.eviction_delay):
        return Wait(WaitReason.ZONE_DISRUPTED, data)
    return Wait(WaitReason.EVICTION_RATE, data, view.eviction_delay)


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
