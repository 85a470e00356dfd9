"""The scheduling loop: reserve a node for a pod, bind its volumes, then bind the pod.

Keys are pods without a node. Decisions are made one after the other where keys are taken from the queue, and
what a decision takes is noted before the next one is made (`update_memory`). So any number of pods can be in
progress, and no two of them get the same resources. A pod that waits for its volumes holds no worker: the
events of its claims wake it.

A restart forgets only what was not written. The selected node of a claim leads the next scheduler back to
that node.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from msgspec import structs

from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import (
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
)
from volplane.api.errors import Conflict, NotFound
from volplane.api.policy import PodDisruptionBudget
from volplane.api.storage import CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment
from volplane.base import clock, trace
from volplane.base.backoff import Backoff
from volplane.client.client import Client
from volplane.loops.controller import Controller, Stop
from volplane.rules import pods
from volplane.rules.attachments import attached_node
from volplane.rules.binding import claim_key, claim_ref_patch, claimant, unclaimed_class
from volplane.rules.steps import CommonStep
from volplane.rules.waits import Wait, WaitReason
from volplane.scheduler import prebind
from volplane.scheduler.indexers import (
    build_condition_patch,
    capacity_class,
    has_scheduled_condition,
    relevant_node_fields,
    relevant_volume_fields,
)
from volplane.scheduler.memory import SchedulerMemory
from volplane.scheduler.plan import (
    AbortReservation,
    BindPod,
    MarkUnschedulable,
    ReleaseReservation,
    Reservation,
    ReserveNode,
    SchedulingView,
    Step,
    WriteBindings,
    plan,
)
from volplane.scheduler.profile import DEFAULT, DEFAULT_PROFILE, SchedulerProfile
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot
from volplane.scheduler.unschedulable_pods import BACKOFF
from volplane.scheduler.victim_eviction import evict_victims
from volplane.scheduler.volumes import Bindings

log = logging.getLogger(__name__)


class Scheduler(Controller[str, SchedulingView, Step]):
    name = "scheduler"
    component = DEFAULT
    workers = 256

    def __init__(
        self,
        client: Client,
        *,
        profiles: Sequence[SchedulerProfile] = (DEFAULT_PROFILE,),
        backoff: Backoff = BACKOFF,
    ) -> None:
        """`backoff`: before a pod that fits nowhere is tried again."""
        super().__init__(client)
        self.profiles = {profile.scheduler_name: profile for profile in profiles}
        self.pod_backoff = backoff

    def setup(self) -> None:
        claims, volumes = self.client.cache(PersistentVolumeClaim), self.client.cache(PersistentVolume)
        self.memory = SchedulerMemory(claims, volumes, self._labels_of_namespace, self.pod_backoff)
        refused = self.memory.unschedulable
        self.pods = self.watch(Pod, self.keys_of_pod, observe=self.memory.observe_pod)
        self.users = self.pods.index("claims", pods.claim_keys)
        # Not while the API server does not answer: a node may have been cordoned or lost meanwhile.
        self.nodes = self.watch(Node, self.keys_of_node, observe=self.memory.observe_node, live=True)
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim, observe=self.observe_claim)
        self.volumes = self.watch(PersistentVolume, self.keys_of_volume, observe=self.observe_volume)
        self.classes = self.watch(StorageClass, lambda old, new: refused.pods_woken_by(StorageClass))
        self.drivers = self.watch(CSIDriver, lambda old, new: refused.pods_woken_by(CSIDriver))
        self.csi_nodes = self.watch(CSINode, lambda old, new: refused.pods_woken_by(CSINode))
        self.capacities = self.watch(
            CSIStorageCapacity, lambda old, new: refused.pods_woken_by(CSIStorageCapacity)
        )
        self.attachments = self.watch(VolumeAttachment, self.keys_of_attachment)
        self.namespaces = self.watch(Namespace, self.keys_of_namespace, observe=self.memory.observe_namespace)
        self.budgets = self.watch(PodDisruptionBudget)
        self.snapshot = self._snapshot()

    def _snapshot(self) -> SchedulingSnapshot:
        unclaimed = self.volumes.index("unclaimed by class", unclaimed_class)
        claimants = self.volumes.index("claimant", claimant)
        by_class = self.capacities.index("class", capacity_class)
        by_node = self.attachments.index("node", attached_node)
        promised = self.memory.assumed_volumes
        return SchedulingSnapshot(
            node_cache=self.memory.node_cache,
            claim=self.memory.assumed_claims.at,
            volume=self.memory.assumed_volumes.at,
            unclaimed=lambda name: [v for v in unclaimed[name] if v.name not in promised],
            reserved=lambda key: [*claimants[key], *(v for v in promised if claim_key(v) == key)],
            storage_class=self.classes.get,
            driver=self.drivers.get,
            csi_node=self.csi_nodes.get,
            capacities=lambda name: by_class[name],
            attached=lambda node: [
                a.spec.source.persistent_volume_name
                for a in by_node[node]
                if a.spec.source.persistent_volume_name
            ],
            budgets=self.budgets.namespace,
        )

    def _labels_of_namespace(self, name: str) -> Mapping[str, str]:
        namespace = self.namespaces.get(name)
        return namespace.metadata.labels if namespace is not None else {}

    # --- which keys a change wakes

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        if new is None:
            assert old is not None
            if old.spec.node_name:
                return () if pods.has_ended(old) else self.memory.unschedulable.pods_woken_by(Pod)
            return (old.key,) if old.key in self.memory.reserved else ()
        if new.spec.node_name:
            return self._keys_of_placed(old, new)
        if old is not None and old.spec == new.spec and old.is_deleting == new.is_deleting:
            return ()  # only the status changed: most likely our own condition
        return (new.key,)

    def _keys_of_placed(self, old: Pod | None, new: Pod) -> Iterable[str]:
        refused = self.memory.unschedulable
        had_node = old is not None and bool(old.spec.node_name)
        if pods.has_ended(new):
            return refused.pods_woken_by(Pod) if old is not None and not pods.has_ended(old) else ()
        if had_node and old is not None and old.metadata.labels == new.metadata.labels:
            return ()
        return refused.pods_refused_by(
            "InterPodAffinity", "PodTopologySpread"
        )  # pods that wait for pods with matching labels

    def keys_of_namespace(self, old: Namespace | None, new: Namespace | None) -> Iterable[str]:
        if old is not None and new is not None and old.metadata.labels == new.metadata.labels:
            return ()
        return self.memory.unschedulable.pods_woken_by(Namespace)

    def keys_of_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        if new is None:
            assert old is not None
            return [key for key, r in self.memory.reserved.items() if r.node == old.name]
        if old is not None and relevant_node_fields(old) == relevant_node_fields(new):
            return ()  # a heartbeat
        return self.memory.unschedulable.pods_woken_by(Node)

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterable[str]:
        claim = new or old
        assert claim is not None
        return self._waiting_for(claim.key)

    def keys_of_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterable[str]:
        keys = {key for v in (old, new) if v is not None for key in self._waiting_for(claim_key(v))}
        if new is None or old is None or relevant_volume_fields(old) != relevant_volume_fields(new):
            keys.update(self.memory.unschedulable.pods_woken_by(PersistentVolume))
        return keys

    def keys_of_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> Iterable[str]:
        return self.memory.unschedulable.pods_woken_by(VolumeAttachment) if new is None else ()

    def _waiting_for(self, claim: str) -> list[str]:
        """Pods without a node that use the claim."""
        return [pod.key for pod in self.users[claim] if not pod.spec.node_name] if claim else []

    def observe_claim(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        """A change of its own claim ends the pod's backoff."""
        claim = new or old
        assert claim is not None
        self.memory.clear_backoff(self._waiting_for(claim.key))

    def observe_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        for volume in (old, new):
            if volume is not None:
                self.memory.clear_backoff(self._waiting_for(claim_key(volume)))

    # --- what the caches show

    def view(self, key: str) -> SchedulingView | None:
        pod, reservation = self.pods.at(key), self.memory.reserved.get(key)
        if pod is not None and not self._is_ours(pod):
            pod = None
        if pod is None and reservation is None:
            return None
        return self.view_pod(key, pod, reservation)

    def view_pod(self, key: str, pod: Pod | None, reservation: Reservation | None = None) -> SchedulingView:
        return SchedulingView(
            key,
            pod,
            self.snapshot,
            self.nodes.get,
            self.claim_bindings,
            reservation=reservation,
            now=clock.now(),
            pause=self.memory.unschedulable.pause(key, clock.now()),
            start=self.memory.start,
            profile=self._profile_of(pod) or DEFAULT_PROFILE,
        )

    def _is_ours(self, pod: Pod) -> bool:
        if pod.spec.node_name or pod.is_deleting or pods.has_ended(pod):
            return False
        return self._profile_of(pod) is not None

    def _profile_of(self, pod: Pod | None) -> SchedulerProfile | None:
        return self.profiles.get(pod.spec.scheduler_name or DEFAULT) if pod is not None else None

    def claim_bindings(self, bindings: Bindings) -> list[prebind.ClaimBinding]:
        pairs = []
        for claim, volume in bindings.static:
            now = self.claims.at(claim.key)
            pairs.append(
                prebind.ClaimBinding(
                    claim.name, now, self.volumes.get(volume.name), assumed_volume=volume.name
                )
            )
        for claim in bindings.dynamic:
            now = self.claims.at(claim.key)
            named = now.spec.volume_name if now is not None else ""
            pairs.append(prebind.ClaimBinding(claim.name, now, self.volumes.get(named) if named else None))
        return pairs

    # --- what to do

    def plan(self, view: SchedulingView) -> Iterable[Step | CommonStep]:
        if view.pod is None or view.reservation is not None:
            return plan(view)
        with trace.span(DEFAULT, "filter and score", f"pod/{view.key}"):
            return list(plan(view))

    def update_memory(
        self, key: str, view: SchedulingView | None, steps: Sequence[Step | CommonStep]
    ) -> None:
        """Note reservations and nominations before the next pod is planned."""
        for step in steps:
            if isinstance(step, ReserveNode):
                assert view is not None
                assert view.pod is not None
                self.memory.reserve(view.pod, step)
            elif isinstance(step, MarkUnschedulable):
                assert view is not None
                assert view.pod is not None
                self.memory.refuse(view.pod, step.refusal)

    # --- acting

    async def act(self, key: str, view: SchedulingView, step: Step) -> Stop | None:
        if isinstance(step, ReleaseReservation):
            self._release(key)
            return None
        pod = view.pod
        assert pod is not None
        match step:
            case ReserveNode():
                pass  # `update_memory` has noted it
            case WriteBindings(reservation):
                if self.memory.reserved.get(key) is not reservation:
                    return Stop()  # the caches show by now that the pod was bound by someone else
                await self._write(pod, reservation)
            case BindPod(reservation):
                await self._bind(pod, reservation)
            case AbortReservation(why):
                await self._abort(pod, why)
            case MarkUnschedulable(refusal):
                await self._report_refusal(pod, refusal.message)
                if refusal.evict is not None:
                    await evict_victims(self.client, self.events, pod, refusal.evict)
            case _:
                assert_never(step)
        return None

    async def _write(self, pod: Pod, reservation: Reservation) -> None:
        """Volumes first, then claims."""
        self.memory.reserved[pod.key] = structs.replace(reservation, written=True)
        node = reservation.node
        try:
            for claim, volume in reservation.bindings.static:
                revision = volume.metadata.resource_version
                with trace.span(DEFAULT, "claimRef", f"pvc/{claim.key}", volume=volume.name, node=node):
                    await self.client.patch(
                        PersistentVolume, volume.name, merge=claim_ref_patch(volume, claim), revision=revision
                    )
            for claim in reservation.to_select:
                patch = {"metadata": {"annotations": {SELECTED_NODE_ANNOTATION: node}}}
                with trace.span(DEFAULT, "selected-node", f"pvc/{claim.key}", node=node):
                    await self.client.patch(
                        PersistentVolumeClaim,
                        claim.name,
                        claim.namespace,
                        merge=patch,
                        revision=claim.metadata.resource_version,
                    )
        except BaseException:
            self._release(pod.key)  # what is written stays: the next decision uses it
            raise

    async def _bind(self, pod: Pod, reservation: Reservation) -> None:
        try:
            with trace.span(DEFAULT, "bind", f"pod/{pod.key}", node=reservation.node):
                await self.client.bind(pod, reservation.node)
        except (NotFound, Conflict) as error:  # the pod is gone, or bound already
            log.debug("%s: %s", pod.key, error)
            self._release(pod.key)
            return
        except BaseException:
            self._release(pod.key)
            raise
        self.memory.note_bound(pod.key)
        message = f"Successfully assigned {pod.key} to {reservation.node}"
        self.events.event(
            pod, "Normal", "Scheduled", message, pod.spec.scheduler_name or DEFAULT, action="Binding"
        )

    # --- failures

    async def _report_refusal(self, pod: Pod, message: str, reason: str = "Unschedulable") -> None:
        if self.memory.unschedulable.note_message(pod.key, message):
            trace.mark(DEFAULT, "FailedScheduling", f"pod/{pod.key}", why=message)
            name = pod.spec.scheduler_name or DEFAULT
            self.events.event(pod, "Warning", "FailedScheduling", message, name, action="Scheduling")
        nominated = self.memory.node_cache.nominated_node(pod.key)
        if (
            not has_scheduled_condition(pod, reason, message)
            or (pod.status.nominated_node_name or "") != nominated
        ):
            await self.client.patch(
                Pod,
                pod.name,
                pod.namespace,
                strategic=build_condition_patch(pod, reason, message, nominated),
                subresource="status",
                uid=pod.uid,
                missing_ok=True,
            )

    async def _abort(self, pod: Pod, why: str) -> None:
        self._release(pod.key)
        self.memory.unschedulable.put(pod.key, frozenset(), clock.now())
        pause = self.memory.unschedulable.pause(pod.key, clock.now())
        self.queue.later(pod.key, Wait(WaitReason.BINDING_ABORTED, seconds=pause, message=why))
        await self._report_refusal(pod, why, "SchedulerError")

    def _release(self, key: str) -> None:
        """Drop the decision and free what it reserved, unless it is written already."""
        if self.memory.release(key):
            for other in self.memory.unschedulable.pods_woken_by(Pod):
                self.queue.add(other)
