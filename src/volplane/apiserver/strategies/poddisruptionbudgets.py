"""PodDisruptionBudgets: minAvailable or maxUnavailable, as a number or a percentage."""

from __future__ import annotations

from volplane.api.errors import Causes, invalid
from volplane.api.policy import PodDisruptionBudget
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.workloads import check_at_most_100_percent, check_int_or_percent
from volplane.apiserver.strategy import ApiCall, Strategy

POLICIES = ("AlwaysAllow", "IfHealthyBudget")


class PodDisruptionBudgetStrategy(Strategy[PodDisruptionBudget]):
    def validate_create(self, call: ApiCall, obj: PodDisruptionBudget) -> Causes:
        spec = obj.spec
        if spec.min_available is not None and spec.max_unavailable is not None:
            yield invalid("spec", checks.to_plain(spec), "minAvailable and maxUnavailable cannot be both set")
        for name, value in (("minAvailable", spec.min_available), ("maxUnavailable", spec.max_unavailable)):
            if value is not None:
                yield from check_int_or_percent(f"spec.{name}", value)
                yield from check_at_most_100_percent(f"spec.{name}", value)
        yield from checks.label_selector("spec.selector", spec.selector)
        policy = spec.unhealthy_pod_eviction_policy
        yield from checks.choice("spec.unhealthyPodEvictionPolicy", policy, POLICIES)

    def validate_status(self, call: ApiCall, old: PodDisruptionBudget, new: PodDisruptionBudget) -> Causes:
        names = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
        yield from checks.not_negative_fields("status", new.status, *names)
