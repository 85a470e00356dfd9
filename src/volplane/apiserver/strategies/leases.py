"""Leases: durations must be positive; everything else is between the holders."""

from __future__ import annotations

from volplane.api.coordination import Lease
from volplane.api.errors import Cause, forbidden, invalid
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategy import ApiCall, Strategy

STRATEGIES = ("OldestEmulationVersion",)


class LeaseStrategy(Strategy[Lease]):
    def validate_create(self, call: ApiCall, obj: Lease) -> list[Cause]:
        spec = obj.spec
        causes: list[Cause] = []
        if spec.lease_duration_seconds is not None and spec.lease_duration_seconds <= 0:
            message = "must be greater than 0"
            causes.append(invalid("spec.leaseDurationSeconds", spec.lease_duration_seconds, message))
        if spec.lease_transitions is not None:
            causes += checks.not_negative("spec.leaseTransitions", spec.lease_transitions)
        causes += checks.choice("spec.strategy", spec.strategy or None, STRATEGIES)
        if spec.preferred_holder and not spec.strategy:
            message = "may only be specified if `strategy` is defined"
            causes.append(forbidden("spec.preferredHolder", message))
        return causes
