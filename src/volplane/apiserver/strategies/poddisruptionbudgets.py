"""Disruption budgets: one of two numbers, each a count or a share."""

from __future__ import annotations

from volplane.api.errors import Cause, invalid
from volplane.api.policy import PodDisruptionBudget
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.workloads import check_at_most_100_percent, check_int_or_percent
from volplane.apiserver.strategy import ApiCall, Strategy

POLICIES = ("AlwaysAllow", "IfHealthyBudget")


class PodDisruptionBudgetStrategy(Strategy[PodDisruptionBudget]):
    def validate_create(self, call: ApiCall, obj: PodDisruptionBudget) -> list[Cause]:
        spec, causes = obj.spec, list[Cause]()
        if spec.min_available is not None and spec.max_unavailable is not None:
            message = "minAvailable and maxUnavailable cannot be both set"
            causes.append(invalid("spec", checks.to_plain(spec), message))
        for name, value in (("minAvailable", spec.min_available), ("maxUnavailable", spec.max_unavailable)):
            if value is not None:
                causes += check_int_or_percent(f"spec.{name}", value) + check_at_most_100_percent(
                    f"spec.{name}", value
                )
        causes += checks.label_selector("spec.selector", spec.selector)
        policy = spec.unhealthy_pod_eviction_policy
        causes += checks.choice("spec.unhealthyPodEvictionPolicy", policy, POLICIES)
        return causes

    def validate_status(
        self, call: ApiCall, old: PodDisruptionBudget, new: PodDisruptionBudget
    ) -> list[Cause]:
        status = new.status
        causes = checks.not_negative("status.disruptionsAllowed", status.disruptions_allowed)
        causes += checks.not_negative("status.currentHealthy", status.current_healthy)
        causes += checks.not_negative("status.desiredHealthy", status.desired_healthy)
        return causes + checks.not_negative("status.expectedPods", status.expected_pods)
