"""Claims beyond a namespace's quota are refused.

What is used is counted from the claims themselves, not read from a status that may be behind. The subtle
thing: claims that were let in and are not stored yet count too, or two that come at once would both fit.
"""

from __future__ import annotations

from volplane.api import quantity
from volplane.api.core import PersistentVolumeClaim, ResourceQuota
from volplane.api.errors import Forbidden
from volplane.apiserver.strategy import Call
from volplane.base import clock
from volplane.rules import quotas

EXPECTED = 10.0  # seconds that a claim which was let in is believed to be on its way


class Quotas:
    def __init__(self) -> None:
        self._admitted: dict[str, tuple[PersistentVolumeClaim, float]] = {}  # key → the claim, until when

    async def check(self, call: Call, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim) -> None:
        """Raises Forbidden."""
        found = await call.reader.list(ResourceQuota, call.namespace)
        mine = [q for q in found if any(quotas.is_of_claims(name) for name in q.spec.hard)]
        if not mine:
            return
        there = {c.key: c for c in await call.reader.list(PersistentVolumeClaim, call.namespace)}
        key = f"{call.namespace}/{new.name}"
        others = [c for k, c in (there | self._on_their_way(call, there)).items() if k != key]
        for quota in mine:
            self._check(call, quota, others, old, new)
        if old is None and new.name and not call.dry_run:
            self._admitted[key] = (new, clock.now() + EXPECTED)

    def _on_their_way(
        self, call: Call, there: dict[str, PersistentVolumeClaim]
    ) -> dict[str, PersistentVolumeClaim]:
        now = clock.now()
        self._admitted = {k: v for k, v in self._admitted.items() if v[1] > now and k not in there}
        prefix = f"{call.namespace}/"
        return {k: claim for k, (claim, _) in self._admitted.items() if k.startswith(prefix)}

    def _check(
        self,
        call: Call,
        quota: ResourceQuota,
        others: list[PersistentVolumeClaim],
        old: PersistentVolumeClaim | None,
        new: PersistentVolumeClaim,
    ) -> None:
        before = quotas.used(quota, others if old is None else [*others, old])
        after = quotas.used(quota, [*others, new])
        over = [
            name
            for name, amount in after.items()
            if amount > before[name] and amount > quantity.value(quota.spec.hard[name])
        ]
        if not over:
            return
        asked = quotas.spelled({name: after[name] - before[name] for name in sorted(over)})
        used = quotas.spelled({name: before[name] for name in sorted(over)})
        hard = {name: quota.spec.hard[name] for name in sorted(over)}
        raise Forbidden.to(
            call.kind,
            new.name,
            f"exceeded quota: {quota.name}, requested: {_listed(asked)}, used: {_listed(used)}, "
            f"limited: {_listed(hard)}",
        )


def _listed(amounts: dict[str, str]) -> str:
    return ",".join(f"{name}={amount}" for name, amount in amounts.items())
