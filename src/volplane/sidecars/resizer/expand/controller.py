"""Claims that ask for more: noted on the claim, asked of the driver, told to volume and claim.

The volume's object grows before the claim is told, because the node compares the two. The subtle thing: pods
are watched only once a driver has refused to grow a volume in use; most drivers never do, and a cluster's
pods are many.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.base import clock, trace
from volplane.client.cache import Index
from volplane.client.client import Client
from volplane.csi import convert, v1
from volplane.csi.outcome import CallError, classify, is_infeasible, is_refused_in_use
from volplane.loops.controller import RetryableError
from volplane.loops.events import Recorder
from volplane.rules import binding, pods, resizing, sizes
from volplane.rules.resizing import State
from volplane.rules.steps import UNTIL_CHANGED, Say, Wait
from volplane.sidecars import Driver, secrets
from volplane.sidecars.resizer.asking import COMPONENT, Asker
from volplane.sidecars.resizer.expand import plan as plans
from volplane.sidecars.resizer.expand.plan import Begin, Expand, Memory, Refuse, Tidy
from volplane.sidecars.resizer.settings import Settings

log = logging.getLogger(__name__)


class Expansions(Asker):
    name = COMPONENT

    def __init__(self, client: Client, driver: Driver, settings: Settings, *, events: Recorder) -> None:
        super().__init__(client, driver, settings, events=events)
        self.facts = plans.Driver(
            driver.name,
            expands="EXPAND_VOLUME" in driver.controller,
            annotates=settings.gate("AnnotateFsResize", default=False),
        )
        self._final: set[str] = set()  # uids of claims whose last try failed for good
        self._offline: set[str] = set()  # of claims whose volume the driver would not grow in use
        self._users: Index[Pod] | None = None

    def setup(self) -> None:
        self.claims = self.watch(PersistentVolumeClaim, self._claim_changed)
        self.volumes = self.watch(PersistentVolume, self._volume_changed)
        self._users = None

    # --- whom a change wakes

    def _claim_changed(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        if new is None:
            if old is not None:
                self._forget(old)
        elif not self._concerns(new) and (old is None or not self._concerns(old)):
            return
        elif old is new or plans.claim_facts(old) != plans.claim_facts(new):
            yield new.key

    def _concerns(self, claim: PersistentVolumeClaim) -> bool:
        return plans.is_wanted(claim) or self.facts.annotates

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterator[str]:
        if new is None or new.spec.claim_ref is None:
            return
        if old is None or old.spec.claim_ref != new.spec.claim_ref:
            claim = self.claims.at(binding.claim_key(new))
            if claim is not None and self._concerns(claim):
                yield claim.key

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and (new is None or pods.has_let_go(new)):
            for key in pods.claim_keys(old):
                claim = self.claims.at(key)
                if claim is not None and claim.uid in self._offline:
                    self.queue.add(key)

    def _forget(self, claim: PersistentVolumeClaim) -> None:
        self._final.discard(claim.uid)
        self._offline.discard(claim.uid)
        self.soon(claim)

    # --- the work

    async def reconcile(self, key: str) -> None:
        claim = self.claims.at(key)
        if claim is None:
            return
        volume = self.volumes.get(claim.spec.volume_name)
        in_use = claim.uid in self._offline and await self._is_used(key)
        memory = Memory(claim.uid in self._final, claim.uid in self._offline, self.slow_for(claim))
        for step in plans.plan(claim, volume, self.facts, memory, in_use=in_use):
            match step:
                case Begin(size, fresh):
                    claim = await self._begin(claim, size, fresh=fresh)
                case Expand(size):
                    assert volume is not None
                    await self._expand(claim, volume, size)
                case Tidy():
                    assert volume is not None
                    notes = {binding.PRE_RESIZE_CAPACITY: None}
                    await self.tell_volume(volume, {"metadata": {"annotations": notes}})
                case Refuse(why):
                    self.queue.later(key, UNTIL_CHANGED, why)
                case Say(type, reason, message):
                    self.events.event(claim, type, reason, message)
                case Wait(seconds, why):
                    self.queue.later(key, seconds, why)
                case _:
                    assert_never(step)

    async def _is_used(self, key: str) -> bool:
        if self._users is None:
            cache = self.client.cache(Pod)
            users = cache.index("claims", pods.claim_keys)
            self._ends.append(cache.subscribe(self._pod_changed))
            await cache.synced()
            self._users = users
        return any(not pods.has_let_go(pod) for pod in self._users[key])

    async def _expand(self, claim: PersistentVolumeClaim, volume: PersistentVolume, size: int) -> None:
        self._offline.discard(claim.uid)
        log.info("Resizing volume", extra={"PVC": claim.key, "PV": volume.name, "size": size})
        try:
            reached, node_needed = await self._call(volume, size)
        except (CallError, RetryableError, convert.UnsupportedModes) as error:
            return await self._judge(claim, volume, error)
        self._final.discard(claim.uid)
        self.soon(claim)
        # What a driver answers is a number of bytes; without one, the claim's own words stand.
        text = sizes.text(reached) if self.facts.expands else _spelled(claim, reached)
        await self._grow(claim, volume, text, node_needed=node_needed)
        if node_needed:
            await self._hand_over(claim)
        else:
            await self._finish(claim, text)

    async def _call(self, volume: PersistentVolume, size: int) -> tuple[int, bool]:
        """What the driver made of it, and whether the node has to do something too."""
        if not self.facts.expands:
            return size, True
        source = volume.spec.csi
        if source is None:
            raise RetryableError(f"volume {volume.name} is not migrated to CSI")
        multi_writer = "SINGLE_NODE_MULTI_WRITER" in self.driver.controller
        request = v1.ControllerExpandVolumeRequest(
            volume_id=source.volume_handle,
            capacity_range=v1.CapacityRange(required_bytes=size),
            secrets=await secrets(self.client, source.controller_expand_secret_ref),
            volume_capability=convert.capability(
                convert.attach_access_mode(volume.spec.access_modes, multi_writer=multi_writer),
                block=volume.spec.volume_mode == "Block",
                fs_type=source.fs_type,
                mount_flags=volume.spec.mount_options,
            ),
        )
        reply = await self.call("ControllerExpandVolume", request, volume)
        return reply.capacity_bytes or size, reply.node_expansion_required

    async def _judge(self, claim: PersistentVolumeClaim, volume: PersistentVolume, error: Exception) -> None:
        """What a failed call means for the claim. An error that is no answer of the driver says nothing."""
        why = f'resize volume "{volume.name}" by resizer "{self.driver.name}" failed: {error}'
        if is_refused_in_use(error) and self.settings.handle_volume_inuse_error:
            self._offline.add(claim.uid)
        infeasible = is_infeasible(error)
        if classify(error).settled:
            self._final.add(claim.uid)
            await self._mark_failed(claim, error, infeasible=infeasible)
        else:
            self._final.discard(claim.uid)
        self.events.warning(claim, "VolumeResizeFailed", why)
        if not infeasible:
            self.soon(claim)
            raise RetryableError(why) from error
        self.slowly(claim, why)

    # --- what is written

    async def _begin(self, claim: PersistentVolumeClaim, size: int, *, fresh: bool) -> PersistentVolumeClaim:
        drop = resizing.CONDITIONS if fresh else ()
        status: dict[str, Any] = {}
        if changes := resizing.conditions(claim, [_condition(resizing.RESIZING)], drop=drop):
            status["conditions"] = changes
        if fresh:
            status["allocatedResources"] = {"storage": _spelled(claim, size)}
            status["allocatedResourceStatuses"] = {"storage": State.CONTROLLER_IN_PROGRESS}
        patch = _unmarked(claim, status)
        return await self.move(claim, patch) if patch else claim

    async def _grow(
        self, claim: PersistentVolumeClaim, volume: PersistentVolume, text: str, *, node_needed: bool
    ) -> None:
        patch: dict[str, Any] = {"spec": {"capacity": {"storage": text}}}
        if self.facts.annotates and node_needed:
            before = claim.status.capacity.get("storage", "0")
            if binding.PRE_RESIZE_CAPACITY not in volume.metadata.annotations:
                patch["metadata"] = {"annotations": {binding.PRE_RESIZE_CAPACITY: before}}
        with trace.span(COMPONENT, "volume grown", f"pv/{volume.name}", size=text):
            await self.tell_volume(volume, patch)

    async def _hand_over(self, claim: PersistentVolumeClaim) -> None:
        """The rest is the node's."""
        pending = _condition(resizing.FILE_SYSTEM_PENDING, resizing.WAITING)
        status = {
            "conditions": resizing.conditions(claim, [pending]),
            "allocatedResourceStatuses": {"storage": State.NODE_PENDING},
        }
        with trace.span(COMPONENT, "handed to the node", f"pvc/{claim.key}"):
            await self.tell_claim(claim, _unmarked(claim, status))
        self.events.normal(claim, "FileSystemResizeRequired", "Require file system resize of volume on node")

    async def _finish(self, claim: PersistentVolumeClaim, text: str) -> None:
        status = {
            "capacity": {"storage": text},
            "conditions": resizing.conditions(claim, drop=resizing.CONDITIONS),
            "allocatedResourceStatuses": {"storage": None},
        }
        notes = {"annotations": {resizing.NODE_NOT_REQUIRED: "true"}}
        with trace.span(COMPONENT, "resized", f"pvc/{claim.key}"):
            await self.tell_claim(claim, {"metadata": notes, "status": status})
        self.events.normal(claim, "VolumeResizeSuccessful", "Resize volume succeeded")

    async def _mark_failed(self, claim: PersistentVolumeClaim, error: Exception, *, infeasible: bool) -> None:
        told = _condition(resizing.CONTROLLER_ERROR, f"failed to expand pvc with {error}")
        status: dict[str, Any] = {"conditions": resizing.conditions(claim, [told])}
        if infeasible:
            status["allocatedResourceStatuses"] = {"storage": State.CONTROLLER_INFEASIBLE}
        await self.tell_claim(claim, {"status": status})


def _condition(type: str, message: str = "") -> dict[str, Any]:
    told = {"type": type, "status": "True", "lastTransitionTime": clock.stamp(), "message": message}
    return {key: value for key, value in told.items() if value}


def _unmarked(claim: PersistentVolumeClaim, status: Mapping[str, Any]) -> dict[str, Any]:
    """A status patch that also takes off the note of an earlier growth that needed no node."""
    patch: dict[str, Any] = {"status": status} if status else {}
    if resizing.NODE_NOT_REQUIRED in claim.metadata.annotations:
        patch["metadata"] = {"annotations": {resizing.NODE_NOT_REQUIRED: None}}
    return patch


def _spelled(claim: PersistentVolumeClaim, size: int) -> str:
    """A size in the user's own words where it is the one they asked for."""
    return claim.spec.resources.requests["storage"] if size == sizes.requested(claim) else sizes.text(size)
