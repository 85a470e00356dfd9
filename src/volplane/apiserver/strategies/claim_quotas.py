"""ResourceQuota for claims: a claim that exceeds a namespace's quota is forbidden.

Usage is counted from the claims themselves: the quota's status may be outdated. Claims that were admitted but
are not stored yet count too; otherwise two claims created at the same time could both pass.
"""

from __future__ import annotations

from volplane.api import quantity
from volplane.api.core import PersistentVolumeClaim, ResourceQuota
from volplane.api.errors import Forbidden
from volplane.apiserver.strategy import ApiCall
from volplane.base import clock
from volplane.rules import quotas

PENDING_SECONDS = 10.0  # how long an admitted claim counts before it is stored


class ClaimQuotaCheck:
    def __init__(self) -> None:
        self._admitted: dict[str, tuple[PersistentVolumeClaim, float]] = {}  # key → claim, expiry

    async def check(
        self, call: ApiCall, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim
    ) -> None:
        """Raises Forbidden."""
        found = await call.reader.list(ResourceQuota, call.namespace)
        mine = [q for q in found if any(quotas.is_of_claims(name) for name in q.spec.hard)]
        if not mine:
            return
        there = {c.key: c for c in await call.reader.list(PersistentVolumeClaim, call.namespace)}
        key = f"{call.namespace}/{new.name}"
        others = [c for k, c in (there | self._list_pending_claims(call, there)).items() if k != key]
        for quota in mine:
            self._check(call, quota, others, old, new)
        if old is None and new.name and not call.dry_run:
            self._admitted[key] = (new, clock.now() + PENDING_SECONDS)

    def _list_pending_claims(
        self, call: ApiCall, there: dict[str, PersistentVolumeClaim]
    ) -> dict[str, PersistentVolumeClaim]:
        now = clock.now()
        self._admitted = {k: v for k, v in self._admitted.items() if v[1] > now and k not in there}
        prefix = f"{call.namespace}/"
        return {k: claim for k, (claim, _) in self._admitted.items() if k.startswith(prefix)}

    def _check(
        self,
        call: ApiCall,
        quota: ResourceQuota,
        others: list[PersistentVolumeClaim],
        old: PersistentVolumeClaim | None,
        new: PersistentVolumeClaim,
    ) -> None:
        before = quotas.compute_used(quota, others if old is None else [*others, old])
        after = quotas.compute_used(quota, [*others, new])
        over = [
            name
            for name, amount in after.items()
            if amount > before[name] and amount > quantity.value(quota.spec.hard[name])
        ]
        if not over:
            return
        asked = quotas.format_amounts({name: after[name] - before[name] for name in sorted(over)})
        used = quotas.format_amounts({name: before[name] for name in sorted(over)})
        hard = {name: quota.spec.hard[name] for name in sorted(over)}
        raise Forbidden.to(
            call.kind,
            new.name,
            f"exceeded quota: {quota.name}, requested: {_format_amounts(asked)}, "
            f"used: {_format_amounts(used)}, limited: {_format_amounts(hard)}",
        )


def _format_amounts(amounts: dict[str, str]) -> str:
    return ",".join(f"{name}={amount}" for name, amount in amounts.items())
