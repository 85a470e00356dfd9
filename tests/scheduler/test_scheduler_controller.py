"""The scheduler on the real API server: nodes, room, gates. Volumes are in the contract tests."""

from __future__ import annotations

import pytest

from tests.controllers.objects import claim, node, pod
from tests.loops.inprocess import until
from tests.support.scheduler_env import scheduler_env
from volplane.api.core import Node, Pod

pytestmark = pytest.mark.virtual


async def test_pods_spread_over_the_nodes() -> None:
    async with scheduler_env(node("a"), node("b"), node("c")) as b:
        for i in range(6):
            await b.client.create(pod(f"p{i}"))
        where = [await b.wait_until_scheduled(f"p{i}") for i in range(6)]
        assert sorted(where) == ["a", "a", "b", "b", "c", "c"]
        await b.expect_event("Scheduled", f"Successfully assigned default/p0 to {where[0]}")


async def test_a_pod_that_asks_for_another_scheduler_is_left_alone() -> None:
    async with scheduler_env(node("a")) as b:
        await b.client.create(pod("mine", schedulerName="custom"))
        await b.client.create(pod("ours"))
        await b.wait_until_scheduled("ours")
        assert (await b.client.get(Pod, "mine", "default")).spec.node_name == ""


async def test_a_gated_pod_waits_for_its_gates() -> None:
    async with scheduler_env(node("a")) as b:
        await b.client.create(pod("p", schedulingGates=[{"name": "quota"}]))
        await b.settle()
        assert (await b.client.get(Pod, "p", "default")).spec.node_name == ""
        await b.client.patch(Pod, "p", "default", merge={"spec": {"schedulingGates": None}})
        await b.wait_until_scheduled("p")


async def test_a_pod_that_found_no_node_is_tried_again_when_one_comes() -> None:
    async with scheduler_env() as b:
        await b.client.create(pod("p"))
        await b.expect_unschedulable("p", "no nodes available to schedule pods")
        await b.client.create(node("a", unschedulable=True))
        await b.expect_unschedulable(
            "p",
            "0/1 nodes are available: 1 node(s) were unschedulable. no new claims to deallocate, preemption: "
            "0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
        )
        await b.client.patch(Node, "a", merge={"spec": {"unschedulable": None}})
        await b.wait_until_scheduled("p")


async def test_room_that_a_pod_leaves_is_given_to_the_one_that_waits() -> None:
    big = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "3"}}}]
    async with scheduler_env(node("a")) as b:
        await b.client.create(pod("first", containers=big))
        await b.wait_until_scheduled("first")
        await b.client.create(pod("second", containers=big))
        await b.expect_unschedulable(
            "second",
            "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: "
            "0/1 nodes are available: 1 No preemption victims found for incoming pod.",
        )
        await b.client.delete(Pod, "first", "default", grace=0)
        await b.wait_until_scheduled("second")


async def test_a_volume_made_in_the_wrong_place_aborts() -> None:
    async with scheduler_env(node("a")) as b:
        await b.client.create(claim("data", cls="late"))
        await b.client.create(pod("p", "data"))
        await b.provision("data", zone="elsewhere")
        mine = await b.claim("data")
        await b.expect_event(
            "FailedScheduling",
            'running PreBind plugin "VolumeBinding": binding volumes: '
            f'pv "pvc-{mine.uid}" node affinity doesn\'t match node "a": no matching NodeSelectorTerms',
        )


async def test_many_pods_at_once_fill_the_nodes_exactly() -> None:
    one = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]
    async with scheduler_env(*(node(f"n{i}") for i in range(5))) as b:
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
