"""The binder. Claims and volumes are keys of one queue: `pvc/<namespace>/<name>` and `pv/<name>`.

Every change wakes its object and the counterpart; a volume that becomes Available wakes the claims that wait
for one of its class. The steps of a plan are written one after the other, and the first failed write ends the
plan: the next plan continues from what was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import assert_never

from msgspec import structs

from volplane.api.annotations import (
    BETA_STORAGE_CLASS_ANNOTATION,
    BETA_STORAGE_PROVISIONER_ANNOTATION,
    BIND_COMPLETED_ANNOTATION,
    BOUND_BY_CONTROLLER_ANNOTATION,
    MIGRATED_TO_ANNOTATION,
    PROVISIONED_BY_ANNOTATION,
    SELECTED_NODE_ANNOTATION,
    STORAGE_PROVISIONER_ANNOTATION,
)
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.meta import Resource
from volplane.api.storage import StorageClass
from volplane.base import trace
from volplane.client.client import Client
from volplane.controllers.binder import object_counts
from volplane.controllers.binder.memory import BinderMemory
from volplane.controllers.binder.plan import ClaimView, VolumeView, plan_claim, plan_volume
from volplane.controllers.binder.recycling import is_recyclable, pod_for, recycled_by
from volplane.controllers.binder.steps import (
    ClaimStep,
    CreateRecycler,
    DeleteRecycler,
    FixMetadata,
    Patch,
    SetClaimRef,
    SetClaimStatus,
    SetDefaultClass,
    SetProvisioner,
    SetVolumeName,
    SetVolumePhase,
    UnbindVolume,
    VerifyClaimDeleted,
    VolumeStep,
    group_steps,
)
from volplane.loops.controller import Controller, Outcome, Replan, Stop
from volplane.loops.storage_metrics import observe_total
from volplane.rules import classes, pods
from volplane.rules.binding import claim_class, claim_key, claimant, unclaimed_class, volume_class
from volplane.rules.steps import CommonStep, RecordEvent
from volplane.rules.waits import Wait, WaitReason

COMPONENT = "persistentvolume-controller"
UNSET = "\0unset"  # index key of claims without a class; "" means something else
ANNOTATIONS = (
    BIND_COMPLETED_ANNOTATION,
    BOUND_BY_CONTROLLER_ANNOTATION,
    STORAGE_PROVISIONER_ANNOTATION,
    BETA_STORAGE_PROVISIONER_ANNOTATION,
    BETA_STORAGE_CLASS_ANNOTATION,
    MIGRATED_TO_ANNOTATION,
    SELECTED_NODE_ANNOTATION,
)
PROVISIONER_WAITS = (WaitReason.EXTERNAL_PROVISIONER, WaitReason.DISK_DELETION)
SPANS = {
    SetVolumeName: "volumeName",
    SetProvisioner: "storage-provisioner",
    SetDefaultClass: "default class",
}

View = ClaimView | VolumeView
Step = ClaimStep | VolumeStep


def waiting_class(claim: PersistentVolumeClaim) -> list[str]:
    if claim.spec.volume_name or BIND_COMPLETED_ANNOTATION in claim.metadata.annotations:
        return []
    name = claim_class(claim)
    return [UNSET if name is None else name]


def named_volume(claim: PersistentVolumeClaim) -> list[str]:
    return [claim.spec.volume_name] if claim.spec.volume_name else []


def is_same(old: PersistentVolumeClaim, new: PersistentVolumeClaim) -> bool:
    """Whether nothing has changed that the plans read."""
    if old.uid != new.uid or old.spec != new.spec or old.status != new.status:
        return False
    before, now = old.metadata.annotations, new.metadata.annotations
    return before == now or all(before.get(name) == now.get(name) for name in ANNOTATIONS)


def is_same_volume(old: PersistentVolume, new: PersistentVolume) -> bool:
    """Whether nothing has changed that the plans read: mostly finalizers, which matter only for volumes of
    in-tree plugins.
    """
    before, now = old.metadata, new.metadata
    return (
        before.uid == now.uid
        and old.spec == new.spec
        and old.status == new.status
        and before.annotations == now.annotations
        and before.labels == now.labels
        and before.deletion_timestamp == now.deletion_timestamp
        and not now.annotations.get(PROVISIONED_BY_ANNOTATION, "").startswith(classes.IN_TREE)
    )


class Binder(Controller[str, View, Step]):
    name = "persistentvolume-binder-controller"
    component = COMPONENT
    workers = 64

    def __init__(self, client: Client, *, sync_period: float = 15.0, dynamic: bool = True) -> None:
        super().__init__(client, resync=sync_period)
        self.dynamic = dynamic

    def setup(self) -> None:
        self.memory = BinderMemory()
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim, observe=self.memory.observe_claim)
        self.volumes = self.watch(PersistentVolume, self.keys_of_volume, observe=self.observe_volume)
        self.classes = self.watch(StorageClass, self.keys_of_class)
        self.pods = self.watch(Pod, self.keys_of_pod)
        self.unclaimed = self.volumes.index("unclaimed by class", unclaimed_class)
        self.claimed = self.volumes.index("claimant", claimant)
        self.waiting = self.claims.index("waiting by class", waiting_class)
        self.naming = self.claims.index("named volume", named_volume)
        self.users = self.pods.index("claims", pods.claim_keys)

    # --- which keys a change wakes

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterator[str]:
        claim = new or old
        assert claim is not None
        if old is not None and new is not None and old is not new and is_same(old, new):
            return  # finalizers, and annotations of other components
        if new is not None:
            yield f"pvc/{claim.key}"
        if claim.spec.volume_name:
            yield f"pv/{claim.spec.volume_name}"
        for volume in self.claimed[claim.key]:
            yield f"pv/{volume.name}"

    def keys_of_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterator[str]:
        volume = new or old
        assert volume is not None
        if old is not None and new is not None and old is not new and is_same_volume(old, new):
            return
        if new is not None:
            yield f"pv/{volume.name}"
        if old is new:
            return  # a resync wakes the claims, too
        for side in (old, new):
            if side is not None and side.spec.claim_ref is not None:
                yield f"pvc/{claim_key(side)}"
        for claim in self.naming[volume.name]:
            yield f"pvc/{claim.key}"
        if new is not None and new.spec.claim_ref is None and new.status.phase == "Available":
            name = volume_class(new)
            yield from self._waiting_for(name)
            if not name:
                yield from self._waiting_for(UNSET)

    def keys_of_class(self, old: StorageClass | None, new: StorageClass | None) -> Iterator[str]:
        changed = new or old
        assert changed is not None
        yield from self._waiting_for(changed.name)
        if new is not None and classes.is_default(new):
            yield from self._waiting_for(UNSET)

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterator[str]:
        """Only changes that affect the events of waiting claims: a pod is created, scheduled, or deleted."""
        pod = new or old
        assert pod is not None
        if recycled := recycled_by(pod):
            yield f"pv/{recycled}"
        if new is None:
            held = [v for key in pods.claim_keys(pod) for v in self.claimed[key]]
            yield from (f"pv/{v.name}" for v in held if is_recyclable(v))
        if old is not None and new is not None and old.spec.node_name == new.spec.node_name:
            return
        for key in pods.claim_keys(pod):
            claim = self.claims.at(key)
            if claim is not None and waiting_class(claim):
                yield f"pvc/{key}"

    def observe_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        self.memory.observe_volume(old, new)
        if new is None and old is not None:
            self._observe_total(old.uid, "delete")

    def _waiting_for(self, name: str) -> Iterator[str]:
        return (f"pvc/{claim.key}" for claim in self.waiting[name])

    # --- what the caches show

    def view(self, key: str) -> View | None:
        kind, _, name = key.partition("/")
        if kind == "pvc":
            claim = self.claims.at(name)
            return self.view_claim(claim) if claim is not None else None
        volume = self.volumes.get(name)
        return self.view_volume(volume) if volume is not None else None

    def view_claim(self, claim: PersistentVolumeClaim) -> ClaimView:
        if not waiting_class(claim):
            named = claim.spec.volume_name
            return ClaimView(claim, volume=self.volumes.get(named) if named else None)
        name = claim_class(claim)
        default = None if name is not None else classes.default(self.classes.all())
        is_taken = self.memory.is_taken
        unclaimed = [v for v in self.unclaimed[name or ""] if not is_taken(v, claim)]
        unscheduled = [
            p.name for p in self.users[claim.key] if not p.spec.node_name and not pods.has_ended(p)
        ]
        return ClaimView(
            claim,
            candidates=[*self.claimed[claim.key], *unclaimed],
            unclaimed=[v for each in self.unclaimed for v in self.unclaimed[each]],
            storage_class=self.classes.get(name) if name else None,
            default_class=default.name if default is not None else "",
            pods=sorted(unscheduled),
            dynamic=self.dynamic,
        )

    def view_volume(self, volume: PersistentVolume) -> VolumeView:
        if not is_recyclable(volume):
            return VolumeView(volume, self._claim_of(volume))
        users = [p.key for p in self.users[claim_key(volume)] if not pods.has_ended(p)]
        recycler = pod_for(volume)
        found = self.pods.get(recycler.name, recycler.namespace)
        return VolumeView(volume, self._claim_of(volume), users=users, recycler=found)

    def _claim_of(self, volume: PersistentVolume) -> PersistentVolumeClaim | None:
        ref = volume.spec.claim_ref
        return self.claims.get(ref.name, ref.namespace) if ref is not None else None

    # --- what to do

    def plan(self, view: View) -> Iterable[Step | CommonStep]:
        return plan_claim(view) if isinstance(view, ClaimView) else plan_volume(view)

    def batches(self, steps: Sequence[Step | CommonStep]) -> Iterable[Sequence[Step | CommonStep]]:
        return group_steps(steps)

    def update_memory(self, key: str, view: View | None, steps: Sequence[Step | CommonStep]) -> None:
        for step in steps:
            match step:
                case SetClaimRef(volume, claim):
                    self.memory.take(volume, claim)
                case Wait(reason, data) if reason in PROVISIONER_WAITS and view is not None:
                    self.memory.note_request(self.subject(view).uid, data.driver)

    @contextmanager
    def counting(self) -> Iterator[None]:
        volumes, claims = self.volumes.all, self.claims.all
        with (
            object_counts.total_volumes.counting(volumes, object_counts.count_volumes),
            object_counts.bound_volumes.counting(volumes, object_counts.count_bound_volumes),
            object_counts.unbound_volumes.counting(volumes, object_counts.count_unbound_volumes),
            object_counts.bound_claims.counting(claims, object_counts.count_bound_claims),
            object_counts.unbound_claims.counting(claims, object_counts.count_unbound_claims),
        ):
            yield

    # --- doing it

    def subject(self, view: View) -> Resource:
        return view.claim if isinstance(view, ClaimView) else view.volume

    def emit(self, view: View, event: RecordEvent) -> None:
        """Record each event once per sync period: the binder's own writes wake plans that repeat it."""
        about = event.about or self.subject(view)
        if self.memory.note_event(about.uid, event, self.resync * 0.9):
            kind = "pv" if isinstance(about, PersistentVolume) else "pvc"
            trace.mark(COMPONENT, event.reason, f"{kind}/{about.key}")
            super().emit(view, event)

    async def act(self, key: str, view: View, step: Step) -> Outcome[View]:
        match step:
            case SetClaimRef():
                return await self._set_claim_ref(key, step)
            case SetVolumePhase(volume, phase):
                return await self._patch(key, volume, step.patch, f"volume {phase}", status=True)
            case SetDefaultClass(claim):
                with object_counts.counting_default_class():
                    return await self._patch(key, claim, step.patch, SPANS[type(step)], guarded=True)
            case SetVolumeName(_, claim) | SetProvisioner(claim):
                return await self._patch(key, claim, step.patch, SPANS[type(step)], guarded=True)
            case SetClaimStatus(claim, phase):
                outcome = await self._patch(key, claim, step.patch, f"claim {phase}", status=True)
                if phase == "Bound":
                    self._observe_total(claim.uid, "provision")
                return outcome
            case UnbindVolume(volume):
                return await self._patch(key, volume, step.patch, "unbind", guarded=True)
            case FixMetadata(target):
                return await self._patch(key, target, step.patch, "fix metadata", guarded=True)
            case CreateRecycler(pod):
                await self.client.create(pod, exists_ok=True)
            case DeleteRecycler(pod):
                await self.client.delete(Pod, pod.name, pod.namespace, uid=pod.uid, grace=0, missing_ok=True)
            case VerifyClaimDeleted(name):
                assert isinstance(view, VolumeView)
                namespace, _, claim_name = name.partition("/")
                found = await self.client.find(PersistentVolumeClaim, claim_name, namespace)
                return Replan(structs.replace(view, claim=found, proven=True))
            case _:
                assert_never(step)
        return None

    def _observe_total(self, uid: str, operation: str) -> None:
        if finished := self.memory.finish_request(uid):
            provisioner, seconds = finished
            observe_total(provisioner, operation, seconds)

    async def _set_claim_ref(self, key: str, step: SetClaimRef) -> Outcome[View]:
        volume, written = step.volume, 0
        try:
            with trace.span(COMPONENT, "bind claimRef", key, volume=volume.name):
                revision = volume.metadata.resource_version
                made = await self.client.patch(
                    PersistentVolume, volume.name, merge=step.patch, revision=revision, missing_ok=True
                )
                written = made.revision if made is not None else 0
        finally:
            if written and self.volumes.revision < written:
                self.memory.take(volume, step.claim, written)
            else:
                self.memory.give_back(volume)
        return None if written else Stop()

    async def _patch(
        self,
        key: str,
        target: PersistentVolume | PersistentVolumeClaim,
        patch: Patch,
        span: str,
        *,
        status: bool = False,
        guarded: bool = False,
    ) -> Outcome[View]:
        """`guarded`: only over the version that was planned on. Stop if the object is gone."""
        with trace.span(COMPONENT, span, key, target=target.name):
            made = await self.client.patch(
                type(target),
                target.name,
                target.namespace,
                merge=patch,
                subresource="status" if status else "",
                uid=target.uid,
                revision=target.metadata.resource_version if guarded else "",
                missing_ok=True,
            )
        return None if made is not None else Stop()
