"""The scheduler on the real API server, the binder beside it: the cases of contract attach-and-mount E."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.controllers.objects import DRIVER, account, claim, driver, node, pod, storage_class, volume
from tests.loops.inprocess import World, running, until, world
from volplane.api import codec
from volplane.api.core import Event, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodCondition
from volplane.api.storage import CSINode, CSIStorageCapacity
from volplane.controllers.binder.controller import Binder
from volplane.rules.binding import BOUND_BY_CONTROLLER, SELECTED_NODE
from volplane.scheduler.controller import Scheduler

pytestmark = pytest.mark.virtual
ZONE = "topology.kubernetes.io/zone"


class Bench:
    def __init__(self, around: World) -> None:
        self.client = around.client
        self.around = around

    async def placed(self, name: str, seconds: float = 30.0) -> str:
        async def there() -> str:
            return (await self.client.get(Pod, name, "default")).spec.node_name

        found: str = await until(there, seconds)
        return found

    async def condition(self, name: str) -> PodCondition | None:
        conditions = (await self.client.get(Pod, name, "default")).status.conditions
        return next((c for c in conditions if c.type == "PodScheduled"), None)

    async def refused(self, name: str, message: str, reason: str = "Unschedulable") -> None:
        async def told() -> bool:
            seen = await self.condition(name)
            return (
                seen is not None
                and (seen.status, seen.reason) == ("False", reason)
                and message == seen.message
            )

        await until(told)
        await self.heard("FailedScheduling", message)

    async def heard(self, reason: str, message: str) -> None:
        async def told() -> bool:
            events = await self.client.list(Event, "default")
            return any(e.reason == reason and e.message == message for e in events)

        await until(told)

    async def claim(self, name: str) -> PersistentVolumeClaim:
        return await self.client.get(PersistentVolumeClaim, name, "default")

    async def selected(self, name: str) -> str:
        async def there() -> str:
            return (await self.claim(name)).metadata.annotations.get(SELECTED_NODE, "")

        found: str = await until(there)
        return found

    async def provision(self, name: str, zone: str = "a") -> None:
        """What the provisioner does when the node is selected."""
        await self.selected(name)
        mine = await self.claim(name)
        term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
        reference = {"namespace": "default", "name": name, "uid": mine.uid}
        await self.client.create(
            volume(
                f"pvc-{mine.uid}",
                cls=mine.spec.storage_class_name or "",
                claimRef=reference,
                nodeAffinity={"required": {"nodeSelectorTerms": [term]}},
            )
        )

    async def give_up(self, name: str) -> None:
        await self.client.patch(
            PersistentVolumeClaim, name, "default", merge={"metadata": {"annotations": {SELECTED_NODE: None}}}
        )

    async def settle(self, seconds: float = 1.0) -> None:
        await asyncio.sleep(seconds)  # virtual time: whatever can happen has happened


@asynccontextmanager
async def bench(*nodes: Node, binder: bool = True, **options: Any) -> AsyncIterator[Bench]:
    async with world() as around:
        await around.client.create(account())
        for each in nodes:
            await around.client.create(each)
        await around.client.create(storage_class("now"))
        await around.client.create(storage_class("late", "WaitForFirstConsumer"))
        await around.client.create(
            storage_class("hand", "WaitForFirstConsumer", provisioner="kubernetes.io/no-provisioner")
        )
        jobs = [Scheduler(around.role("scheduler"), **options).run()]
        if binder:
            jobs.append(Binder(around.role("binder")).run())
        async with running(*jobs):
            yield Bench(around)


async def test_pods_spread_over_the_nodes() -> None:
    async with bench(node("a"), node("b"), node("c")) as b:
        for i in range(6):
            await b.client.create(pod(f"p{i}"))
        where = [await b.placed(f"p{i}") for i in range(6)]
        assert sorted(where) == ["a", "a", "b", "b", "c", "c"]
        await b.heard("Scheduled", f"Successfully assigned default/p0 to {where[0]}")


async def test_a_pod_that_asks_for_another_scheduler_is_left_alone() -> None:
    async with bench(node("a")) as b:
        await b.client.create(pod("mine", schedulerName="custom"))
        await b.client.create(pod("ours"))
        await b.placed("ours")
        assert (await b.client.get(Pod, "mine", "default")).spec.node_name == ""


async def test_a_gated_pod_waits_for_its_gates() -> None:
    async with bench(node("a")) as b:
        await b.client.create(pod("p", schedulingGates=[{"name": "quota"}]))
        await b.settle()
        assert (await b.client.get(Pod, "p", "default")).spec.node_name == ""
        await b.client.patch(Pod, "p", "default", merge={"spec": {"schedulingGates": None}})
        await b.placed("p")


async def test_a_pod_that_found_no_node_is_tried_again_when_one_comes() -> None:
    async with bench() as b:
        await b.client.create(pod("p"))
        await b.refused("p", "no nodes available to schedule pods")
        await b.client.create(node("a", unschedulable=True))
        await b.refused(
            "p",
            "0/1 nodes are available: 1 node(s) were unschedulable. no new claims to deallocate, preemption: "
            "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
        )
        await b.client.patch(Node, "a", merge={"spec": {"unschedulable": None}})
        await b.placed("p")


async def test_room_that_a_pod_leaves_is_given_to_the_one_that_waits() -> None:
    big = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "3"}}}]
    async with bench(node("a")) as b:
        await b.client.create(pod("first", containers=big))
        await b.placed("first")
        await b.client.create(pod("second", containers=big))
        await b.refused(
            "second",
            "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: "
            "0/1 nodes are available: 1 No preemption victims found for incoming pod.",
        )
        await b.client.delete(Pod, "first", "default", grace=0)
        await b.placed("second")


async def test_an_immediate_claim_is_waited_for_and_then_not_touched() -> None:
    async with bench(node("a"), node("b")) as b:
        await b.client.create(pod("p", "data"))
        await b.refused("p", '0/2 nodes are available: persistentvolumeclaim "data" not found. not found')
        mine = await b.client.create(claim("data", cls="now"))
        await b.refused(
            "p", "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
        )
        await b.client.create(
            volume("pv", cls="now", claimRef={"namespace": "default", "name": "data", "uid": mine.uid})
        )
        await b.placed("p")
        assert SELECTED_NODE not in (await b.claim("data")).metadata.annotations


async def test_a_delayed_claim_gets_its_node_before_the_pod_does() -> None:
    async with bench(node("a"), node("b", zone="b")) as b:
        await b.client.create(claim("data", cls="late"))
        await b.client.create(pod("p", "data"))
        assert await b.selected("data") == "a"
        await b.settle(60)
        assert (await b.client.get(Pod, "p", "default")).spec.node_name == ""
        await b.provision("data")
        assert await b.placed("p") == "a"


async def test_a_provisioner_that_gives_up_sends_the_pod_elsewhere() -> None:
    async with bench(node("a"), node("b", zone="b")) as b:
        await b.client.create(claim("data", cls="late"))
        await b.client.create(pod("p", "data"))
        assert await b.selected("data") == "a"
        await b.client.patch(Node, "a", merge={"spec": {"unschedulable": True}})
        await b.give_up("data")
        await b.heard(
            "FailedScheduling",
            'running PreBind plugin "VolumeBinding": binding volumes: provisioning failed for PVC "data"',
        )

        async def moved() -> bool:
            return (await b.claim("data")).metadata.annotations.get(SELECTED_NODE) == "b"

        await until(moved)
        await b.provision("data", zone="b")
        assert await b.placed("p") == "b"


async def test_a_provisioner_that_never_answers_is_waited_for_ten_minutes_and_the_node_stays_chosen() -> None:
    async with bench(node("a"), node("b")) as b:
        await b.client.create(claim("data", cls="late"))
        await b.client.create(pod("p", "data"))
        chosen = await b.selected("data")
        await b.settle(599)
        assert await b.condition("p") is None
        await b.settle(2)
        await b.refused(
            "p",
            'running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded',
            "SchedulerError",
        )
        await b.settle(30)
        assert await b.selected("data") == chosen
        await b.provision("data")
        assert await b.placed("p") == chosen


async def test_a_volume_made_in_the_wrong_place_aborts() -> None:
    async with bench(node("a")) as b:
        await b.client.create(claim("data", cls="late"))
        await b.client.create(pod("p", "data"))
        await b.provision("data", zone="elsewhere")
        mine = await b.claim("data")
        await b.heard(
            "FailedScheduling",
            'running PreBind plugin "VolumeBinding": binding volumes: '
            f'pv "pvc-{mine.uid}" node affinity doesn\'t match node "a": no matching NodeSelectorTerms',
        )


async def test_two_pods_that_want_the_one_static_volume_do_not_both_get_it() -> None:
    async with bench(node("a"), node("b")) as b:
        await b.client.create(volume("pv", cls="hand"))

        async def available() -> bool:
            return (await b.client.get(PersistentVolume, "pv")).status.phase == "Available"

        await until(available)
        for name in ("one", "two"):
            await b.client.create(claim(name, cls="hand"))
        for name in ("one", "two"):
            await b.client.create(pod(name, name))
        await b.placed("one")
        await b.refused(
            "two",
            "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind. no new "
            "claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for "
            "scheduling.",
        )
        taken = await b.client.get(PersistentVolume, "pv")
        assert taken.spec.claim_ref is not None
        assert taken.spec.claim_ref.name == "one"
        assert taken.metadata.annotations[BOUND_BY_CONTROLLER] == "yes"
        await b.client.create(volume("other", cls="hand"))
        await b.placed("two")


async def test_a_pod_deleted_while_its_volume_is_made_leaves_the_claim_as_it_is() -> None:
    async with bench(node("a")) as b:
        await b.client.create(claim("data", cls="late"))
        await b.client.create(pod("p", "data"))
        await b.selected("data")
        await b.client.delete(Pod, "p", "default", grace=0)
        await b.settle(5)
        assert await b.selected("data") == "a"
        await b.client.create(pod("p", "data"))
        await b.provision("data")
        assert await b.placed("p") == "a"


async def test_a_new_scheduler_goes_on_where_the_old_one_died() -> None:
    async with world() as around:
        await around.client.create(account())
        for each in (node("a"), node("b")):
            await around.client.create(each)
        await around.client.create(storage_class("late", "WaitForFirstConsumer"))
        b = Bench(around)
        await b.client.create(claim("data", cls="late", metadata={"annotations": {SELECTED_NODE: "b"}}))
        await b.client.create(pod("p", "data"))
        async with running(Binder(around.role("binder")).run(), Scheduler(around.role("s")).run()):
            await b.provision("data")
            assert await b.placed("p") == "b"


async def test_storage_that_comes_free_wakes_the_pod_that_waits_for_it() -> None:
    async with bench(node("a")) as b:
        await b.client.create(driver(storageCapacity=True))
        topology = {"matchLabels": {ZONE: "a"}}
        metadata = {"name": "cap", "namespace": "default"}
        small = {
            "metadata": metadata,
            "storageClassName": "late",
            "capacity": "10Gi",
            "nodeTopology": topology,
        }
        await b.client.create(codec.convert(CSIStorageCapacity, small))
        await b.client.create(claim("data", "20Gi", cls="late"))
        await b.client.create(pod("p", "data"))
        await b.refused(
            "p",
            "0/1 nodes are available: 1 node(s) did not have enough free storage. no new claims to "
            "deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
        )
        await b.client.patch(CSIStorageCapacity, "cap", "default", merge={"capacity": "30Gi"})
        assert await b.selected("data") == "a"


async def test_a_volume_limit_is_kept_until_a_slot_is_free() -> None:
    async with bench(node("a")) as b:
        limit = {"name": DRIVER, "nodeID": "a", "topologyKeys": [], "allocatable": {"count": 2}}
        await b.client.create(
            codec.convert(CSINode, {"metadata": {"name": "a"}, "spec": {"drivers": [limit]}})
        )
        for name in ("one", "two", "three"):
            mine = await b.client.create(claim(name, cls="now"))
            reference = {"namespace": "default", "name": name, "uid": mine.uid}
            await b.client.create(volume(f"pv-{name}", cls="now", claimRef=reference))
        await b.client.create(pod("a1", "one"))
        await b.client.create(pod("a2", "one", "two"))
        await b.placed("a1")
        await b.placed("a2")
        await b.client.create(pod("a3", "three"))
        await b.refused(
            "a3",
            "0/1 nodes are available: 1 node(s) exceed max volume count. no new claims to deallocate, "
            "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
        )
        await b.client.delete(Pod, "a2", "default", grace=0)
        await b.placed("a3")


async def test_a_claim_for_one_pod_is_had_by_the_next_when_the_first_is_gone() -> None:
    async with bench(node("a")) as b:
        mine = await b.client.create(claim("data", cls="now", accessModes=["ReadWriteOncePod"]))
        reference = {"namespace": "default", "name": "data", "uid": mine.uid}
        await b.client.create(volume("pv", cls="now", claimRef=reference, accessModes=["ReadWriteOncePod"]))
        await b.client.create(pod("one", "data"))
        await b.placed("one")
        await b.client.create(pod("two", "data"))
        await b.settle()
        seen = await b.condition("two")
        assert seen is not None
        assert "ReadWriteOncePod access mode already in-use by another pod" in seen.message
        await b.client.delete(Pod, "one", "default", grace=0)
        await b.placed("two")


async def test_many_pods_at_once_fill_the_nodes_exactly() -> None:
    one = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]
    async with bench(*(node(f"n{i}") for i in range(5))) as b:
        for i in range(21):
            await b.client.create(pod(f"p{i}", containers=one))

        async def full() -> bool:
            placed = [p for p in await b.client.list(Pod, "default") if p.spec.node_name]
            return len(placed) == 20

        await until(full)
        await b.settle()
        where: dict[str, int] = {}
        for each in await b.client.list(Pod, "default"):
            where[each.spec.node_name] = where.get(each.spec.node_name, 0) + 1
        assert where == {"": 1} | {f"n{i}": 4 for i in range(5)}
