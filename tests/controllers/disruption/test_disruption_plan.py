"""PodDisruptionBudget: situation → numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from volplane.api import codec
from volplane.api.core import Pod
from volplane.api.policy import PodDisruptionBudget, PodDisruptionBudgetStatus
from volplane.base import clock
from volplane.controllers.disruption.plan import SetBudgetStatus, plan
from volplane.rules.steps import RecordEvent
from volplane.rules.waits import Wait

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCALES = {"set": 4}


def stamp(ago: float) -> str:
    return clock.stamp(NOW - timedelta(seconds=ago))


def budget(status: dict[str, Any] | None = None, **spec: Any) -> PodDisruptionBudget:
    metadata = {"name": "pdb", "namespace": "ns", "uid": "b", "generation": 2}
    whole = {"metadata": metadata, "spec": spec, "status": status or {}}
    return codec.convert(PodDisruptionBudget, whole)


def pod(name: str, *, ready: bool = True, going: bool = False, owner: str = "set") -> Pod:
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "s", "uid": owner, "controller": True}
    metadata: dict[str, Any] = {"name": name, "namespace": "ns"}
    if owner:
        metadata["ownerReferences"] = [reference]
    if going:
        metadata["deletionTimestamp"] = stamp(0)
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return codec.convert(Pod, {"metadata": metadata, "status": {"conditions": conditions}})


FOUR = [pod(f"p{n}") for n in range(4)]
THREE = FOUR[:3]


def status_of(wanted: PodDisruptionBudget, pods: list[Pod]) -> PodDisruptionBudgetStatus:
    (report,) = [s for s in plan(wanted, pods, SCALES, NOW) if isinstance(s, SetBudgetStatus)]
    return report.status


@pytest.mark.parametrize(
    ("spec", "pods", "allowed", "healthy", "desired", "expected"),
    [
        pytest.param({"minAvailable": 2}, FOUR, 2, 4, 2, 4, id="a number that must stay"),
        pytest.param({"minAvailable": 4}, FOUR, 0, 4, 4, 4, id="all must stay"),
        pytest.param({"minAvailable": 2}, THREE, 1, 3, 2, 3, id="a number counts the pods that are there"),
        pytest.param({"minAvailable": "50%"}, THREE, 1, 3, 2, 4, id="a share is of what is wanted"),
        pytest.param({"minAvailable": "60%"}, FOUR, 1, 4, 3, 4, id="rounded up"),
        pytest.param({"maxUnavailable": 1}, FOUR, 1, 4, 3, 4, id="one may be missing"),
        pytest.param({"maxUnavailable": 1}, THREE, 0, 3, 3, 4, id="one is missing already"),
        pytest.param({"maxUnavailable": "30%"}, FOUR, 2, 4, 2, 4, id="a share may be missing, rounded up"),
        pytest.param({"maxUnavailable": 0}, FOUR, 0, 4, 4, 4, id="none may be missing"),
        pytest.param({"maxUnavailable": 9}, FOUR, 4, 4, 0, 4, id="all may be missing"),
        pytest.param({"minAvailable": 0}, [], 0, 0, 0, 0, id="nothing covered allows nothing"),
        pytest.param(
            {"minAvailable": 2},
            [*THREE, pod("x", ready=False)],
            1,
            3,
            2,
            4,
            id="an unready pod does not count",
        ),
        pytest.param(
            {"minAvailable": 2}, [*THREE, pod("x", going=True)], 1, 3, 2, 4, id="nor is one that goes"
        ),
        pytest.param(
            {"maxUnavailable": 1},
            [*THREE, pod("x", owner="")],
            1,
            4,
            3,
            4,
            id="a pod without an owner is not expected",
        ),
    ],
)
def test_what_is_allowed(
    spec: dict[str, Any], pods: list[Pod], allowed: int, healthy: int, desired: int, expected: int
) -> None:
    status = status_of(budget(**spec), pods)
    numbers = (
        status.disruptions_allowed,
        status.current_healthy,
        status.desired_healthy,
        status.expected_pods,
    )
    assert numbers == (allowed, healthy, desired, expected)
    assert status.observed_generation == 2
    (condition,) = status.conditions
    assert (condition.type, condition.status) == ("DisruptionAllowed", "True" if allowed else "False")
    assert condition.reason == ("SufficientPods" if allowed else "InsufficientPods")


def test_an_eviction_that_was_granted_counts_until_it_shows_or_two_minutes() -> None:
    granted = {"disruptedPods": {"p0": stamp(50), "p1": stamp(121), "gone": stamp(1)}}
    steps = list(plan(budget(granted, minAvailable=1), FOUR, SCALES, NOW))
    (report,) = [s for s in steps if isinstance(s, SetBudgetStatus)]
    assert report.status.disrupted_pods == {"p0": stamp(50)}
    assert (report.status.current_healthy, report.status.disruptions_allowed) == (3, 2)
    assert [s.seconds for s in steps if isinstance(s, Wait)] == [70.0]


def test_pods_that_nobody_scales_make_it_fail_safe() -> None:
    steps = list(plan(budget(maxUnavailable=1), [pod("x", owner="daemon")], SCALES, NOW))
    (report,) = [s for s in steps if isinstance(s, SetBudgetStatus)]
    assert report.status.disruptions_allowed == 0
    (condition,) = report.status.conditions
    assert (condition.reason, condition.message) == ("SyncFailed", 'found no controllers for pod "x"')
    (event,) = [s for s in steps if isinstance(s, RecordEvent)]
    assert event.reason == "CalculateExpectedPodCountFailed"
    reported = structs.replace(budget(maxUnavailable=1), status=report.status)
    assert list(plan(reported, [pod("x", owner="daemon")], SCALES, NOW)) == []


def test_a_budget_at_rest_writes_nothing() -> None:
    wanted = budget(minAvailable=2)
    rested = structs.replace(wanted, status=status_of(wanted, FOUR))
    assert list(plan(rested, FOUR, SCALES, NOW + timedelta(hours=1))) == []
