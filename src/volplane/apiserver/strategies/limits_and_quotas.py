"""LimitRanges and ResourceQuotas. They are enforced for claims only: see `claim_limits`, `claim_quotas`."""

from __future__ import annotations

from volplane.api import quantity
from volplane.api.core import LimitRange, LimitRangeItem, ResourceQuota
from volplane.api.errors import Causes, invalid
from volplane.apiserver.strategies import checks
from volplane.apiserver.strategies.checks import NOT_NEGATIVE
from volplane.apiserver.strategy import ApiCall, Strategy

_TYPES = ("Container", "PersistentVolumeClaim", "Pod")


class LimitRangeStrategy(Strategy[LimitRange]):
    def validate_create(self, call: ApiCall, obj: LimitRange) -> Causes:
        seen: set[str] = set()
        for at, item in enumerate(obj.spec.limits):
            here = f"spec.limits[{at}]"
            if item.type not in _TYPES and "/" not in item.type:
                yield invalid(f"{here}.type", item.type, "must be a standard limit type or fully qualified")
            yield from checks.not_duplicate(f"{here}.type", item.type, seen)
            yield from _order(here, item)


def _order(path: str, item: LimitRangeItem) -> Causes:
    for name, least in item.min.items():
        most = item.max.get(name)
        if most is not None and quantity.parse(least) > quantity.parse(most):
            yield invalid(f"{path}.min[{name}]", least, f"min value {least} is greater than max value {most}")


class ResourceQuotaStrategy(Strategy[ResourceQuota]):
    def validate_create(self, call: ApiCall, obj: ResourceQuota) -> Causes:
        return [
            invalid(f"spec.hard[{name}]", amount, NOT_NEGATIVE)
            for name, amount in sorted(obj.spec.hard.items())
            if quantity.parse(amount) < 0
        ]
