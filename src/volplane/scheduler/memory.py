"""What only the running scheduler knows: nodes and their pods, reservations, unschedulable pods.

A pod counts on its node from the moment of the decision; the caches confirm it later.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from volplane.api.core import Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod
from volplane.base import clock
from volplane.base.backoff import Backoff
from volplane.client.cache import Cache
from volplane.rules import pods
from volplane.scheduler.assume_cache import AssumeCache
from volplane.scheduler.filters import FILTERS
from volplane.scheduler.indexers import with_claim_ref, with_selected_node
from volplane.scheduler.node_cache import NodeCache
from volplane.scheduler.plan import Reservation, ReserveNode, Unschedulable
from volplane.scheduler.pod_affinity_index import NamespaceLabels
from volplane.scheduler.unschedulable_pods import UnschedulablePods


class SchedulerMemory:
    def __init__(
        self,
        claims: Cache[PersistentVolumeClaim],
        volumes: Cache[PersistentVolume],
        namespace_labels: NamespaceLabels,
        backoff: Backoff,
    ) -> None:
        self.node_cache = NodeCache(namespace_labels)
        self.unschedulable = UnschedulablePods(FILTERS, backoff)
        self.reserved: dict[str, Reservation] = {}  # by the pod's key
        self.start = 0  # where in the list of nodes the next search begins
        self.assumed_claims = AssumeCache(claims)
        self.assumed_volumes = AssumeCache(volumes)

    # --- what the caches show

    def observe_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        if new is None or new.spec.node_name:
            self.unschedulable.drop(pod.key)
            self.node_cache.remove_nomination(pod.key)
        if new is None:
            if pod.spec.node_name:
                self._free(pod.key)  # a pod without a node is released by its own plan
        elif not new.spec.node_name:
            if old is None and new.status.nominated_node_name:
                self.node_cache.nominate(new, new.status.nominated_node_name)  # by an earlier scheduler
        elif pods.has_ended(new):
            self._free(new.key)
        else:
            self._drop_reservation(new.key)
            self.node_cache.put_pod(new, new.spec.node_name)

    def observe_node(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self.node_cache.put_node(new)
        elif old is not None:
            self.node_cache.drop_node(old.name)

    def observe_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self.node_cache.affinity_index.clear_counts()

    def clear_backoff(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.unschedulable.clear_backoff(key)

    # --- what was decided

    def reserve(self, pod: Pod, step: ReserveNode) -> None:
        reservation = step.reservation
        self.start += step.searched
        self.node_cache.remove_nomination(pod.key)
        self.node_cache.put_pod(pod, reservation.node)
        for claim, volume in reservation.bindings.static:
            self.assumed_volumes.put(with_claim_ref(volume, claim))
        for claim in reservation.bindings.dynamic:
            self.assumed_claims.put(with_selected_node(claim, reservation.node))
        self.reserved[pod.key] = reservation

    def refuse(self, pod: Pod, refusal: Unschedulable) -> None:
        """Note the refusal. A node that is being cleared for the pod is reserved against lower priorities."""
        if refusal.evict is not None:
            self.node_cache.nominate(pod, refusal.evict.node)
        elif not refusal.waiting:
            self.node_cache.remove_nomination(pod.key)
        self.unschedulable.put(pod.key, refusal.by, clock.now())

    def note_bound(self, key: str) -> None:
        reservation = self.reserved.get(key)
        if reservation is not None:  # None if the caches have shown it already
            self.reserved[key] = structs.replace(reservation, bound=True)
        self.unschedulable.drop(key)

    def release(self, key: str) -> bool:
        """Drop the reservation; True if that freed resources on a node."""
        return key in self.reserved and self._free(key)

    def _free(self, key: str) -> bool:
        self._drop_reservation(key)
        self.clear_backoff(self.node_cache.nominated_on(self.node_cache.node_of_pod(key)))
        return self.node_cache.drop_pod(key)

    def _drop_reservation(self, key: str) -> None:
        """Drop the reservation and its assumptions: the caches show them by now."""
        reservation = self.reserved.pop(key, None)
        if reservation is not None:
            for _, volume in reservation.bindings.static:
                self.assumed_volumes.drop(volume.key)
            for claim in reservation.bindings.dynamic:
                self.assumed_claims.drop(claim.key)
