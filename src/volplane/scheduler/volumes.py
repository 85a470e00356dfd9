"""The volumes of a pod on a node: which are there, which come from what is unclaimed, which are to be made.

The subtle things. A claim counts as bound only when the binder has said so. A claim that names its volume
and is not bound yet is the binder's business, whatever its class says. A claim whose node was chosen before
keeps it: the provisioner may be at work there.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from volplane.api import quantity
from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.selectors import Labels
from volplane.api.storage import CSIStorageCapacity, StorageClass
from volplane.rules import classes, matching, pods, sizes, topology
from volplane.rules.binding import SELECTED_NODE, claim_class, is_bound
from volplane.scheduler.ledger import Info
from volplane.scheduler.world import World

NODE_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
BIND_CONFLICT = "node(s) didn't find available persistent volumes to bind"
NO_ROOM = "node(s) did not have enough free storage"
NO_VOLUME = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
UNBOUND = "pod has unbound immediate PersistentVolumeClaims"


class Claims(Struct, frozen=True):
    """The claims of a pod, the smallest first among those that have no volume yet."""

    bound: tuple[PersistentVolumeClaim, ...] = ()
    delayed: tuple[PersistentVolumeClaim, ...] = ()


class Bindings(Struct, frozen=True):
    """What has to be written so that the pod can use its volumes on one node; or why that cannot be."""

    static: tuple[tuple[PersistentVolumeClaim, PersistentVolume], ...] = ()
    dynamic: tuple[PersistentVolumeClaim, ...] = ()
    conflicts: tuple[str, ...] = ()


def sort_claims(pod: Pod, world: World) -> Claims | str:
    """The claims by what is to be done about them; a text when the pod has to wait for one on every node."""
    bound: list[PersistentVolumeClaim] = []
    delayed: list[PersistentVolumeClaim] = []
    waits = False
    for use in pods.uses(pod):
        claim = world.claim(f"{pod.namespace}/{use.claim}")
        trouble = _trouble(pod, use, claim)
        if claim is None or trouble:
            return trouble
        if is_bound(claim):
            bound.append(claim)
        elif not claim.spec.volume_name and classes.is_delayed(_class_of(claim, world)):
            delayed.append(claim)
        else:
            waits = True
    if waits:
        return UNBOUND
    delayed.sort(key=lambda c: (sizes.requested(c), c.name))
    return Claims(tuple(bound), tuple(delayed))


def _trouble(pod: Pod, use: pods.Use, claim: PersistentVolumeClaim | None) -> str:
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


def _class_of(claim: PersistentVolumeClaim, world: World) -> StorageClass | None:
    name = claim_class(claim)
    return world.storage_class(name) if name else None


def bindings_on(info: Info, claims: Claims, world: World) -> Bindings:
    conflicts: list[str] = []
    volumes = [world.volume(claim.spec.volume_name) for claim in claims.bound]
    if not all(v is None or topology.reachable_from(v, info.labels) for v in volumes):
        conflicts.append(NODE_CONFLICT)
    if any(v is None for v in volumes):
        conflicts.append(NO_VOLUME)
    found = _bind(info, claims.delayed, world) if claims.delayed else Bindings()
    return Bindings(found.static, found.dynamic, (*found.conflicts, *conflicts))


def _bind(info: Info, claims: Iterable[PersistentVolumeClaim], world: World) -> Bindings:
    static: list[tuple[PersistentVolumeClaim, PersistentVolume]] = []
    dynamic: list[PersistentVolumeClaim] = []
    taken: set[str] = set()
    for claim in claims:
        chosen = claim.metadata.annotations.get(SELECTED_NODE)
        if chosen is not None and chosen != info.name:
            return Bindings(conflicts=(BIND_CONFLICT,))
        volume = None if chosen is not None else _match(info, claim, taken, world)
        if volume is None:
            dynamic.append(claim)
        else:
            taken.add(volume.name)
            static.append((claim, volume))
    conflicts = {conflict for claim in dynamic if (conflict := _cannot_make(info, claim, world))}
    if BIND_CONFLICT in conflicts:
        conflicts = {BIND_CONFLICT}
    return Bindings(tuple(static), tuple(dynamic), tuple(conflicts))


def _match(
    info: Info, claim: PersistentVolumeClaim, taken: set[str], world: World
) -> PersistentVolume | None:
    candidates = [*world.reserved(claim.key), *world.unclaimed(claim_class(claim) or "")]
    if not candidates:
        return None
    return matching.best(claim, candidates, delayed=True, labels=info.labels, taken=taken)


def _cannot_make(info: Info, claim: PersistentVolumeClaim, world: World) -> str:
    """Why no volume for the claim can be made that reaches the node."""
    storage_class = _class_of(claim, world)
    if storage_class is None or storage_class.provisioner in ("", classes.NO_PROVISIONER):
        return BIND_CONFLICT
    if not topology.allowed(storage_class.allowed_topologies, info.labels):
        return BIND_CONFLICT
    driver = world.driver(classes.driver(storage_class.provisioner))
    if driver is None or not driver.spec.storage_capacity:
        return ""
    size = sizes.requested(claim)
    enough = any(_has_room(c, size, info) for c in world.capacities(storage_class.name))
    return "" if enough else NO_ROOM


def _has_room(capacity: CSIStorageCapacity, size: int, info: Info) -> bool:
    most = capacity.maximum_volume_size if capacity.maximum_volume_size is not None else capacity.capacity
    if most is None or quantity.value(most) < size or capacity.node_topology is None:
        return False
    return Labels.of(capacity.node_topology).matches(info.labels)
