"""The status of a quota. Only what claims use is counted; the API server enforces quotas by its own count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from volplane.api.core import PersistentVolumeClaim, ResourceQuota
from volplane.rules import quotas


class SetQuotaStatus(Struct, frozen=True):
    hard: Mapping[str, str]
    used: Mapping[str, str]


def plan(quota: ResourceQuota, claims: Iterable[PersistentVolumeClaim]) -> Iterator[SetQuotaStatus]:
    used = quotas.format_amounts(quotas.compute_used(quota, claims))
    if (dict(quota.status.hard), dict(quota.status.used)) != (dict(quota.spec.hard), used):
        yield SetQuotaStatus(quota.spec.hard, used)
