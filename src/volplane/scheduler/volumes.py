"""The volumes of a pod on a node: bound already, to be matched with free ones, or to be provisioned.

A claim counts as bound only when the binder has written so. A claim that names its volume and is not bound
yet is left to the binder, whatever its class says. A claim whose node was selected before keeps it, because
the provisioner may already be creating the volume there.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from volplane.api import quantity
from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod, TopologySelectorTerm
from volplane.api.selectors import LabelMatcher
from volplane.api.storage import CSIStorageCapacity, StorageClass
from volplane.rules import classes, matching, pods, sizes, topology
from volplane.rules.binding import claim_class, is_bound
from volplane.scheduler.node_cache import NodeInfo
from volplane.scheduler.scheduling_snapshot import SchedulingSnapshot

NODE_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
BIND_CONFLICT = "node(s) didn't find available persistent volumes to bind"
NO_ROOM = "node(s) did not have enough free storage"
NO_VOLUME = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
UNBOUND = "pod has unbound immediate PersistentVolumeClaims"


class DelayedBinding(Struct, frozen=True):
    """A claim without a volume, with everything that decides about it on any node."""

    claim: PersistentVolumeClaim
    size: int
    selected_node: str | None  # from its selected-node annotation
    candidates: tuple[PersistentVolume, ...]  # reserved for it, or unclaimed
    can_provision: bool  # its class has a provisioner
    topologies: tuple[TopologySelectorTerm, ...] = ()  # allowedTopologies of its class
    capacities: tuple[CSIStorageCapacity, ...] | None = None  # None: the driver does not report capacity


class PodClaims(Struct, frozen=True):
    """The claims of a pod: volumes of bound ones, and the others, the smallest first."""

    bound: tuple[PersistentVolume | None, ...] = ()
    delayed: tuple[DelayedBinding, ...] = ()


class Bindings(Struct, frozen=True):
    """What to write so that the pod can use its volumes on one node, or why it cannot."""

    static: tuple[tuple[PersistentVolumeClaim, PersistentVolume], ...] = ()
    dynamic: tuple[PersistentVolumeClaim, ...] = ()
    conflicts: tuple[str, ...] = ()


def sort_claims(pod: Pod, snapshot: SchedulingSnapshot) -> PodClaims | str:
    """Sort the claims into bound and delayed ones; a message if the pod has to wait on every node."""
    bound: list[PersistentVolume | None] = []
    delayed: list[DelayedBinding] = []
    waits = False
    for use in pods.claim_uses(pod):
        claim = snapshot.claim(f"{pod.namespace}/{use.claim}")
        trouble = _find_claim_problem(pod, use, claim)
        if claim is None or trouble:
            return trouble
        if is_bound(claim):
            bound.append(snapshot.volume(claim.spec.volume_name))
        elif not claim.spec.volume_name and classes.is_delayed(_class_of(claim, snapshot)):
            delayed.append(_delayed_binding(claim, snapshot))
        else:
            waits = True
    if waits:
        return UNBOUND
    delayed.sort(key=lambda each: (each.size, each.claim.name))
    return PodClaims(tuple(bound), tuple(delayed))


def _delayed_binding(claim: PersistentVolumeClaim, snapshot: SchedulingSnapshot) -> DelayedBinding:
    storage_class = _class_of(claim, snapshot)
    assert storage_class is not None, "its class delays it"
    provisioner = storage_class.provisioner
    driver = snapshot.driver(classes.driver_name(provisioner))
    counted = driver is not None and bool(driver.spec.storage_capacity)
    return DelayedBinding(
        claim,
        size=sizes.requested_size(claim),
        selected_node=claim.metadata.annotations.get(SELECTED_NODE_ANNOTATION),
        candidates=(*snapshot.reserved(claim.key), *snapshot.unclaimed(storage_class.name)),
        can_provision=provisioner not in ("", classes.NO_PROVISIONER),
        topologies=storage_class.allowed_topologies,
        capacities=tuple(snapshot.capacities(storage_class.name)) if counted else None,
    )


def _find_claim_problem(pod: Pod, use: pods.PodClaimUse, claim: PersistentVolumeClaim | None) -> str:
    quoted = f'persistentvolumeclaim "{use.claim}"'
    if claim is None and use.ephemeral:
        return f"waiting for ephemeral volume controller to create the {quoted}"
    if claim is None:
        return f"{quoted} not found"
    if claim.status.phase == "Lost":
        return f'{quoted} bound to non-existent persistentvolume "{claim.spec.volume_name}"'
    if claim.is_deleting:
        return f"{quoted} is being deleted"
    if use.ephemeral and not pods.owns(pod, claim):
        return pods.ephemeral_conflict(pod, claim)
    return ""


def _class_of(claim: PersistentVolumeClaim, snapshot: SchedulingSnapshot) -> StorageClass | None:
    name = claim_class(claim)
    return snapshot.storage_class(name) if name else None


def bindings_on(info: NodeInfo, claims: PodClaims) -> Bindings:
    conflicts: list[str] = []
    if not all(v is None or topology.is_reachable_from(v, info.labels) for v in claims.bound):
        conflicts.append(NODE_CONFLICT)
    if None in claims.bound:
        conflicts.append(NO_VOLUME)
    found = _bind(info, claims.delayed) if claims.delayed else Bindings()
    return Bindings(found.static, found.dynamic, (*found.conflicts, *conflicts))


def _bind(info: NodeInfo, bindings: Iterable[DelayedBinding]) -> Bindings:
    static: list[tuple[PersistentVolumeClaim, PersistentVolume]] = []
    dynamic: list[DelayedBinding] = []
    taken: set[str] = set()
    for delayed in bindings:
        if delayed.selected_node is not None and delayed.selected_node != info.name:
            return Bindings(conflicts=(BIND_CONFLICT,))
        volume = _match_volume(info, delayed, taken)
        if volume is None:
            dynamic.append(delayed)
        else:
            taken.add(volume.name)
            static.append((delayed.claim, volume))
    conflicts = {conflict for delayed in dynamic if (conflict := _provisioning_conflict(info, delayed))}
    if BIND_CONFLICT in conflicts:
        conflicts = {BIND_CONFLICT}
    return Bindings(tuple(static), tuple(delayed.claim for delayed in dynamic), tuple(conflicts))


def _match_volume(info: NodeInfo, delayed: DelayedBinding, taken: set[str]) -> PersistentVolume | None:
    if delayed.selected_node is not None or not delayed.candidates:
        return None
    return matching.best(delayed.claim, delayed.candidates, delayed=True, labels=info.labels, taken=taken)


def _provisioning_conflict(info: NodeInfo, delayed: DelayedBinding) -> str:
    """Why no volume for the claim can be provisioned for the node; "" if one can."""
    if not delayed.can_provision or not topology.allows_node(delayed.topologies, info.labels):
        return BIND_CONFLICT
    if delayed.capacities is None or any(_has_room(c, delayed.size, info) for c in delayed.capacities):
        return ""
    return NO_ROOM


def _has_room(capacity: CSIStorageCapacity, size: int, info: NodeInfo) -> bool:
    most = capacity.maximum_volume_size if capacity.maximum_volume_size is not None else capacity.capacity
    if most is None or quantity.value(most) < size or capacity.node_topology is None:
        return False
    return LabelMatcher.of(capacity.node_topology).matches(info.labels)
