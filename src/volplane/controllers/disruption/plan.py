"""How many pods of a budget are healthy, how many must be, and so how many may be evicted.

Percentages are of the replicas that the pods' owners want, not of the pods that exist: missing pods must not
allow more evictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct, structs

from volplane.api.core import Pod
from volplane.api.policy import PodDisruptionBudget, PodDisruptionBudgetStatus
from volplane.rules.disruption import DELETION_TIMEOUT, set_allowed_condition
from volplane.rules.steps import RecordEvent, normal, warning
from volplane.rules.waits import Wait, WaitReason
from volplane.rules.workloads import controller_of, fraction_of, is_ready


class SetBudgetStatus(Struct, frozen=True):
    status: PodDisruptionBudgetStatus


class UnknownScale(ValueError):
    """A pod whose owner has no number of replicas."""


def plan(
    budget: PodDisruptionBudget, pods: Sequence[Pod], scales: Mapping[str, int], now: datetime
) -> Iterator[SetBudgetStatus | Wait | RecordEvent]:
    """Steps for a budget, the pods it covers, and how many pods each of their owners (by uid) wants."""
    try:
        expected, desired = _count_expected(budget, pods, scales)
    except UnknownScale as failure:
        yield from _deny_all(budget, str(failure), now)
        return
    disrupted = _still_disrupted(budget, pods, now)
    healthy = sum(is_ready(p) and not p.is_deleting and p.name not in disrupted for p in pods)
    status = structs.replace(
        budget.status,
        observed_generation=budget.metadata.generation,
        # A budget without pods allows no disruption.
        disruptions_allowed=max(healthy - desired, 0) if expected > 0 else 0,
        current_healthy=healthy,
        desired_healthy=desired,
        expected_pods=expected,
        disrupted_pods=disrupted,
    )
    yield from _report(budget, set_allowed_condition(status, _stamp(now)))
    if not pods and budget.status.observed_generation != budget.metadata.generation:
        yield normal("NoPods", "No matching pods found")
    left = [DELETION_TIMEOUT - _age(since, now) for since in disrupted.values()]
    if left:
        yield Wait(WaitReason.EVICTED_POD_NOT_DELETED, seconds=max(min(left), 0.0))


def _report(budget: PodDisruptionBudget, status: PodDisruptionBudgetStatus) -> Iterator[SetBudgetStatus]:
    if status != budget.status:
        yield SetBudgetStatus(status)


def _deny_all(
    budget: PodDisruptionBudget, failure: str, now: datetime
) -> Iterator[SetBudgetStatus | RecordEvent]:
    """If pods cannot be counted, no disruption is allowed."""
    status = structs.replace(budget.status, disruptions_allowed=0)
    reports = list(_report(budget, set_allowed_condition(status, _stamp(now), failure=failure)))
    if reports:
        text = f"Failed to calculate the number of expected pods: {failure}"
        yield warning("CalculateExpectedPodCountFailed", text)
    yield from reports


def _count_expected(
    budget: PodDisruptionBudget, pods: Sequence[Pod], scales: Mapping[str, int]
) -> tuple[int, int]:
    """How many pods there should be, and how many of them must be healthy."""
    spec = budget.spec
    if spec.max_unavailable is not None:
        expected = _scale(pods, scales)
        away = fraction_of(spec.max_unavailable, expected, round_up=True, default=0)
        return expected, max(expected - away, 0)
    if isinstance(spec.min_available, str):
        expected = _scale(pods, scales)
        return expected, fraction_of(spec.min_available, expected, round_up=True, default=0)
    return (len(pods), spec.min_available) if spec.min_available is not None else (0, 0)


def _scale(pods: Sequence[Pod], scales: Mapping[str, int]) -> int:
    wanted: dict[str, int] = {}
    for pod in pods:
        owner = controller_of(pod)
        if owner is None:
            continue
        if owner.uid not in scales:
            raise UnknownScale(f'found no controllers for pod "{pod.name}"')
        wanted[owner.uid] = scales[owner.uid]
    return sum(wanted.values())


def _still_disrupted(budget: PodDisruptionBudget, pods: Sequence[Pod], now: datetime) -> dict[str, str]:
    """Evictions that were granted while the pod is not terminating yet."""
    granted = budget.status.disrupted_pods
    return {
        pod.name: granted[pod.name]
        for pod in pods
        if pod.name in granted and not pod.is_deleting and _age(granted[pod.name], now) < DELETION_TIMEOUT
    }


def _age(stamp: str, now: datetime) -> float:
    return (now - datetime.fromisoformat(stamp)).total_seconds()


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
