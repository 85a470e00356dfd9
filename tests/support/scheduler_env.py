"""The scheduler and the binder with the real API server; the test acts as the provisioner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from tests.controllers.objects import DRIVER, account, claim, storage_class, volume
from tests.loops.inprocess import InProcessEnv, running, until, world
from volplane.api import codec
from volplane.api.annotations import SELECTED_NODE_ANNOTATION
from volplane.api.core import Event, Node, PersistentVolumeClaim, Pod, PodCondition
from volplane.api.storage import CSINode, CSIStorageCapacity
from volplane.controllers.binder.controller import Binder
from volplane.scheduler.controller import Scheduler

ZONE = "topology.kubernetes.io/zone"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIM = "No preemption victims found for incoming pod"


class SchedulerEnv:
    def __init__(self, around: InProcessEnv) -> None:
        self.client = around.client
        self.around = around

    async def wait_until_scheduled(self, name: str, seconds: float = 30.0) -> str:
        async def node_name() -> str:
            return (await self.client.get(Pod, name, "default")).spec.node_name

        found: str = await until(node_name, seconds)
        return found

    async def condition(self, name: str) -> PodCondition | None:
        conditions = (await self.client.get(Pod, name, "default")).status.conditions
        return next((c for c in conditions if c.type == "PodScheduled"), None)

    async def expect_unschedulable(self, name: str, message: str, reason: str = "Unschedulable") -> None:
        async def has_condition() -> bool:
            seen = await self.condition(name)
            return (
                seen is not None
                and (seen.status, seen.reason) == ("False", reason)
                and message == seen.message
            )

        await until(has_condition)
        await self.expect_event("FailedScheduling", message)

    async def expect_event(self, reason: str, message: str) -> None:
        async def has_event() -> bool:
            events = await self.client.list(Event, "default")
            return any(e.reason == reason and e.message == message for e in events)

        await until(has_event)

    async def claim(self, name: str) -> PersistentVolumeClaim:
        return await self.client.get(PersistentVolumeClaim, name, "default")

    async def wait_for_selected_node(self, name: str) -> str:
        async def selected_node() -> str:
            return (await self.claim(name)).metadata.annotations.get(SELECTED_NODE_ANNOTATION, "")

        found: str = await until(selected_node)
        return found

    async def provision(self, name: str, zone: str = "a") -> None:
        """Wait for the selected node, and create the volume."""
        await self.wait_for_selected_node(name)
        mine = await self.claim(name)
        reference = {"namespace": "default", "name": name, "uid": mine.uid}
        made = f"pvc-{mine.uid}"
        cls = mine.spec.storage_class_name or ""
        await self.client.create(volume(made, cls=cls, claimRef=reference, **in_zone(zone)))

    async def give_up(self, name: str) -> None:
        await self.client.patch(
            PersistentVolumeClaim,
            name,
            "default",
            merge={"metadata": {"annotations": {SELECTED_NODE_ANNOTATION: None}}},
        )

    async def settle(self, seconds: float = 1.0) -> None:
        await asyncio.sleep(seconds)  # virtual time: everything that can happen has happened

    async def create_bound_claim(self, name: str, mode: str = "ReadWriteOnce", **more: Any) -> None:
        """Create a claim of class `now` and its volume `pv-<name>`."""
        mine = await self.client.create(claim(name, cls="now", accessModes=[mode]))
        reference = {"namespace": "default", "name": name, "uid": mine.uid}
        made = volume(f"pv-{name}", cls="now", claimRef=reference, accessModes=[mode], **more)
        await self.client.create(made)

    async def wait_until_bound(self, name: str) -> PersistentVolumeClaim:
        """Wait until the binder has bound the claim."""
        await until(lambda: self._is_bound(name))
        await self.settle()
        return await self.claim(name)

    async def _is_bound(self, name: str) -> bool:
        return (await self.claim(name)).status.phase == "Bound"

    async def limit(self, name: str, most: int) -> None:
        """Set the attach limit of the node."""
        driver = {"name": DRIVER, "nodeID": name, "topologyKeys": [], "allocatable": {"count": most}}
        await self.client.create(
            codec.convert(CSINode, {"metadata": {"name": name}, "spec": {"drivers": [driver]}})
        )

    def scheduling(self, **options: Any) -> AbstractAsyncContextManager[Any]:
        return running(Scheduler(self.around.role("scheduler"), **options).run())


def tail(nodes: int, why: str) -> str:
    """The end of every message, about preemption."""
    return f" no new claims to deallocate, preemption: 0/{nodes} nodes are available: {nodes} {why}."


def in_zone(zone: str) -> dict[str, Any]:
    """The node affinity of a volume."""
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}


def capacity(name: str, size: str, zone: str = "a") -> CSIStorageCapacity:
    whole = {
        "metadata": {"name": name, "namespace": "default"},
        "storageClassName": "late",
        "capacity": size,
        "nodeTopology": {"matchLabels": {ZONE: zone}},
    }
    return codec.convert(CSIStorageCapacity, whole)


@asynccontextmanager
async def scheduler_env(
    *nodes: Node, binder: bool = True, scheduler: bool = True, **options: Any
) -> AsyncIterator[SchedulerEnv]:
    async with world() as around:
        await around.client.create(account())
        for each in nodes:
            await around.client.create(each)
        await around.client.create(storage_class("now"))
        await around.client.create(storage_class("late", "WaitForFirstConsumer"))
        await around.client.create(
            storage_class("hand", "WaitForFirstConsumer", provisioner="kubernetes.io/no-provisioner")
        )
        jobs = []
        if scheduler:
            jobs.append(Scheduler(around.role("scheduler"), **options).run())
        if binder:
            jobs.append(Binder(around.role("binder")).run())
        async with running(*jobs):
            yield SchedulerEnv(around)
