"""Expands the volumes of claims that request more storage.

The target size is written to the claim, the driver is called, then the volume and the claim are updated: the
volume first, because the node compares the two. Pods are watched only once a driver has refused to expand a
volume in use: most drivers never do, and a cluster has many pods.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from msgspec import Struct, structs

from volplane.api.annotations import NODE_EXPANSION_NOT_REQUIRED_ANNOTATION, PRE_RESIZE_CAPACITY_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.base import clock, trace
from volplane.client.cache import CacheIndex
from volplane.client.client import Client
from volplane.csi import convert, v1
from volplane.csi.outcome import CallError, classify, is_infeasible, is_refused_in_use
from volplane.loops.controller import Continue, Outcome, Replan, RetryableError
from volplane.loops.events import EventRecorder
from volplane.rules import binding, pods, resizing, sizes
from volplane.rules.csi_translation import find_csi_source
from volplane.rules.resizing import ResizeState, true_condition
from volplane.rules.steps import CommonStep
from volplane.rules.waits import WaitReason
from volplane.sidecars.base import DriverClient, read_secrets
from volplane.sidecars.resizer.expand import plan as plans
from volplane.sidecars.resizer.expand.plan import (
    ControllerExpand,
    LastExpansion,
    RecordTargetSize,
    RemovePreResizeCapacity,
    WatchPodsOfVolume,
)
from volplane.sidecars.resizer.rpc_base import COMPONENT, ResizeMemory, ResizeRpcController
from volplane.sidecars.resizer.settings import ResizerOptions

log = logging.getLogger(__name__)


class ExpansionView(Struct, frozen=True):
    claim: PersistentVolumeClaim
    volume: PersistentVolume | None
    last: LastExpansion
    in_use: bool | None = False  # None: not known yet


class ExpansionMemory(ResizeMemory):
    def __init__(self) -> None:
        super().__init__()
        self.offline: set[str] = set()  # claims whose volume the driver refused to expand while in use
        self.users: CacheIndex[Pod] | None = None  # watched since the first such refusal

    def forget(self, claim: PersistentVolumeClaim) -> None:
        super().forget(claim)
        self.offline.discard(claim.uid)


class VolumeExpander(ResizeRpcController[ExpansionView, plans.Step]):
    name = COMPONENT

    def __init__(
        self, client: Client, driver: DriverClient, settings: ResizerOptions, *, events: EventRecorder
    ) -> None:
        super().__init__(client, driver, settings, events=events)
        self.driver_info = plans.ResizerDriverInfo(
            driver.name,
            has_controller_expand="EXPAND_VOLUME" in driver.controller,
            annotates_capacity=settings.is_feature_enabled("AnnotateFsResize", default=False),
        )

    def setup(self) -> None:
        self.memory: ExpansionMemory = ExpansionMemory()
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim, observe=self.memory.observe_claim)
        self.volumes = self.watch(PersistentVolume, self.keys_of_volume)

    # --- which keys a change wakes

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        if (new is None or not self._is_relevant(new)) and (old is None or not self._is_relevant(old)):
            return
        claim = new or old
        assert claim is not None
        if old is new or plans.relevant_fields(old) != plans.relevant_fields(new):
            yield claim.key

    def _is_relevant(self, claim: PersistentVolumeClaim) -> bool:
        return resizing.needs_expansion(claim) or self.driver_info.annotates_capacity

    def keys_of_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterator[str]:
        if new is None or new.spec.claim_ref is None:
            return
        if old is None or old.spec.claim_ref != new.spec.claim_ref:
            claim = self.claims.at(binding.claim_key(new))
            if claim is not None and self._is_relevant(claim):
                yield claim.key

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterator[str]:
        if old is not None and old is not new and (new is None or pods.has_released_volumes(new)):
            for key in pods.claim_keys(old):
                claim = self.claims.at(key)
                if claim is not None and claim.uid in self.memory.offline:
                    yield key

    # --- what to do

    def view(self, key: str) -> ExpansionView | None:
        claim = self.claims.at(key)
        if claim is None:
            return None
        memory, uid = self.memory, claim.uid
        last = LastExpansion(uid in memory.final_errors, uid in memory.offline, memory.retry_in(claim))
        in_use = self._is_used(key) if uid in memory.offline else False
        return ExpansionView(claim, self.volumes.get(claim.spec.volume_name), last, in_use)

    def _is_used(self, key: str) -> bool | None:
        users = self.memory.users
        return any(not pods.has_released_volumes(pod) for pod in users[key]) if users is not None else None

    def plan(self, view: ExpansionView) -> Iterator[plans.Step | CommonStep]:
        return plans.plan(view.claim, view.volume, self.driver_info, view.last, in_use=view.in_use)

    # --- doing it

    def subject(self, view: ExpansionView) -> PersistentVolumeClaim:
        return view.claim

    async def act(self, key: str, view: ExpansionView, step: plans.Step) -> Outcome[ExpansionView]:
        volume = view.volume
        match step:
            case WatchPodsOfVolume():
                await self._watch_pods()
                return Replan(structs.replace(view, in_use=self._is_used(key)))
            case RecordTargetSize(size, fresh):
                claim = await self._begin(view.claim, size, fresh=fresh)
                return Continue(structs.replace(view, claim=claim))
            case ControllerExpand(size):
                assert volume is not None
                await self._expand(view.claim, volume, size)
            case RemovePreResizeCapacity():
                assert volume is not None
                annotations = {PRE_RESIZE_CAPACITY_ANNOTATION: None}
                await self.patch_volume(volume, {"metadata": {"annotations": annotations}})
            case _:
                assert_never(step)
        return None

    async def _watch_pods(self) -> None:
        cache = self.client.cache(Pod)
        users = cache.index("claims", pods.claim_keys)
        await cache.wait_synced()
        if self.memory.users is None:
            self.memory.users = users
            self.follow(cache, self.keys_of_pod)

    async def _expand(self, claim: PersistentVolumeClaim, volume: PersistentVolume, size: int) -> None:
        self.memory.offline.discard(claim.uid)
        log.info("Resizing volume", extra={"PVC": claim.key, "PV": volume.name, "size": size})
        try:
            reached, node_needed = await self._call_driver(volume, size)
        except (CallError, RetryableError, convert.UnsupportedModes) as error:
            return await self._handle_failure(claim, volume, error)
        self.memory.final_errors.discard(claim.uid)
        self.memory.retry_soon(claim)
        # A driver returns bytes; without ControllerExpandVolume the size stays as the user wrote it.
        text = (
            sizes.format_size(reached)
            if self.driver_info.has_controller_expand
            else _size_text(claim, reached)
        )
        await self._set_volume_capacity(claim, volume, text, node_needed=node_needed)
        if node_needed:
            await self._require_node_expansion(claim)
        else:
            await self._finish(claim, text)

    async def _call_driver(self, volume: PersistentVolume, size: int) -> tuple[int, bool]:
        """The size after the call, and whether the node has to expand the file system."""
        if not self.driver_info.has_controller_expand:
            return size, True
        source = find_csi_source(volume)
        if source is None:
            raise RetryableError(f"volume {volume.name} is not migrated to CSI")
        multi_writer = "SINGLE_NODE_MULTI_WRITER" in self.driver.controller
        request = v1.ControllerExpandVolumeRequest(
            volume_id=source.volume_handle,
            capacity_range=v1.CapacityRange(required_bytes=size),
            secrets=await read_secrets(self.client, source.controller_expand_secret_ref),
            volume_capability=convert.capability(
                convert.attach_access_mode(volume.spec.access_modes, multi_writer=multi_writer),
                block=volume.spec.volume_mode == "Block",
                fs_type=source.fs_type,
                mount_flags=volume.spec.mount_options,
            ),
        )
        reply = await self.call("ControllerExpandVolume", request, volume)
        return reply.capacity_bytes or size, reply.node_expansion_required

    async def _handle_failure(
        self, claim: PersistentVolumeClaim, volume: PersistentVolume, error: Exception
    ) -> None:
        """Report a failed call, and retry it or not."""
        why = f'resize volume "{volume.name}" by resizer "{self.driver.name}" failed: {error}'
        if is_refused_in_use(error) and self.settings.handle_volume_inuse_error:
            self.memory.offline.add(claim.uid)
        infeasible = is_infeasible(error)
        if classify(error).is_final:
            self.memory.final_errors.add(claim.uid)
            await self._mark_failed(claim, error, infeasible=infeasible)
        else:
            self.memory.final_errors.discard(claim.uid)
        self.events.warning(claim, "VolumeResizeFailed", why)
        if not infeasible:
            self.memory.retry_soon(claim)
            raise RetryableError(why) from error
        self.retry_slowly(claim, WaitReason.RESIZE_INFEASIBLE, why)

    # --- writing

    async def _begin(self, claim: PersistentVolumeClaim, size: int, *, fresh: bool) -> PersistentVolumeClaim:
        drop = resizing.CONDITIONS if fresh else ()
        status: dict[str, Any] = {}
        if changes := resizing.conditions(
            claim, [true_condition(resizing.RESIZING, clock.stamp())], drop=drop
        ):
            status["conditions"] = changes
        if fresh:
            status["allocatedResources"] = {"storage": _size_text(claim, size)}
            status["allocatedResourceStatuses"] = {"storage": ResizeState.CONTROLLER_IN_PROGRESS}
        patch = _status_patch(claim, status)
        return await self.advance_claim(claim, patch) if patch else claim

    async def _set_volume_capacity(
        self, claim: PersistentVolumeClaim, volume: PersistentVolume, text: str, *, node_needed: bool
    ) -> None:
        patch: dict[str, Any] = {"spec": {"capacity": {"storage": text}}}
        if self.driver_info.annotates_capacity and node_needed:
            before = claim.status.capacity.get("storage", "0")
            if PRE_RESIZE_CAPACITY_ANNOTATION not in volume.metadata.annotations:
                patch["metadata"] = {"annotations": {PRE_RESIZE_CAPACITY_ANNOTATION: before}}
        with trace.span(COMPONENT, "volume grown", f"pv/{volume.name}", size=text):
            await self.patch_volume(volume, patch)

    async def _require_node_expansion(self, claim: PersistentVolumeClaim) -> None:
        """Leave the expansion of the file system to the node."""
        pending = true_condition(resizing.FILE_SYSTEM_PENDING, clock.stamp(), resizing.WAITING)
        status = {
            "conditions": resizing.conditions(claim, [pending]),
            "allocatedResourceStatuses": {"storage": ResizeState.NODE_PENDING},
        }
        with trace.span(COMPONENT, "node expansion required", f"pvc/{claim.key}"):
            await self.patch_claim(claim, _status_patch(claim, status))
        self.events.normal(claim, "FileSystemResizeRequired", "Require file system resize of volume on node")

    async def _finish(self, claim: PersistentVolumeClaim, text: str) -> None:
        status = {
            "capacity": {"storage": text},
            "conditions": resizing.conditions(claim, drop=resizing.CONDITIONS),
            "allocatedResourceStatuses": {"storage": None},
        }
        notes = {"annotations": {NODE_EXPANSION_NOT_REQUIRED_ANNOTATION: "true"}}
        with trace.span(COMPONENT, "resized", f"pvc/{claim.key}"):
            await self.patch_claim(claim, {"metadata": notes, "status": status})
        self.events.normal(claim, "VolumeResizeSuccessful", "Resize volume succeeded")

    async def _mark_failed(self, claim: PersistentVolumeClaim, error: Exception, *, infeasible: bool) -> None:
        condition = true_condition(
            resizing.CONTROLLER_ERROR, clock.stamp(), f"failed to expand pvc with {error}"
        )
        status: dict[str, Any] = {"conditions": resizing.conditions(claim, [condition])}
        if infeasible:
            status["allocatedResourceStatuses"] = {"storage": ResizeState.CONTROLLER_INFEASIBLE}
        await self.patch_claim(claim, {"status": status})


def _status_patch(claim: PersistentVolumeClaim, status: Mapping[str, Any]) -> dict[str, Any]:
    """A patch of the status that also removes the annotation of an earlier expansion without a node."""
    patch: dict[str, Any] = {"status": status} if status else {}
    if NODE_EXPANSION_NOT_REQUIRED_ANNOTATION in claim.metadata.annotations:
        patch["metadata"] = {"annotations": {NODE_EXPANSION_NOT_REQUIRED_ANNOTATION: None}}
    return patch


def _size_text(claim: PersistentVolumeClaim, size: int) -> str:
    """A size, as the user wrote it if it is the requested one."""
    return (
        claim.spec.resources.requests["storage"]
        if size == sizes.requested_size(claim)
        else sizes.format_size(size)
    )
