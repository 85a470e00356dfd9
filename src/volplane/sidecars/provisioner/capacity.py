"""Which CSIStorageCapacity objects must exist: one per storage class and topology term.

A driver without topology has one term, the empty one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from msgspec import Struct

from volplane.api.core import Node
from volplane.api.meta import LabelSelector
from volplane.api.storage import CSINode, CSIStorageCapacity, StorageClass
from volplane.rules import classes
from volplane.sidecars.provisioner.topology import Term

MANAGER = "external-provisioner"
LONGEST_LABEL = 63


class CapacitySlot(Struct, frozen=True):
    """The class and topology term of one object."""

    storage_class: str
    term: Term

    @property
    def key(self) -> str:
        return "|".join([self.storage_class, *(f"{key}={value}" for key, value in self.term)])


def manager_label(node: str) -> str:
    """The value of the managed-by label: one for the cluster, or one per node."""
    label = f"{MANAGER}-{node}" if node else MANAGER
    if len(label) <= LONGEST_LABEL:
        return label
    digest = hashlib.sha256(node.encode()).hexdigest()[:16]
    return f"{MANAGER}-{digest}"


def list_terms(
    nodes: Mapping[str, Node], registrations: Mapping[str, CSINode], driver: str, *, topological: bool
) -> frozenset[Term]:
    """The topology terms of the nodes where the driver is registered."""
    found: set[Term] = set()
    for name, registration in registrations.items():
        entry = next((d for d in registration.spec.drivers if d.name == driver), None)
        if entry is None:
            continue
        keys = entry.topology_keys if topological else ()
        labels = nodes[name].metadata.labels if name in nodes else {}
        if all(key in labels for key in keys):
            found.add(tuple(sorted((key, labels[key]) for key in keys)))
    return frozenset(found)


def build_slots(
    storage_classes: Iterable[StorageClass], terms: Iterable[Term], driver: str, *, immediate: bool
) -> dict[str, CapacitySlot]:
    """The slots by key. The scheduler does not look at the capacities of classes with Immediate binding."""
    ours = [c for c in storage_classes if classes.driver_name(c.provisioner) == driver]
    names = [c.name for c in ours if immediate or classes.is_delayed(c)]
    slots = [CapacitySlot(name, term) for name in names for term in terms]
    return {slot.key: slot for slot in slots}


def slot_of(capacity: CSIStorageCapacity) -> CapacitySlot:
    labels = capacity.node_topology.match_labels if capacity.node_topology is not None else {}
    return CapacitySlot(capacity.storage_class_name, tuple(sorted(labels.items())))


def topology_selector(term: Term) -> LabelSelector:
    return LabelSelector(match_labels=dict(term))
