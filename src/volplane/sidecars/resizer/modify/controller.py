"""Modifies the volumes of claims that name another VolumeAttributesClass.

The target class is written to the claim, the driver is called, then the volume and the claim are updated. A
new class wakes the claims that wait for it; upstream notices it only when the claim changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, assert_never

from msgspec import Struct, structs

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.storage import VolumeAttributesClass
from volplane.base import clock, trace
from volplane.csi import v1
from volplane.csi.outcome import CallError, Code, classify
from volplane.loops.controller import Continue, Outcome, RetryableError
from volplane.rules import binding, resizing
from volplane.rules.steps import CommonStep
from volplane.rules.waits import WaitReason
from volplane.sidecars.base import read_secrets
from volplane.sidecars.resizer.modify import plan as plans
from volplane.sidecars.resizer.modify.plan import (
    MODIFY_ERROR,
    MODIFYING,
    CancelModification,
    LastModification,
    MarkModifyPending,
    ModifyVolume,
    ModifyVolumeState,
    RecordTargetClass,
)
from volplane.sidecars.resizer.rpc_base import COMPONENT, ResizeMemory, ResizeRpcController


class ModificationView(Struct, frozen=True):
    claim: PersistentVolumeClaim
    volume: PersistentVolume | None
    last: LastModification


class VolumeModifier(ResizeRpcController[ModificationView, plans.Step]):
    name = f"{COMPONENT}-modify"

    def setup(self) -> None:
        self.memory = ResizeMemory()
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim, observe=self.memory.observe_claim)
        self.volumes = self.watch(PersistentVolume, self.keys_of_volume)
        self.classes = self.watch(VolumeAttributesClass, self.keys_of_class)
        self.by_class = self.claims.index("attributes classes", plans.attributes_classes)

    # --- which keys a change wakes

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        if new is None or (
            not plans.needs_modification(new) and (old is None or not plans.needs_modification(old))
        ):
            return
        if old is new or plans.relevant_fields(old) != plans.relevant_fields(new):
            yield new.key

    def keys_of_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterator[str]:
        if old is None and new is not None and new.spec.claim_ref is not None:
            claim = self.claims.at(binding.claim_key(new))
            if claim is not None and plans.needs_modification(claim):
                yield claim.key

    def keys_of_class(
        self, old: VolumeAttributesClass | None, new: VolumeAttributesClass | None
    ) -> Iterator[str]:
        if old is None and new is not None:
            yield from (claim.key for claim in self.by_class[new.name])

    # --- what to do

    def view(self, key: str) -> ModificationView | None:
        claim = self.claims.at(key)
        if claim is None:
            return None
        slow = self.memory.retry_in(claim) if plans.is_same_target(claim) else 0.0
        last = LastModification(claim.uid in self.memory.final_errors, slow)
        return ModificationView(claim, self.volumes.get(claim.spec.volume_name), last)

    def plan(self, view: ModificationView) -> Iterator[plans.Step | CommonStep]:
        return plans.plan(view.claim, view.volume, self.driver.name, view.last, self.classes.get)

    def update_memory(
        self, key: str, view: ModificationView | None, steps: Sequence[plans.Step | CommonStep]
    ) -> None:
        if view is not None and not view.last.retry_after:
            self.memory.retry_soon(view.claim)  # the driver may accept another class

    # --- doing it

    def subject(self, view: ModificationView) -> PersistentVolumeClaim:
        return view.claim

    async def act(self, key: str, view: ModificationView, step: plans.Step) -> Outcome[ModificationView]:
        claim = view.claim
        match step:
            case MarkModifyPending():
                claim = await self._mark(claim, {"status": ModifyVolumeState.PENDING})
                return Continue(structs.replace(view, claim=claim))
            case RecordTargetClass(target):
                return Continue(structs.replace(view, claim=await self._start(claim, target)))
            case ModifyVolume(target):
                assert view.volume is not None
                await self._modify(claim, view.volume, target)
            case CancelModification():
                conditions = resizing.conditions(claim, drop=(MODIFYING,))
                await self.patch_claim(claim, {"status": {"conditions": conditions}})
            case _:
                assert_never(step)
        return None

    async def _start(self, claim: PersistentVolumeClaim, target: str) -> PersistentVolumeClaim:
        conditions = [_condition(MODIFYING, f'Modifying volume to "{target}" is in progress.')]
        status = {"status": ModifyVolumeState.IN_PROGRESS, "targetVolumeAttributesClassName": target}
        claim = await self._mark(claim, status, conditions)
        self.memory.final_errors.discard(claim.uid)  # from now on its outcome is unknown
        return claim

    async def _mark(
        self,
        claim: PersistentVolumeClaim,
        status: Mapping[str, Any],
        conditions: Sequence[dict[str, Any]] = (),
    ) -> PersistentVolumeClaim:
        patch: dict[str, Any] = {"modifyVolumeStatus": status}
        if changes := resizing.conditions(claim, conditions):
            patch["conditions"] = changes
        return await self.advance_claim(claim, {"status": patch})

    async def _modify(
        self, claim: PersistentVolumeClaim, volume: PersistentVolume, target: VolumeAttributesClass
    ) -> None:
        assert volume.spec.csi is not None
        extra = self.settings.extra_modify_metadata
        try:
            request = v1.ControllerModifyVolumeRequest(
                volume_id=volume.spec.csi.volume_handle,
                secrets=await read_secrets(self.client, plans.secret_reference(volume)),
                mutable_parameters=plans.mutable_parameters(claim, volume, target, extra=extra),
            )
            await self.call("ControllerModifyVolume", request, volume)
        except CallError as error:
            return await self._handle_failure(claim, target.name, error)
        await self._complete(claim, volume, target.name)

    async def _complete(self, claim: PersistentVolumeClaim, volume: PersistentVolume, target: str) -> None:
        self.memory.final_errors.discard(claim.uid)
        self.memory.retry_soon(claim)
        with trace.span(COMPONENT, "modified", f"pvc/{claim.key}", target=target):
            await self.patch_volume(volume, {"spec": {"volumeAttributesClassName": target}})
            status = {
                "currentVolumeAttributesClassName": target,
                "modifyVolumeStatus": None,
                "conditions": resizing.conditions(claim, drop=(MODIFYING, MODIFY_ERROR)),
            }
            await self.patch_claim(claim, {"status": status})
        self.events.normal(
            claim,
            "VolumeModifySuccessful",
            f"external resizer modified volume {claim.name} with vac {target} successfully",
        )
        self.queue.add(claim.key)  # the claim may name another class by now

    async def _handle_failure(self, claim: PersistentVolumeClaim, target: str, error: CallError) -> None:
        why, progress = str(error), f'Modifying volume to "{target}" failed. Waiting for retry.'
        infeasible = error.code is Code.INVALID_ARGUMENT
        if classify(error).is_final:
            self.memory.final_errors.add(claim.uid)
        else:
            self.memory.final_errors.discard(claim.uid)
            progress = f'Modifying volume to "{target}" is still in progress.'
            why += f". Still modifying to VAC {target}"
        conditions = [
            _condition(MODIFYING, progress),
            _condition(MODIFY_ERROR, error.message, error.code.go_name),
        ]
        reached = {"status": ModifyVolumeState.INFEASIBLE if infeasible else ModifyVolumeState.IN_PROGRESS}
        status = {"modifyVolumeStatus": reached, "conditions": resizing.conditions(claim, conditions)}
        await self.patch_claim(claim, {"status": status})
        self.events.warning(claim, "VolumeModifyFailed", why)
        if not infeasible:
            raise RetryableError(why) from error
        self.retry_slowly(claim, WaitReason.MODIFY_INFEASIBLE, why)


def _condition(type: str, message: str, reason: str = "") -> dict[str, Any]:
    condition = {"type": type, "status": "True", "lastProbeTime": clock.stamp(), "message": message}
    return {**condition, "reason": reason} if reason else condition
