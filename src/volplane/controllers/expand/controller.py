"""Watches claims that request more storage: expands FlexVolumes, and names who expands other volumes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, assert_never

from volplane.api import quantity
from volplane.api.annotations import PRE_RESIZE_CAPACITY_ANNOTATION, STORAGE_RESIZER_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.base import clock
from volplane.client.client import Client
from volplane.controllers.expand.plan import (
    ExpandFlexVolume,
    ExpandView,
    MarkNodeExpansionPending,
    RemovePreResizeAnnotation,
    SetResizer,
    Step,
    has_old_size,
    plan,
    relevant_fields,
)
from volplane.loops.controller import Controller, RetryableError
from volplane.rules import resizing, sizes
from volplane.rules.binding import claim_key
from volplane.rules.resizing import ResizeState
from volplane.rules.steps import CommonStep
from volplane.volumes.flex.errors import FlexCallError, FlexNotSupported
from volplane.volumes.flex.options import FlexVolume, build_options, find_flex_volume

if TYPE_CHECKING:  # they run programs; `explain` runs this controller without them
    from volplane.volumes.flex.driver import FlexDriver
    from volplane.volumes.flex.prober import FlexProber


class Expansion(Controller[str, ExpandView, Step]):
    name = "persistentvolume-expander-controller"
    component = "volume_expand"
    workers = 4096  # each may wait for a FlexVolume driver that hangs, and must not keep others waiting

    def __init__(self, client: Client, *, flex_prober: FlexProber | None = None) -> None:
        """`flex_prober`: of the FlexVolume drivers; without it there are none."""
        super().__init__(client)
        self.flex_prober = flex_prober

    def setup(self) -> None:
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim)
        self.volumes = self.watch(PersistentVolume, self.keys_of_volume)
        self.by_flex_driver = self.volumes.index("flex driver", _flex_driver)
        if self.flex_prober is not None:
            self.watch_source(self.flex_prober.subscribe, self.keys_of_flex_driver)

    # --- which keys a change wakes

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        if new is None:
            return
        volume = self.volumes.get(new.spec.volume_name)
        if not resizing.needs_expansion(new) and (volume is None or not has_old_size(volume)):
            return
        if relevant_fields(old) != relevant_fields(new):
            yield new.key

    def keys_of_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterator[str]:
        """Its claim may be seen to be expanded before the volume is seen to have the annotation."""
        if new is None or new.spec.flex_volume is None or new.spec.claim_ref is None:
            return
        if has_old_size(new) and (old is None or not has_old_size(old)):
            yield claim_key(new)

    def keys_of_flex_driver(self, driver: str) -> Iterator[str]:
        for volume in self.by_flex_driver[driver]:
            claim = self.claims.at(claim_key(volume))
            if claim is not None and resizing.needs_expansion(claim):
                yield claim.key

    # --- what to do

    def view(self, key: str) -> ExpandView | None:
        claim = self.claims.at(key)
        if claim is None:
            return None
        volume = self.volumes.get(claim.spec.volume_name)
        driver = next(iter(_flex_driver(volume)), "") if volume is not None else ""
        return ExpandView(claim, volume, driver, self._describe_loading(driver))

    def _describe_loading(self, driver: str) -> str:
        prober = self.flex_prober
        if not driver or prober is None or driver in prober.drivers or not prober.is_loading(driver):
            return ""
        return prober.describe_missing(driver)

    def plan(self, view: ExpandView) -> Iterator[Step | CommonStep]:
        return plan(view)

    def subject(self, view: ExpandView) -> PersistentVolumeClaim:
        return view.claim

    # --- doing it

    async def act(self, key: str, view: ExpandView, step: Step) -> None:
        claim, volume = view.claim, view.volume
        match step:
            case SetResizer(driver):
                await self._patch(claim, {"metadata": {"annotations": {STORAGE_RESIZER_ANNOTATION: driver}}})
            case ExpandFlexVolume(size):
                assert volume is not None
                await self._expand_flex(claim, volume, size)
            case MarkNodeExpansionPending():
                await self._require_node_expansion(claim)
            case RemovePreResizeAnnotation():
                assert volume is not None
                annotations = {PRE_RESIZE_CAPACITY_ANNOTATION: None}
                await self._patch_volume(volume, {"metadata": {"annotations": annotations}})
            case _:
                assert_never(step)

    async def _expand_flex(self, claim: PersistentVolumeClaim, volume: PersistentVolume, size: str) -> None:
        """The target on the claim first, then the driver, the volume, and at last the claim again."""
        flex = find_flex_volume(None, volume)
        assert flex is not None
        driver = self.flex_prober.drivers.get(flex.driver) if self.flex_prober is not None else None
        await self._write_target(claim, flex.driver, size)
        try:
            reached = await _call_driver(driver, flex, size, resizing.actual_size(claim))
        except FlexCallError as error:
            message = f"error expanding pvc {claim.key}: {error}"
            self.events.warning(claim, "VolumeResizeFailed", message)
            raise RetryableError(message) from error
        if not _has_file_system(volume) or (driver is not None and not driver.capabilities.requiresfsresize):
            await self._patch_volume(volume, {"spec": {"capacity": {"storage": reached}}})
            await self._finish(claim, reached)
        else:
            await self._patch_volume(volume, _capacity_before_node(claim, volume, reached))
            await self._require_node_expansion(claim)

    async def _write_target(self, claim: PersistentVolumeClaim, driver: str, size: str) -> None:
        resizing_now = resizing.true_condition(resizing.RESIZING, clock.stamp())
        status = {
            "allocatedResources": {"storage": size},
            "allocatedResourceStatuses": {"storage": ResizeState.CONTROLLER_IN_PROGRESS},
            "conditions": resizing.conditions(claim, [resizing_now], drop=resizing.CONDITIONS),
        }
        notes = {"annotations": {STORAGE_RESIZER_ANNOTATION: driver}}
        await self._patch(claim, {"metadata": notes, "status": status}, subresource="status")

    async def _require_node_expansion(self, claim: PersistentVolumeClaim) -> None:
        pending = resizing.true_condition(resizing.FILE_SYSTEM_PENDING, clock.stamp(), resizing.WAITING)
        status = {
            "allocatedResourceStatuses": {"storage": ResizeState.NODE_PENDING},
            "conditions": resizing.conditions(claim, [pending]),
        }
        await self._patch(claim, {"status": status}, subresource="status")

    async def _finish(self, claim: PersistentVolumeClaim, size: str) -> None:
        status = {
            "capacity": {"storage": size},
            "allocatedResourceStatuses": {"storage": None},
            "conditions": [{"$patch": "delete", "type": type} for type in resizing.CONDITIONS],
        }
        await self._patch(claim, {"status": status}, subresource="status")
        message = f"ExpandVolume succeeded for volume {claim.key}"
        self.events.normal(claim, "VolumeResizeSuccessful", message)

    async def _patch_volume(self, volume: PersistentVolume, patch: Any) -> None:
        await self.client.patch(PersistentVolume, volume.name, merge=patch, uid=volume.uid, missing_ok=True)

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


async def _call_driver(driver: FlexDriver | None, flex: FlexVolume, size: str, old: int) -> str:
    """Call `expandvolume`; returns the size after it. Without a driver, the node alone expands the volume."""
    if driver is None:
        return size
    options, new = build_options(flex), quantity.value(size)
    # The controller has no device mounts: the path is relative, as upstream's.
    path = f"{flex.driver}/mounts/{flex.name}"
    await driver.check_volume_name(options)
    try:
        reply = await driver.call("expandvolume", options, path, str(new), str(old))
    except FlexNotSupported:
        return size
    return sizes.format_size(reply.volumenewsize) if reply.volumenewsize > new else size


def _capacity_before_node(
    claim: PersistentVolumeClaim, volume: PersistentVolume, size: str
) -> dict[str, Any]:
    """The new capacity, with the old one in an annotation until the node has expanded the file system."""
    patch: dict[str, Any] = {"spec": {"capacity": {"storage": size}}}
    if not has_old_size(volume):
        before = claim.status.capacity.get("storage", "0")
        patch["metadata"] = {"annotations": {PRE_RESIZE_CAPACITY_ANNOTATION: before}}
    return patch


def _has_file_system(volume: PersistentVolume) -> bool:
    return volume.spec.volume_mode != "Block"


def _flex_driver(volume: PersistentVolume) -> list[str]:
    return [volume.spec.flex_volume.driver] if volume.spec.flex_volume is not None else []
