"""Claims that name another VolumeAttributesClass: noted on the claim, asked of the driver, told to both.

Upstream looks again at a class that was missing only when the claim changes; here the class's coming wakes
its claims.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, assert_never

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.storage import VolumeAttributesClass
from volplane.base import clock, trace
from volplane.client.client import Client
from volplane.csi import v1
from volplane.csi.outcome import CallError, Code, classify
from volplane.loops.controller import RetryableError
from volplane.loops.events import Recorder
from volplane.rules import binding, resizing
from volplane.rules.steps import Say, Wait
from volplane.sidecars import Driver, secrets
from volplane.sidecars.resizer.asking import COMPONENT, Asker
from volplane.sidecars.resizer.modify import plan as plans
from volplane.sidecars.resizer.modify.plan import (
    MODIFY_ERROR,
    MODIFYING,
    Cancel,
    MarkPending,
    Memory,
    Modify,
    Start,
    Status,
)
from volplane.sidecars.resizer.settings import Settings


class Modifications(Asker):
    name = f"{COMPONENT}-modify"

    def __init__(self, client: Client, driver: Driver, settings: Settings, *, events: Recorder) -> None:
        super().__init__(client, driver, settings, events=events)
        self._settled: set[str] = set()  # uids of claims whose last try failed for good

    def setup(self) -> None:
        self.claims = self.watch(PersistentVolumeClaim, self._claim_changed)
        self.volumes = self.watch(PersistentVolume, self._volume_changed)
        self.classes = self.watch(VolumeAttributesClass, self._class_changed)
        self.by_class = self.claims.index("attributes classes", plans.claims_classes)

    # --- whom a change wakes

    def _claim_changed(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        if new is None:
            if old is not None:
                self._settled.discard(old.uid)
                self.soon(old)
        elif not plans.is_wanted(new) and (old is None or not plans.is_wanted(old)):
            return
        elif old is new or plans.claim_facts(old) != plans.claim_facts(new):
            yield new.key

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterator[str]:
        if old is None and new is not None and new.spec.claim_ref is not None:
            claim = self.claims.at(binding.claim_key(new))
            if claim is not None and plans.is_wanted(claim):
                yield claim.key

    def _class_changed(
        self, old: VolumeAttributesClass | None, new: VolumeAttributesClass | None
    ) -> Iterator[str]:
        if old is None and new is not None:
            yield from (claim.key for claim in self.by_class[new.name])

    # --- the work

    async def reconcile(self, key: str) -> None:
        claim = self.claims.at(key)
        if claim is None:
            return
        volume = self.volumes.get(claim.spec.volume_name)
        memory = Memory(claim.uid in self._settled, self.slow_for(claim))
        for step in plans.plan(claim, volume, self.driver.name, memory, self.classes.get):
            match step:
                case MarkPending():
                    claim = await self._mark(claim, {"status": Status.PENDING})
                case Start(target):
                    claim = await self._start(claim, target)
                case Modify(target):
                    assert volume is not None
                    await self._modify(claim, volume, target)
                case Cancel():
                    gone = resizing.conditions(claim, drop=(MODIFYING,))
                    await self.tell_claim(claim, {"status": {"conditions": gone}})
                case Say(type, reason, message):
                    self.events.event(claim, type, reason, message)
                case Wait(seconds, why):
                    self.queue.later(key, seconds, why)
                case _:
                    assert_never(step)

    def slow_for(self, claim: PersistentVolumeClaim) -> float:
        status = claim.status.modify_volume_status
        wanted = claim.spec.volume_attributes_class_name
        if status is None or status.target_volume_attributes_class_name != wanted:
            self.soon(claim)  # another class may do
        return super().slow_for(claim)

    async def _start(self, claim: PersistentVolumeClaim, target: str) -> PersistentVolumeClaim:
        told = [_condition(MODIFYING, f'Modifying volume to "{target}" is in progress.')]
        status = {"status": Status.IN_PROGRESS, "targetVolumeAttributesClassName": target}
        claim = await self._mark(claim, status, told)
        self._settled.discard(claim.uid)  # from here on it is open
        return claim

    async def _mark(
        self,
        claim: PersistentVolumeClaim,
        status: Mapping[str, Any],
        told: Sequence[dict[str, Any]] = (),
    ) -> PersistentVolumeClaim:
        patch: dict[str, Any] = {"modifyVolumeStatus": status}
        if changes := resizing.conditions(claim, told):
            patch["conditions"] = changes
        return await self.move(claim, {"status": patch})

    async def _modify(
        self, claim: PersistentVolumeClaim, volume: PersistentVolume, target: VolumeAttributesClass
    ) -> None:
        assert volume.spec.csi is not None
        extra = self.settings.extra_modify_metadata
        try:
            request = v1.ControllerModifyVolumeRequest(
                volume_id=volume.spec.csi.volume_handle,
                secrets=await secrets(self.client, plans.secret(volume)),
                mutable_parameters=plans.parameters(claim, volume, target, extra=extra),
            )
            await self.call("ControllerModifyVolume", request, volume)
        except CallError as error:
            return await self._judge(claim, target.name, error)
        await self._complete(claim, volume, target.name)

    async def _complete(self, claim: PersistentVolumeClaim, volume: PersistentVolume, target: str) -> None:
        self._settled.discard(claim.uid)
        self.soon(claim)
        with trace.span(COMPONENT, "modified", f"pvc/{claim.key}", target=target):
            await self.tell_volume(volume, {"spec": {"volumeAttributesClassName": target}})
            status = {
                "currentVolumeAttributesClassName": target,
                "modifyVolumeStatus": None,
                "conditions": resizing.conditions(claim, drop=(MODIFYING, MODIFY_ERROR)),
            }
            await self.tell_claim(claim, {"status": status})
        self.events.normal(
            claim,
            "VolumeModifySuccessful",
            f"external resizer modified volume {claim.name} with vac {target} successfully",
        )
        self.queue.add(claim.key)  # the claim may have named another class meanwhile

    async def _judge(self, claim: PersistentVolumeClaim, target: str, error: CallError) -> None:
        why, progress = str(error), f'Modifying volume to "{target}" failed. Waiting for retry.'
        infeasible = error.code is Code.INVALID_ARGUMENT
        if classify(error).settled:
            self._settled.add(claim.uid)
        else:
            self._settled.discard(claim.uid)
            progress = f'Modifying volume to "{target}" is still in progress.'
            why += f". Still modifying to VAC {target}"
        told = [
            _condition(MODIFYING, progress),
            _condition(MODIFY_ERROR, error.message, error.code.spoken),
        ]
        reached = {"status": Status.INFEASIBLE if infeasible else Status.IN_PROGRESS}
        status = {"modifyVolumeStatus": reached, "conditions": resizing.conditions(claim, told)}
        await self.tell_claim(claim, {"status": status})
        self.events.warning(claim, "VolumeModifyFailed", why)
        if not infeasible:
            raise RetryableError(why) from error
        self.slowly(claim, why)


def _condition(type: str, message: str, reason: str = "") -> dict[str, Any]:
    told = {"type": type, "status": "True", "lastProbeTime": clock.stamp(), "message": message}
    return {**told, "reason": reason} if reason else told
