"""What one ResourceQuota limits, how much of that is used, and whether more fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec import Struct

from volplane.api.core import ResourceQuota, ScopedResourceSelectorRequirement
from volplane.rules.quotas.amounts import NOTHING, Amounts, add, format_amounts, read_amounts, subtract
from volplane.rules.quotas.usage import CLASS_SCOPES, ObjectUsage, limited_resource


class QuotaLimits(Struct, frozen=True):
    """A quota, prepared for counting."""

    name: str
    hard: Amounts
    scopes: tuple[ScopedResourceSelectorRequirement, ...]  # all must hold
    limited: Mapping[str, tuple[str, ...]]  # resource → the names in `hard` that its objects use

    def covers(self, usage: ObjectUsage) -> bool:
        return all(_is_in_scope(usage, scope) for scope in self.scopes)

    def compute_used(self, resource: str, usages: Iterable[ObjectUsage], now: datetime) -> Amounts:
        """What objects of a resource use of this quota."""
        total = dict.fromkeys(self.limited.get(resource, ()), NOTHING)
        for usage in usages:
            if self.covers(usage):
                for name, amount in usage.at(now).items():
                    if name in total:
                        total[name] = add(total[name], amount)
        return total

    def compute_increase(
        self, resource: str, old: ObjectUsage | None, new: ObjectUsage, now: datetime
    ) -> Amounts:
        """What a write would use in addition, without zeros. `old`: the object before an update."""
        before = self.compute_used(resource, () if old is None else (old,), now)
        after = self.compute_used(resource, (new,), now)
        more = {name: subtract(amount, before[name]) for name, amount in after.items()}
        return {name: amount for name, amount in more.items() if amount.nanos}

    def describe_excess(self, used: Amounts, increase: Amounts) -> str:
        """Upstream's message if the increase does not fit; "" if it does."""
        over = sorted(n for n in increase if add(used[n], increase[n]).nanos > self.hard[n].nanos)
        if not over:
            return ""
        requested, have, limited = (_format_some(a, over) for a in (increase, used, self.hard))
        return f"exceeded quota: {self.name}, requested: {requested}, used: {have}, limited: {limited}"


def limits_of(quota: ResourceQuota) -> QuotaLimits:
    limited: dict[str, tuple[str, ...]] = {}
    for name in quota.spec.hard:
        if resource := limited_resource(name):
            limited[resource] = (*limited.get(resource, ()), name)
    selector = quota.spec.scope_selector
    scopes = (
        *(ScopedResourceSelectorRequirement(scope_name=s, operator="Exists") for s in quota.spec.scopes),
        *(selector.match_expressions if selector is not None else ()),
    )
    return QuotaLimits(quota.name, read_amounts(quota.spec.hard), scopes, limited)


def _is_in_scope(usage: ObjectUsage, scope: ScopedResourceSelectorRequirement) -> bool:
    if scope.scope_name not in CLASS_SCOPES:
        return scope.scope_name in usage.scopes
    named = usage.classes.get(scope.scope_name)
    if named is None:  # objects of this kind name no such class
        return False
    match scope.operator:
        case "In":
            return not named.isdisjoint(scope.values)
        case "NotIn":
            return not named or not named.issubset(scope.values)
        case "Exists":
            return bool(named)
        case "DoesNotExist":
            return not named
    return False


def _format_some(amounts: Amounts, names: Iterable[str]) -> str:
    chosen = format_amounts({name: amounts[name] for name in names})
    return ",".join(f"{name}={amount}" for name, amount in chosen.items())
