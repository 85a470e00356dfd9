"""Keeps the status of quotas, woken by quotas and by the claims of their namespace."""

from __future__ import annotations

from collections.abc import Iterator

from volplane.api.core import PersistentVolumeClaim, ResourceQuota
from volplane.controllers.quota.plan import Tell, plan
from volplane.loops.controller import Controller


class Quotas(Controller[str]):
    name = "resourcequota-controller"
    workers = 5
    resync = 300.0

    def setup(self) -> None:
        self.quotas = self.watch(ResourceQuota, lambda old, new: [new.key] if new else [])
        self.claims = self.watch(PersistentVolumeClaim, self._claim_changed)

    def _claim_changed(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        claim = new or old
        assert claim is not None
        yield from (quota.key for quota in self.quotas.namespace(claim.namespace))

    async def reconcile(self, key: str) -> None:
        quota = self.quotas.at(key)
        if quota is None:
            return
        for step in plan(quota, self.claims.namespace(quota.namespace)):
            await self._tell(quota, step)

    async def _tell(self, quota: ResourceQuota, step: Tell) -> None:
        gone = dict.fromkeys(quota.status.hard), dict.fromkeys(quota.status.used)
        status = {"hard": {**gone[0], **step.hard}, "used": {**gone[1], **step.used}}
        await self.client.patch(
            ResourceQuota,
            quota.name,
            quota.namespace,
            merge={"status": status},
            subresource="status",
            uid=quota.uid,
            missing_ok=True,
        )
