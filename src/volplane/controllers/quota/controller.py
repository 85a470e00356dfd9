"""Update the status of quotas, woken by quotas and by the claims of their namespace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from volplane.api.core import PersistentVolumeClaim, ResourceQuota
from volplane.controllers.quota.plan import SetQuotaStatus, plan
from volplane.loops.controller import Controller


class QuotaView(Struct, frozen=True):
    quota: ResourceQuota
    claims: Sequence[PersistentVolumeClaim]  # of its namespace


class ResourceQuotas(Controller[str, QuotaView, SetQuotaStatus]):
    name = "resourcequota-controller"
    workers = 5
    resync = 300.0

    def setup(self) -> None:
        self.quotas = self.watch(ResourceQuota, lambda old, new: [new.key] if new else [])
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim)

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        claim = new or old
        assert claim is not None
        yield from (quota.key for quota in self.quotas.namespace(claim.namespace))

    def view(self, key: str) -> QuotaView | None:
        quota = self.quotas.at(key)
        return QuotaView(quota, self.claims.namespace(quota.namespace)) if quota is not None else None

    def plan(self, view: QuotaView) -> Iterator[SetQuotaStatus]:
        return plan(view.quota, view.claims)

    async def act(self, key: str, view: QuotaView, step: SetQuotaStatus) -> None:
        quota = view.quota
        # A merge patch of a map must name removed keys.
        hard, used = dict.fromkeys(quota.status.hard), dict.fromkeys(quota.status.used)
        status = {"hard": {**hard, **step.hard}, "used": {**used, **step.used}}
        await self.client.patch(
            ResourceQuota,
            quota.name,
            quota.namespace,
            merge={"status": status},
            subresource="status",
            uid=quota.uid,
            missing_ok=True,
        )
