"""Publishes the capacity of a driver, per storage class and topology term, for the scheduler.

The driver is asked every `--capacity-poll-interval`, and after every volume that was created or deleted. Our
own writes come back as changes; an object that differs from our last write was changed elsewhere and is
corrected.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from msgspec import Struct, structs

from volplane.api import quantity
from volplane.api.apps import DaemonSet, Deployment, ReplicaSet, StatefulSet
from volplane.api.core import Node, Pod
from volplane.api.labels import CAPACITY_DRIVER_LABEL, CAPACITY_MANAGED_BY_LABEL
from volplane.api.meta import ObjectMeta, OwnerReference, Resource
from volplane.api.storage import CSINode, CSIStorageCapacity, StorageClass
from volplane.base import metrics
from volplane.base.backoff import Backoff
from volplane.client.client import Client
from volplane.csi import convert, v1
from volplane.csi.outcome import CallError
from volplane.loops.controller import Controller, RetryableError
from volplane.loops.events import EventRecorder
from volplane.rules import classes
from volplane.rules.csi_translation import UntranslatableObject, translate_class
from volplane.rules.steps import CommonStep
from volplane.rules.waits import Wait, WaitReason
from volplane.rules.workloads import owner_reference
from volplane.sidecars.base import DriverClient
from volplane.sidecars.provisioner import capacity
from volplane.sidecars.provisioner.capacity import CapacitySlot
from volplane.sidecars.provisioner.settings import ProvisionerOptions
from volplane.sidecars.provisioner.topology import Term

log = logging.getLogger(__name__)

GOAL = metrics.gauge(
    "csistoragecapacities_desired_goal",
    "Number of CSIStorageCapacity objects that should exist",
)
CURRENT = metrics.gauge("csistoragecapacities_desired_current", "Number of those that should exist and do")
OBSOLETE = metrics.gauge("csistoragecapacities_obsolete", "Number of those that exist and will be deleted")

_OWNERS: Mapping[str, type[Resource]] = {
    "ReplicaSet": ReplicaSet,
    "StatefulSet": StatefulSet,
    "DaemonSet": DaemonSet,
    "Deployment": Deployment,
}


async def find_owner(client: Client, pod: str, namespace: str, level: int) -> OwnerReference | None:
    """The owner of the capacities, our pod (level 0) or its owner: they are deleted with the driver."""
    if level < 0:
        return None
    held: Resource = await client.get(Pod, pod, namespace)
    for _ in range(level):
        above = next((r for r in held.metadata.owner_references if r.controller), None)
        if above is None or above.kind not in _OWNERS:
            raise ValueError(f"{type(held).__name__} {held.key} has no owner that can own the capacities")
        held = await client.get(_OWNERS[above.kind], above.name, namespace)
    return structs.replace(owner_reference(held), controller=None, block_owner_deletion=None)


class CapacityView(Struct, frozen=True):
    slot: CapacitySlot | None  # None: the object is obsolete
    found: Sequence[CSIStorageCapacity]  # the oldest first: it is kept


class DeleteCapacity(Struct, frozen=True):
    capacity: CSIStorageCapacity


class PublishCapacity(Struct, frozen=True):
    """Ask the driver, and write what it returns."""

    slot: CapacitySlot
    existing: CSIStorageCapacity | None


Step = DeleteCapacity | PublishCapacity


class CapacityMemory:
    def __init__(self) -> None:
        self.published: dict[str, tuple[str | None, str | None]] = {}  # key → capacity, largest volume


class CapacityPublisher(Controller[str, CapacityView, Step]):
    name = "csi-provisioner-capacity"

    def __init__(
        self,
        client: Client,
        driver: DriverClient,
        settings: ProvisionerOptions,
        *,
        events: EventRecorder,
        namespace: str,
        owner: OwnerReference | None = None,
        node: str = "",
        segments: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            client,
            events=events,
            workers=max(1, settings.capacity_threads),
            backoff=Backoff(settings.retry_interval_start, settings.retry_interval_max),
        )
        self.driver, self.settings, self.namespace, self.owner = driver, settings, namespace, owner
        self.segments = segments
        self.topological = "VOLUME_ACCESSIBILITY_CONSTRAINTS" in driver.plugin
        self.labels = {
            CAPACITY_DRIVER_LABEL: driver.name,
            CAPACITY_MANAGED_BY_LABEL: capacity.manager_label(node),
        }

    def setup(self) -> None:
        self.memory = CapacityMemory()
        self.classes = self.watch(StorageClass, self.keys_of_class)
        if self.segments is None:
            self.nodes = self.watch(Node, self.keys_of_place)
            self.registrations = self.watch(CSINode, self.keys_of_place)
        selector = ",".join(f"{key}={value}" for key, value in self.labels.items())
        self.published = self.watch(
            CSIStorageCapacity, self.keys_of_published, namespace=self.namespace, labels=selector
        )

    # --- which keys a change wakes

    def refresh(self, storage_class: str) -> None:
        """A volume of this class was created or deleted."""
        for key, slot in self._slots().items():
            if slot.storage_class == storage_class:
                self.queue.add(key)

    def keys_of_class(self, old: StorageClass | None, new: StorageClass | None) -> Iterator[str]:
        changed = new or old
        if changed is not None and classes.driver_name(changed.provisioner) == self.driver.name:
            yield from self._changed_keys()

    def keys_of_place(self, old: Node | CSINode | None, new: Node | CSINode | None) -> Iterable[str]:
        if _topology_fields(old) != _topology_fields(new):
            yield from self._changed_keys()

    def keys_of_published(
        self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None
    ) -> Iterator[str]:
        changed = new or old
        assert changed is not None
        key = capacity.slot_of(changed).key
        if new is None or not self._is_as_published(key, new):
            yield key

    def _is_as_published(self, key: str, found: CSIStorageCapacity) -> bool:
        return self.memory.published.get(key) == (
            found.capacity,
            found.maximum_volume_size,
        ) and self._is_owned(found)

    def _is_owned(self, found: CSIStorageCapacity) -> bool:
        return self.owner is None or any(r.uid == self.owner.uid for r in found.metadata.owner_references)

    def _changed_keys(self) -> set[str]:
        """Slots without an object, and objects without a slot."""
        return set(self._slots()) ^ {capacity.slot_of(c).key for c in self.published.all()}

    # --- what to do

    def _terms(self) -> Iterable[Term]:
        if self.segments is not None:
            return [tuple(sorted(self.segments.items()))]
        return capacity.list_terms(
            self.nodes.names(), self.registrations.names(), self.driver.name, topological=self.topological
        )

    def _slots(self) -> dict[str, CapacitySlot]:
        return capacity.build_slots(
            self.classes.all(),
            self._terms(),
            self.driver.name,
            immediate=self.settings.capacity_for_immediate_binding,
        )

    def view(self, key: str) -> CapacityView:
        found = sorted(
            (c for c in self.published.all() if capacity.slot_of(c).key == key),
            key=lambda c: (c.metadata.creation_timestamp, c.name),
        )
        return CapacityView(self._slots().get(key), found)

    def plan(self, view: CapacityView) -> Iterator[Step | Wait]:
        slot, found = view.slot, view.found
        yield from (DeleteCapacity(extra) for extra in (found if slot is None else found[1:]))
        if slot is not None:
            yield PublishCapacity(slot, found[0] if found else None)
            yield Wait(WaitReason.CAPACITY_POLL, seconds=self.settings.capacity_poll_interval)

    def update_memory(self, key: str, view: CapacityView | None, steps: Sequence[Step | CommonStep]) -> None:
        self._count(self._slots())
        if view is not None and view.slot is None:
            self.memory.published.pop(key, None)

    async def act(self, key: str, view: CapacityView, step: Step) -> None:
        match step:
            case DeleteCapacity(extra):
                await self.client.delete(
                    CSIStorageCapacity, extra.name, extra.namespace, uid=extra.uid, missing_ok=True
                )
            case PublishCapacity(slot, found):
                await self._publish(key, slot, found)
            case _:
                assert_never(step)

    async def _publish(self, key: str, slot: CapacitySlot, found: CSIStorageCapacity | None) -> None:
        reply = await self._get_capacity(slot)
        largest = (
            quantity.from_bytes(reply.maximum_volume_size.value) if reply.maximum_volume_size.value else None
        )
        written = (quantity.from_bytes(reply.available_capacity), largest)
        self.memory.published[key] = written
        if found is None:
            await self.client.create(
                CSIStorageCapacity(
                    metadata=ObjectMeta(
                        generate_name="csisc-",
                        namespace=self.namespace,
                        labels=self.labels,
                        owner_references=(self.owner,) if self.owner is not None else (),
                    ),
                    node_topology=capacity.topology_selector(slot.term),
                    storage_class_name=slot.storage_class,
                    capacity=written[0],
                    maximum_volume_size=written[1],
                )
            )
        elif not self._is_as_published(key, found):
            patch: dict[str, object] = {"capacity": written[0], "maximumVolumeSize": written[1]}
            if self.owner is not None and not self._is_owned(found):
                owners = [*found.metadata.owner_references, self.owner]
                patch["metadata"] = {"ownerReferences": [_owner_patch(o) for o in owners]}
            await self.client.patch(
                CSIStorageCapacity, found.name, found.namespace, merge=patch, uid=found.uid, missing_ok=True
            )

    async def _get_capacity(self, slot: CapacitySlot) -> v1.GetCapacityResponse:
        storage_class = self.classes.get(slot.storage_class)
        try:
            parameters = dict(translate_class(storage_class).parameters) if storage_class is not None else {}
        except UntranslatableObject as error:
            raise RetryableError(str(error)) from error
        request = v1.GetCapacityRequest(parameters=parameters)
        if slot.term:
            request.accessible_topology.CopyFrom(convert.topology(dict(slot.term)))
        try:
            reply: v1.GetCapacityResponse = await self.driver.call(
                "GetCapacity", request, timeout=self.settings.timeout, subject=f"class/{slot.storage_class}"
            )
        except CallError as error:
            raise RetryableError(str(error)) from error
        return reply

    def _count(self, slots: Mapping[str, CapacitySlot]) -> None:
        keys = [capacity.slot_of(c).key for c in self.published.all()]
        current = {key for key in keys if key in slots}
        GOAL.set(len(slots))
        CURRENT.set(len(current))
        OBSOLETE.set(len(keys) - len(current))


def _owner_patch(reference: OwnerReference) -> dict[str, object]:
    return {
        "apiVersion": reference.api_version,
        "kind": reference.kind,
        "name": reference.name,
        "uid": reference.uid,
    }


def _topology_fields(obj: Node | CSINode | None) -> object:
    if isinstance(obj, Node):
        return obj.metadata.labels
    return obj.spec if obj is not None else None
