"""What a quota's status has to say. Only what claims use is counted; the server refuses by its own count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from volplane.api.core import PersistentVolumeClaim, ResourceQuota
from volplane.rules import quotas


class Tell(Struct, frozen=True):
    hard: Mapping[str, str]
    used: Mapping[str, str]


def plan(quota: ResourceQuota, claims: Iterable[PersistentVolumeClaim]) -> Iterator[Tell]:
    used = quotas.spelled(quotas.used(quota, claims))
    if (dict(quota.status.hard), dict(quota.status.used)) != (dict(quota.spec.hard), used):
        yield Tell(quota.spec.hard, used)
