"""Node lifecycle: situation → steps."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf
from typing import Any

import pytest
from msgspec import structs

from volplane.api import codec
from volplane.api.core import Node, Pod
from volplane.controllers.nodelifecycle.plan import (
    MarkPodNotReady,
    NodeHealth,
    SetTaints,
    SetUnknown,
    grace_of,
    plan,
)
from volplane.controllers.nodelifecycle.zones import EvictionPace, EvictionRates, pause
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait

NOW = datetime(2026, 1, 1, tzinfo=UTC)
READY = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}


def node(*taints: str, conditions: dict[str, str] | None = None, name: str = "n", **spec: Any) -> Node:
    """Taints as `key:effect`, where n/ is short for node.kubernetes.io/."""
    listed = [t.replace("n/", "node.kubernetes.io/").split(":") for t in taints]
    whole = {
        "metadata": {"name": name, "uid": name, "creationTimestamp": "2025-01-01T00:00:00Z"},
        "spec": {"taints": [{"key": k, "effect": e} for k, e in listed], **spec},
        "status": {
            "conditions": [
                {"type": t, "status": s, "lastHeartbeatTime": "2025-12-31T00:00:00Z"}
                for t, s in (READY if conditions is None else conditions).items()
            ]
        },
    }
    return codec.convert(Node, whole)


def look(which: Node, silent: float = 0.0, **more: Any) -> list[Any]:
    return list(plan(NodeHealth(which, NOW, silent, 40.0, **more)))


def planned_taints(steps: list[Any]) -> list[str] | None:
    for step in steps:
        if isinstance(step, SetTaints):
            return [f"{t.key.replace('node.kubernetes.io/', 'n/')}:{t.effect}" for t in step.taints]
    return None


LOST = dict.fromkeys(READY, "Unknown")


@pytest.mark.parametrize(
    ("which", "silent", "turn", "expected"),
    [
        pytest.param(node(), 0, 0, None, id="healthy"),
        pytest.param(node(), 39, 0, None, id="quiet, but not for long"),
        pytest.param(
            node(), 40, 0, ["n/unreachable:NoExecute", "n/unreachable:NoSchedule"], id="silent: both taints"
        ),
        pytest.param(node(), 40, 5, ["n/unreachable:NoSchedule"], id="not its turn: only new pods stay away"),
        pytest.param(node(), 40, inf, ["n/unreachable:NoSchedule"], id="nothing moves"),
        pytest.param(
            node(conditions={**READY, "Ready": "False"}),
            0,
            0,
            ["n/not-ready:NoExecute", "n/not-ready:NoSchedule"],
            id="says itself that it is not ready",
        ),
        pytest.param(
            node("n/not-ready:NoExecute", "n/not-ready:NoSchedule", conditions=LOST),
            99,
            5,
            ["n/unreachable:NoExecute", "n/unreachable:NoSchedule"],
            id="from one taint to the other without waiting for a turn",
        ),
        pytest.param(
            node("n/unreachable:NoExecute", "n/unreachable:NoSchedule", conditions=LOST),
            99,
            inf,
            ["n/unreachable:NoSchedule"],
            id="all nodes are lost: no more evictions",
        ),
        pytest.param(
            node("n/unreachable:NoExecute", "n/unreachable:NoSchedule", "mine:NoExecute"),
            0,
            0,
            ["mine:NoExecute"],
            id="back again: our taints go, others stay",
        ),
        pytest.param(node(unschedulable=True), 0, 0, ["n/unschedulable:NoSchedule"], id="cordoned"),
        pytest.param(node("n/unschedulable:NoSchedule"), 0, 0, [], id="uncordoned"),
        pytest.param(
            node("n/unschedulable:NoSchedule", unschedulable=True),
            0,
            0,
            None,
            id="cordoned, and tainted for it",
        ),
        pytest.param(
            node(conditions={**READY, "DiskPressure": "True"}),
            0,
            0,
            ["n/disk-pressure:NoSchedule"],
            id="a full disk keeps new pods away",
        ),
        pytest.param(
            node("n/out-of-service:NoExecute", conditions=LOST, name="x"),
            99,
            inf,
            ["n/out-of-service:NoExecute", "n/unreachable:NoSchedule"],
            id="the operator's taint is not ours",
        ),
    ],
)
def test_taints_follow_the_node(which: Node, silent: float, turn: float, expected: list[str] | None) -> None:
    assert planned_taints(look(which, silent, eviction_delay=turn)) == expected


def test_a_silent_node_is_unknown_in_everything_its_kubelet_reported() -> None:
    steps = look(node(conditions={**READY, "NetworkUnavailable": "False"}), 40)
    (lose,) = [s for s in steps if isinstance(s, SetUnknown)]
    assert {c.type for c in lose.conditions} == set(READY)
    for condition in lose.conditions:
        assert (condition.status, condition.reason) == ("Unknown", "NodeStatusUnknown")
        assert condition.message == "Kubelet stopped posting node status."
        assert condition.last_heartbeat_time == "2025-12-31T00:00:00Z"
    (said,) = [s for s in steps if isinstance(s, RecordEvent)]
    assert (said.reason, said.message) == ("NodeNotReady", "Node n status is now: NodeNotReady")


def test_a_node_that_never_reported_says_so() -> None:
    (lose,) = [s for s in look(node(conditions={}), 60) if isinstance(s, SetUnknown)]
    for condition in lose.conditions:
        assert condition.reason == "NodeStatusNeverUpdated"
        assert condition.message == "Kubelet never posted node status."
        assert condition.last_heartbeat_time == "2025-01-01T00:00:00Z"
    assert grace_of(node(conditions={}), 40, 60) == 60
    assert grace_of(node(), 40, 60) == 40


def test_a_healthy_node_is_looked_at_again_when_its_grace_is_over() -> None:
    assert [s.seconds for s in look(node(), 15) if isinstance(s, Wait)] == [25.0]
    assert [
        s for s in look(node("n/unreachable:NoExecute", conditions=LOST), 99) if isinstance(s, Wait)
    ] == []


def test_pods_of_an_unreachable_node_are_ready_no_more() -> None:
    ready = codec.convert(Pod, {"metadata": {"name": "p", "namespace": "ns"}})
    steps = look(node(), 40, pods=[ready])
    assert MarkPodNotReady(ready) in steps
    assert ("NodeNotReady", "Node is not ready") in [
        (s.reason, s.message) for s in steps if isinstance(s, RecordEvent)
    ]
    # A kubelet that says it is not ready still speaks for its pods.
    assert MarkPodNotReady(ready) not in look(node(conditions={**READY, "Ready": "False"}), 0, pods=[ready])


def test_a_plan_comes_to_rest() -> None:
    which = node(conditions=LOST)
    (mark,) = [s for s in look(which, 99) if isinstance(s, SetTaints)]
    assert mark.evicts_pods
    settled = structs.replace(which, spec=structs.replace(which.spec, taints=mark.taints))
    assert look(settled, 99) == []


# Zones


def zone(*ready: bool, name: str = "a") -> list[Node]:
    made = []
    for at, is_ready in enumerate(ready):
        each = node(name=f"{name}{at}", conditions={"Ready": "True" if is_ready else "Unknown"})
        labels = {"topology.kubernetes.io/zone": name}
        made.append(structs.replace(each, metadata=structs.replace(each.metadata, labels=labels)))
    return made


UP, DOWN = True, False


@pytest.mark.parametrize(
    ("nodes", "seconds"),
    [
        pytest.param(zone(DOWN, UP), 10.0, id="one of two"),
        pytest.param(zone(DOWN, DOWN, UP), 10.0, id="two of three"),
        pytest.param(zone(DOWN, DOWN, DOWN, UP), inf, id="most of a small zone"),
        pytest.param(zone(*[DOWN] * 40, *[UP] * 20), 100.0, id="most of a large zone"),
        pytest.param(zone(DOWN, DOWN), inf, id="everything is lost"),
        pytest.param([*zone(DOWN, DOWN), *zone(UP, name="b")], 10.0, id="a whole zone, while another lives"),
    ],
)
def test_how_fast_nodes_are_given_up(nodes: list[Node], seconds: float) -> None:
    assert pause(nodes[0], nodes, EvictionRates()) == seconds


def test_a_zone_gives_up_one_node_at_a_time() -> None:
    turns = EvictionPace()
    assert turns.seconds_left("a", 10.0, now=100.0) == 0
    turns.note_eviction("a", 10.0, now=100.0)
    assert turns.seconds_left("a", 10.0, now=104.0) == 6.0
    assert turns.seconds_left("b", 10.0, now=104.0) == 0
    assert turns.seconds_left("a", inf, now=104.0) == inf
