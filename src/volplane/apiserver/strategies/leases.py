"""Leases: durations and transitions. The holders agree on the rest among themselves."""

from __future__ import annotations

from volplane.api.coordination import Lease
from volplane.api.errors import Causes, forbidden, invalid
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategy import ApiCall, Strategy

STRATEGIES = ("OldestEmulationVersion",)


class LeaseStrategy(Strategy[Lease]):
    def validate_create(self, call: ApiCall, obj: Lease) -> Causes:
        spec = obj.spec
        if spec.lease_duration_seconds is not None and spec.lease_duration_seconds <= 0:
            yield invalid("spec.leaseDurationSeconds", spec.lease_duration_seconds, "must be greater than 0")
        if spec.lease_transitions is not None:
            yield from checks.not_negative("spec.leaseTransitions", spec.lease_transitions)
        yield from checks.choice("spec.strategy", spec.strategy or None, STRATEGIES)
        if spec.preferred_holder and not spec.strategy:
            yield forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined")
