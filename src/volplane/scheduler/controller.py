"""Pods without a node are keys; a decision is one plan, its volumes may take a while, then the pod is bound.

Between the look at the world and the note of what was decided nothing else runs, so that any number of pods
are under way at the same time and none is decided on a world that another is changing. A pod that waits for
its volumes holds no worker: its claims' events wake it.

The subtle thing: what a restart forgets is only what was not written. A claim with a selected node leads
the next scheduler back to that node.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from msgspec import Struct

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
from volplane.client.client import Client
from volplane.loops.controller import Controller
from volplane.rules import pods
from volplane.rules.binding import SELECTED_NODE, claim_key, take
from volplane.scheduler import prebind
from volplane.scheduler.assumed import Assumed
from volplane.scheduler.evicting import evict
from volplane.scheduler.facts import (
    attached_node,
    capacity_class,
    claimant,
    condition,
    knows,
    offer,
    promised,
    reach,
    selected,
    unclaimed_class,
)
from volplane.scheduler.filters import FILTERS
from volplane.scheduler.ledger import Ledger
from volplane.scheduler.plan import Placement, Refusal, decide
from volplane.scheduler.refused import Refused
from volplane.scheduler.volumes import Bindings
from volplane.scheduler.world import World

log = logging.getLogger(__name__)

DEFAULT = "default-scheduler"
BIND_TIMEOUT = 600.0
EARLY = 0.001  # seconds by which a timer may ring before its time and still be right
RETRY = 300.0  # a backstop: unschedulable pods are looked at again even if nothing seems to have changed


class Reservation(Struct):
    """A node was chosen for the pod, and its volumes are on their way."""

    uid: str
    node: str
    bindings: Bindings
    deadline: float
    written: bool = False
    bound: bool = False  # said to the server; the caches will tell


class Scheduler(Controller[str]):
    name = "scheduler"
    component = DEFAULT
    workers = 256

    def __init__(
        self, client: Client, *, scheduler_name: str = DEFAULT, bind_timeout: float = BIND_TIMEOUT
    ) -> None:
        super().__init__(client)
        self.scheduler_name = scheduler_name
        self.bind_timeout = bind_timeout

    def setup(self) -> None:
        self.ledger = Ledger()
        self.refused = Refused(FILTERS)
        self.reserved: dict[str, Reservation] = {}
        self.start = 0
        self.pods = self.watch(Pod, self.keys_of_pod)
        self.users = self.pods.index("claims", pods.claim_keys)
        self.nodes = self.watch(Node, self.keys_of_node)
        self.claims = self.watch(PersistentVolumeClaim, self.keys_of_claim)
        self.volumes = self.watch(PersistentVolume, self.keys_of_volume)
        self.classes = self.watch(StorageClass, lambda old, new: self.refused.woken_by(StorageClass))
        self.drivers = self.watch(CSIDriver, lambda old, new: self.refused.woken_by(CSIDriver))
        self.csi_nodes = self.watch(CSINode, lambda old, new: self.refused.woken_by(CSINode))
        self.capacities = self.watch(
            CSIStorageCapacity, lambda old, new: self.refused.woken_by(CSIStorageCapacity)
        )
        self.attachments = self.watch(VolumeAttachment, self.keys_of_attachment)
        self.namespaces = self.watch(Namespace, self.keys_of_namespace)
        self.budgets = self.watch(PodDisruptionBudget, lambda old, new: ())
        self.ledger.crowd.space_labels = self._labels_of_namespace
        self.assumed_claims = Assumed(self.claims)
        self.assumed_volumes = Assumed(self.volumes)
        self.world = self._world()

    def _world(self) -> World:
        unclaimed = self.volumes.index("unclaimed by class", unclaimed_class)
        claimants = self.volumes.index("claimant", claimant)
        by_class = self.capacities.index("class", capacity_class)
        by_node = self.attachments.index("node", attached_node)
        promised = self.assumed_volumes
        return World(
            ledger=self.ledger,
            claim=self.assumed_claims.at,
            volume=self.assumed_volumes.at,
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

    # --- whom a change wakes

    def keys_of_pod(self, old: Pod | None, new: Pod | None) -> Iterable[str]:
        if new is None:
            assert old is not None
            self.refused.drop(old.key)
            self.ledger.expect_no_more(old.key)
            return self._given_back(old.key)
        if new.spec.node_name:
            return self._placed(old, new)
        if old is None and new.status.nominated_node_name:
            self.ledger.expect(new, new.status.nominated_node_name)  # a scheduler before us cleared it
        if old is not None and old.spec == new.spec and old.is_deleting == new.is_deleting:
            return ()  # only its status: most likely our own condition
        return (new.key,)

    def _placed(self, old: Pod | None, new: Pod) -> Iterable[str]:
        self.refused.drop(new.key)
        self.ledger.expect_no_more(new.key)
        if pods.has_ended(new):
            return self._given_back(new.key)
        self._keep(new.key)
        self.ledger.put_pod(new, new.spec.node_name)
        if old is not None and old.spec.node_name and old.metadata.labels == new.metadata.labels:
            return ()
        return self.refused.by("InterPodAffinity", "PodTopologySpread")  # who waits for company

    def _given_back(self, key: str) -> list[str]:
        """What the pod held, others may have now; whom to ask."""
        self._keep(key)
        for guest in self.ledger.guests_of(self.ledger.where(key)):
            self.refused.hurry(guest)
        return list(self.refused.woken_by(Pod)) if self.ledger.drop_pod(key) else []

    def keys_of_namespace(self, old: Namespace | None, new: Namespace | None) -> Iterable[str]:
        if old is not None and new is not None and old.metadata.labels == new.metadata.labels:
            return ()
        self.ledger.crowd.forget()
        return self.refused.woken_by(Namespace)

    def keys_of_node(self, old: Node | None, new: Node | None) -> Iterable[str]:
        if new is None:
            assert old is not None
            self.ledger.drop_node(old.name)
            return [key for key, r in self.reserved.items() if r.node == old.name]
        self.ledger.put_node(new)
        if old is not None and offer(old) == offer(new):
            return ()  # a heartbeat
        return self.refused.woken_by(Node)

    def keys_of_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Iterable[str]:
        claim = new or old
        assert claim is not None
        return self._waiting_for(claim.key)

    def keys_of_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterable[str]:
        keys = {key for v in (old, new) if v is not None for key in self._waiting_for(claim_key(v))}
        if new is None or old is None or reach(old) != reach(new):
            keys.update(self.refused.woken_by(PersistentVolume))
        return keys

    def keys_of_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> Iterable[str]:
        return self.refused.woken_by(VolumeAttachment) if new is None else ()

    def _waiting_for(self, claim: str) -> list[str]:
        """Pods that use the claim and have no node; it is their own business, so they need not hold back."""
        keys = [pod.key for pod in self.users[claim] if not pod.spec.node_name] if claim else []
        for key in keys:
            self.refused.hurry(key)
        return keys

    # --- one pod

    async def reconcile(self, key: str) -> None:
        await self.nodes.live()  # one may have been cordoned or lost while the server was away
        pod = self.pods.at(key)
        if pod is None or not self._is_ours(pod):
            self._release(key)
            return
        reservation = self.reserved.get(key)
        if reservation is not None and reservation.uid != pod.uid:
            self._release(key)
            reservation = None
        if reservation is None:
            pause = self.refused.pause(key, clock.now())
            if pause > EARLY:
                self.queue.later(key, pause, "refused a moment ago")
                return
            reservation = await self._choose(pod)
        if reservation is not None and not reservation.bound:
            await self._go_on(pod, reservation)

    def _is_ours(self, pod: Pod) -> bool:
        if pod.spec.node_name or pod.is_deleting or pods.has_ended(pod):
            return False
        if pod.spec.scheduling_gates:
            gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
            self.queue.later(pod.key, float("inf"), f"scheduling gates: {gates}")
            return False
        return (pod.spec.scheduler_name or DEFAULT) == self.scheduler_name

    async def _choose(self, pod: Pod) -> Reservation | None:
        with trace.span(DEFAULT, "filter and score", f"pod/{pod.key}"):
            decision = decide(pod, self.world, start=self.start)
        if isinstance(decision, Placement):
            self.start += decision.searched
            return self._reserve(pod, decision)
        self._expect(pod, decision)
        await self._refuse(pod, decision.message, decision.by)
        if decision.evict is not None:
            await evict(self.client, self.events, pod, decision.evict)
        return None

    def _expect(self, pod: Pod, refusal: Refusal) -> None:
        """Before anybody else decides: what is cleared for this pod is not given to a lesser one."""
        if refusal.evict is not None:
            self.ledger.expect(pod, refusal.evict.node)
        elif not refusal.waiting:
            self.ledger.expect_no_more(pod.key)

    def _reserve(self, pod: Pod, placement: Placement) -> Reservation:
        self.ledger.expect_no_more(pod.key)
        self.ledger.put_pod(pod, placement.node)
        for claim, volume in placement.bindings.static:
            self.assumed_volumes.put(promised(volume, claim))
        for claim in placement.bindings.dynamic:
            self.assumed_claims.put(selected(claim, placement.node))
        deadline = clock.now() + self.bind_timeout
        reservation = Reservation(pod.uid, placement.node, placement.bindings, deadline)
        self.reserved[pod.key] = reservation
        return reservation

    async def _go_on(self, pod: Pod, reservation: Reservation) -> None:
        node = self.nodes.get(reservation.node)
        if node is None:
            await self._abort(pod, f'node "{reservation.node}" not found')
            return
        if not reservation.written:
            reservation.written = True
            if await self._write(pod, reservation):
                self.queue.add(pod.key)  # looked at again when the caches show what was written
                return
        state = prebind.progress(node, self.pairs(pod, reservation.bindings))
        match state:
            case prebind.Aborted(why):
                await self._abort(pod, prebind.FAILED.format(why))
            case prebind.Working(why):
                left = reservation.deadline - clock.now()
                if left > EARLY:
                    self.queue.later(pod.key, left, why)
                else:
                    await self._abort(pod, prebind.FAILED.format(prebind.TIMED_OUT))
            case prebind.Ready():
                await self._bind(pod, reservation)

    async def _write(self, pod: Pod, reservation: Reservation) -> bool:
        """Volumes first, then claims; whether there was anything to write."""
        bindings, node = reservation.bindings, reservation.node
        try:
            for claim, volume in bindings.static:
                revision = volume.metadata.resource_version
                with trace.span(DEFAULT, "claimRef", f"pvc/{claim.key}", volume=volume.name, node=node):
                    await self.client.patch(
                        PersistentVolume, volume.name, merge=take(volume, claim), revision=revision
                    )
            fresh = [c for c in bindings.dynamic if c.metadata.annotations.get(SELECTED_NODE) != node]
            for claim in fresh:
                patch = {"metadata": {"annotations": {SELECTED_NODE: node}}}
                with trace.span(DEFAULT, "selected-node", f"pvc/{claim.key}", node=node):
                    await self.client.patch(
                        PersistentVolumeClaim,
                        claim.name,
                        claim.namespace,
                        merge=patch,
                        revision=claim.metadata.resource_version,
                    )
        except BaseException:
            self._release(pod.key)  # nothing is taken back: the next decision builds on what was written
            raise
        return bool(bindings.static or fresh)

    def pairs(self, pod: Pod, bindings: Bindings) -> list[prebind.Pair]:
        pairs = []
        for claim, volume in bindings.static:
            now = self.claims.at(claim.key)
            pairs.append(prebind.Pair(claim.name, now, self.volumes.get(volume.name), promised=volume.name))
        for claim in bindings.dynamic:
            now = self.claims.at(claim.key)
            named = now.spec.volume_name if now is not None else ""
            pairs.append(prebind.Pair(claim.name, now, self.volumes.get(named) if named else None))
        return pairs

    async def _bind(self, pod: Pod, reservation: Reservation) -> None:
        try:
            with trace.span(DEFAULT, "bind", f"pod/{pod.key}", node=reservation.node):
                await self.client.bind(pod, reservation.node)
        except (NotFound, Conflict) as error:  # the pod is gone, or somebody else has placed it
            log.debug("%s: %s", pod.key, error)
            self._release(pod.key)
            return
        except BaseException:
            self._release(pod.key)
            raise
        reservation.bound = True
        self.refused.drop(pod.key)
        message = f"Successfully assigned {pod.key} to {reservation.node}"
        self.events.event(pod, "Normal", "Scheduled", message, action="Binding")

    # --- when it does not work out

    async def _refuse(
        self, pod: Pod, message: str, by: frozenset[str], reason: str = "Unschedulable"
    ) -> None:
        record = self.refused.put(pod.key, by, clock.now())
        self.queue.later(pod.key, RETRY, message)
        if record.told != message:
            record.told = message
            trace.mark(DEFAULT, "FailedScheduling", f"pod/{pod.key}", why=message)
            self.events.event(pod, "Warning", "FailedScheduling", message, action="Scheduling")
        cleared = self.ledger.expected_on(pod.key)
        if not knows(pod, reason, message) or (pod.status.nominated_node_name or "") != cleared:
            await self.client.patch(
                Pod,
                pod.name,
                pod.namespace,
                strategic=condition(pod, reason, message, cleared),
                subresource="status",
                uid=pod.uid,
                missing_ok=True,
            )

    async def _abort(self, pod: Pod, why: str) -> None:
        self._release(pod.key)
        await self._refuse(pod, why, frozenset(), "SchedulerError")
        self.queue.later(pod.key, self.refused.pause(pod.key, clock.now()), why)

    def _release(self, key: str) -> None:
        """The decision is void: what it took is free again, as far as it was not written."""
        if key in self.reserved:
            for other in self._given_back(key):
                self.queue.add(other)

    def _keep(self, key: str) -> None:
        """The decision needs no book-keeping any more; what it assumed the caches know better."""
        reservation = self.reserved.pop(key, None)
        if reservation is not None:
            for _, volume in reservation.bindings.static:
                self.assumed_volumes.drop(volume.key)
            for claim in reservation.bindings.dynamic:
                self.assumed_claims.drop(claim.key)
