"""Pod disruption budgets: which pods they cover, and their condition.

An eviction reduces `disruptionsAllowed` and notes the pod before the pod is deleted. Until the pod is seen
terminating, or for two minutes, it counts as disrupted.
"""

from __future__ import annotations

from msgspec import structs

from volplane.api.core import Pod
from volplane.api.meta import Condition
from volplane.api.policy import PodDisruptionBudget, PodDisruptionBudgetStatus
from volplane.api.selectors import InvalidSelector, LabelMatcher

CONDITION = "DisruptionAllowed"
SYNC_FAILED = "SyncFailed"
DELETION_TIMEOUT = 120.0  # seconds until a granted eviction no longer counts if the pod is not terminating


def covers(budget: PodDisruptionBudget, pod: Pod) -> bool:
    if budget.namespace != pod.namespace:
        return False
    try:
        return LabelMatcher.of(budget.spec.selector).matches(pod.metadata.labels)
    except InvalidSelector:
        return False


def set_allowed_condition(
    status: PodDisruptionBudgetStatus, now: str, *, failure: str = ""
) -> PodDisruptionBudgetStatus:
    """The status with the DisruptionAllowed condition that follows from its numbers."""
    allowed = status.disruptions_allowed > 0 and not failure
    reason = SYNC_FAILED if failure else "SufficientPods" if allowed else "InsufficientPods"
    held = next((c for c in status.conditions if c.type == CONDITION), None)
    word = "True" if allowed else "False"
    since = held.last_transition_time if held and held.status == word else now
    made = Condition(
        type=CONDITION,
        status=word,
        observed_generation=status.observed_generation,
        last_transition_time=since,
        reason=reason,
        message=failure,
    )
    others = tuple(c for c in status.conditions if c.type != CONDITION)
    return structs.replace(status, conditions=(*others, made))
