"""Leases: durations must be positive; everything else is between the holders."""

from __future__ import annotations

from volplane.api.coordination import Lease
from volplane.api.errors import Cause, forbidden, invalid, not_supported
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategy import ApiCall, Strategy

STRATEGIES = ("OldestEmulationVersion",)


class LeaseStrategy(Strategy[Lease]):
    def validate_create(self, call: ApiCall, obj: Lease) -> list[Cause]:
        spec = obj.spec
        wrong: list[Cause] = []
        if spec.lease_duration_seconds is not None and spec.lease_duration_seconds <= 0:
            told = "must be greater than 0"
            wrong.append(invalid("spec.leaseDurationSeconds", spec.lease_duration_seconds, told))
        if spec.lease_transitions is not None:
            wrong += checks.not_negative("spec.leaseTransitions", spec.lease_transitions)
        if spec.strategy and spec.strategy not in STRATEGIES:
            wrong.append(not_supported("spec.strategy", spec.strategy, STRATEGIES))
        if spec.preferred_holder and not spec.strategy:
            told = "may only be specified if `strategy` is defined"
            wrong.append(forbidden("spec.preferredHolder", told))
        return wrong

    def validate_update(self, call: ApiCall, old: Lease, new: Lease) -> list[Cause]:
        return self.validate_create(call, new)
