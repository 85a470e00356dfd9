"""The status of a quota. The API server enforces quotas by its own count, not by the status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from volplane.api.core import ResourceQuota
from volplane.rules.quotas.amounts import format_amounts
from volplane.rules.quotas.limits import limits_of
from volplane.rules.quotas.usage import ObjectUsage
from volplane.rules.steps import TICK
from volplane.rules.waits import Wait, WaitReason


class SetQuotaStatus(Struct, frozen=True):
    hard: Mapping[str, str]
    used: Mapping[str, str]


def plan(
    quota: ResourceQuota, usages: Mapping[str, Sequence[ObjectUsage]], now: datetime
) -> Iterator[SetQuotaStatus | Wait]:
    """`usages`: what the objects of each resource use; a resource that cannot be counted keeps its status."""
    limits = limits_of(quota)
    used = {name: amount for name, amount in quota.status.used.items() if name in quota.spec.hard}
    for resource, of_objects in usages.items():
        used |= format_amounts(limits.compute_used(resource, of_objects, now))
    if (dict(quota.status.hard), dict(quota.status.used)) != (dict(quota.spec.hard), used):
        yield SetQuotaStatus(quota.spec.hard, used)
    ends = [usage.ends for of_objects in usages.values() for usage in of_objects if usage.ends is not None]
    coming = [end for end in ends if end >= now]
    if coming:
        seconds = (min(coming) - now).total_seconds() + TICK
        yield Wait(WaitReason.TERMINATING_POD_COUNTS, seconds=seconds)
