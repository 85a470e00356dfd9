"""Watches claims that ask for more, and says who is to do something about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_never

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.base import clock
from volplane.controllers.expand.plan import HandOver, PassOn, facts, is_wanted, plan
from volplane.loops.controller import Controller
from volplane.rules import resizing
from volplane.rules.resizing import State
from volplane.rules.steps import Say


class Expansion(Controller[str]):
    name = "persistentvolume-expander-controller"
    component = "volume_expand"
    workers = 10

    def setup(self) -> None:
        self.claims = self.watch(PersistentVolumeClaim, self._changed)
        self.volumes = self.watch(PersistentVolume)

    def _changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> Iterator[str]:
        if new is not None and is_wanted(new) and facts(old) != facts(new):
            yield new.key

    async def reconcile(self, key: str) -> None:
        claim = self.claims.at(key)
        if claim is None:
            return
        for step in plan(claim, self.volumes.get(claim.spec.volume_name)):
            match step:
                case HandOver(driver):
                    await self._patch(claim, {"metadata": {"annotations": {resizing.RESIZER: driver}}})
                case PassOn(size):
                    await self._pass_on(claim, size)
                case Say(type, reason, message):
                    self.events.event(claim, type, reason, message)
                case _:
                    assert_never(step)

    async def _pass_on(self, claim: PersistentVolumeClaim, size: str) -> None:
        """The volume's object first: the node compares it with what it has mounted."""
        grown = {"spec": {"capacity": {"storage": size}}}
        await self.client.patch(PersistentVolume, claim.spec.volume_name, merge=grown, missing_ok=True)
        pending = {
            "type": resizing.FILE_SYSTEM_PENDING,
            "status": "True",
            "lastTransitionTime": clock.stamp(),
            "message": resizing.WAITING,
        }
        status = {
            "allocatedResources": {"storage": size},
            "allocatedResourceStatuses": {"storage": State.NODE_PENDING},
            "conditions": resizing.conditions(claim, [pending]),
        }
        await self._patch(claim, {"status": status}, subresource="status")

    async def _patch(self, claim: PersistentVolumeClaim, patch: Any, subresource: str = "") -> None:
        await self.client.patch(
            PersistentVolumeClaim,
            claim.name,
            claim.namespace,
            strategic=patch,
            subresource=subresource,
            uid=claim.uid,
            missing_ok=True,
        )
