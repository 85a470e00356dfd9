"""Watches claims that request more storage, and names who has to expand their volumes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_never

from msgspec import Struct

from volplane.api.annotations import STORAGE_RESIZER_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.base import clock
from volplane.controllers.expand.plan import (
    SetResizer,
    StartNodeExpansion,
    Step,
    is_wanted,
    plan,
    relevant_fields,
)
from volplane.loops.controller import Controller
from volplane.rules import resizing
from volplane.rules.resizing import ResizeState
from volplane.rules.steps import RecordEvent


class ExpandView(Struct, frozen=True):
    claim: PersistentVolumeClaim
    volume: PersistentVolume | None


class Expansion(Controller[str, ExpandView, Step]):
    name = "persistentvolume-expander-controller"
    component = "volume_expand"
    workers = 10

    def setup(self) -> None:
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim)
        self.volumes = self.watch(PersistentVolume)

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        if new is not None and is_wanted(new) and relevant_fields(old) != relevant_fields(new):
            yield new.key

    def view(self, key: str) -> ExpandView | None:
        claim = self.claims.at(key)
        return ExpandView(claim, self.volumes.get(claim.spec.volume_name)) if claim is not None else None

    def plan(self, view: ExpandView) -> Iterator[Step | RecordEvent]:
        return plan(view.claim, view.volume)

    def subject(self, view: ExpandView) -> PersistentVolumeClaim:
        return view.claim

    async def act(self, key: str, view: ExpandView, step: Step) -> None:
        match step:
            case SetResizer(driver):
                await self._patch(
                    view.claim, {"metadata": {"annotations": {STORAGE_RESIZER_ANNOTATION: driver}}}
                )
            case StartNodeExpansion(size):
                await self._start_node_expansion(view.claim, size)
            case _:
                assert_never(step)

    async def _start_node_expansion(self, claim: PersistentVolumeClaim, size: str) -> None:
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
            "allocatedResourceStatuses": {"storage": ResizeState.NODE_PENDING},
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
