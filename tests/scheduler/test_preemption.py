"""Preemption: no more victims than needed, none of equal priority, and the node cache does not change."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.scheduler.test_scheduler_plan import make_snapshot, node, pod
from volplane.api import codec
from volplane.api.core import Node, Pod
from volplane.api.policy import PodDisruptionBudget
from volplane.scheduler.node_cache import priority_of
from volplane.scheduler.plan import Placement, Unschedulable, decide
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot


def placed_pod(name: str, on: str, cpu: int, priority: int, **more: Any) -> Pod:
    whole = codec.to_dict(pod(name, on=on, cpu=str(cpu), priority=priority))
    whole["metadata"] |= more
    return codec.convert(Pod, whole)


placed_pods = st.lists(
    st.tuples(st.sampled_from(["n1", "n2", "n3"]), st.integers(1, 3), st.integers(0, 3)), max_size=9
)


def node_cache_with(around: SchedulingSnapshot) -> object:
    cache = around.node_cache
    return [(i.name, sorted(i.pods), +i.requested, dict(i.priorities), i.cpu, i.memory) for i in cache.nodes]


def fits_without(around_nodes: list[Node], others: list[Pod], wanted: Pod, where: str) -> bool:
    only = [n for n in around_nodes if n.name == where]
    return isinstance(
        decide(wanted, make_snapshot(*only, *(p for p in others if p.spec.node_name == where))), Placement
    )


@given(placed_pods, st.integers(1, 4), st.integers(0, 3))
def test_victims_are_lesser_needed_and_enough(
    found: list[tuple[str, int, int]], cpu: int, priority: int
) -> None:
    nodes = [node("n1"), node("n2"), node("n3")]
    room = dict.fromkeys(("n1", "n2", "n3"), 4)
    there = []
    for number, (where, size, value) in enumerate(found):
        if size <= room[where]:
            room[where] -= size
            there.append(placed_pod(f"g{number}", where, size, value))
    wanted = placed_pod("wanted", "", cpu, priority)
    around = make_snapshot(*nodes, *there)
    before = node_cache_with(around)
    decision = decide(wanted, around)
    assert node_cache_with(around) == before
    if isinstance(decision, Placement):
        assert room[decision.node] >= cpu
        return
    assert isinstance(decision, Unschedulable)
    if decision.evict is None:
        lesser = {n: sum(c for w, c, p in _sizes(there) if w == n and p < priority) for n in room}
        assert all(room[n] + lesser[n] < cpu or not lesser[n] for n in room)
        return
    victims = {v.name for v in decision.evict.victims}
    assert all(priority_of(v) < priority for v in decision.evict.victims)
    assert {v.spec.node_name for v in decision.evict.victims} == {decision.evict.node}
    left = [p for p in there if p.name not in victims]
    assert fits_without(nodes, left, wanted, decision.evict.node)
    for victim in decision.evict.victims:
        assert not fits_without(nodes, [*left, victim], wanted, decision.evict.node)


def _sizes(there: list[Pod]) -> list[tuple[str, int, int]]:
    return [
        (p.spec.node_name, int(p.spec.containers[0].resources.requests["cpu"]), priority_of(p)) for p in there
    ]


def test_a_budget_that_has_counted_an_eviction_is_not_broken_by_it_again() -> None:
    budget = codec.convert(
        PodDisruptionBudget,
        {
            "metadata": {"name": "b", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "x"}}},
            "status": {
                "disruptionsAllowed": 0,
                "currentHealthy": 1,
                "desiredHealthy": 1,
                "expectedPods": 1,
                "disruptedPods": {"counted": "2026-01-01T00:00:00Z"},
            },
        },
    )
    labels = {"app": "x"}
    plain = make_snapshot(
        node("n1"),
        node("n2"),
        placed_pod("counted", "n1", 3, 0, labels=labels),
        placed_pod("kept", "n2", 3, 0, labels=labels),
    )
    fields = {name: getattr(plain, name) for name in plain.__struct_fields__}
    around = SchedulingSnapshot(**{**fields, "budgets": lambda namespace: [budget]})
    decision = decide(placed_pod("wanted", "", 3, 1), around)
    assert isinstance(decision, Unschedulable)
    assert decision.evict is not None
    assert [v.name for v in decision.evict.victims] == ["counted"]
    assert decision.evict.budget_violations == 0


def test_of_equal_harm_the_pods_that_have_run_the_shortest_go() -> None:
    old = placed_pod("old", "n1", 3, 0, creationTimestamp="2026-01-01T00:00:00Z")
    young = placed_pod("young", "n2", 3, 0, creationTimestamp="2026-01-02T00:00:00Z")
    decision = decide(placed_pod("wanted", "", 3, 1), make_snapshot(node("n1"), node("n2"), old, young))
    assert isinstance(decision, Unschedulable)
    assert decision.evict is not None
    assert [v.name for v in decision.evict.victims] == ["young"]
