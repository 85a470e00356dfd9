"""Contract attach-and-mount E, priority: who is more important may push others aside, budgets permitting."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controllers.objects import node, pod
from tests.loops.inprocess import until
from tests.support.scheduler_env import SchedulerEnv, scheduler_env
from volplane.api import codec
from volplane.api.core import Node, Pod
from volplane.api.policy import PodDisruptionBudget
from volplane.api.scheduling import PriorityClass

pytestmark = pytest.mark.virtual


def priority(name: str, value: int, **more: Any) -> PriorityClass:
    return codec.convert(PriorityClass, {"metadata": {"name": name}, "value": value, **more})


def sized(name: str, *claims: str, cpu: str = "3", cls: str = "", labels: Any = None, **spec: Any) -> Pod:
    containers = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]
    whole = codec.to_dict(pod(name, *claims, containers=containers, priorityClassName=cls, **spec))
    whole["metadata"]["labels"] = labels or {}
    return codec.convert(Pod, whole)


async def important(b: SchedulerEnv) -> None:
    await b.client.create(priority("high", 1000))
    await b.client.create(priority("middle", 500))
    await b.client.create(priority("modest", 2000, preemptionPolicy="Never"))


async def going(b: SchedulerEnv) -> list[str]:
    async def some() -> list[str]:
        return [p.name for p in await b.client.list(Pod, "default") if p.is_deleting]

    found: list[str] = await until(some)
    return found


# RWOP in use → second pod Pending; deleting the first lets it schedule; higher priority may preempt.


async def test_a_pod_of_higher_priority_takes_the_claim_for_one_pod_from_the_one_that_has_it() -> None:
    async with scheduler_env(node("a"), node("b")) as b:
        await important(b)
        await b.create_bound_claim("data", mode="ReadWriteOncePod")
        await b.client.create(sized("one", "data", cpu="1"))
        where = await b.wait_until_scheduled("one")
        await b.client.create(sized("two", "data", cpu="1", cls="high"))
        assert await going(b) == ["one"]
        victim = await b.client.get(Pod, "one", "default")
        (reported,) = [c for c in victim.status.conditions if c.type == "DisruptionTarget"]
        assert (reported.status, reported.reason) == ("True", "PreemptionByScheduler")
        assert reported.message == "default-scheduler: preempting to accommodate a higher priority pod"
        two = await b.client.get(Pod, "two", "default")
        await b.expect_event("Preempted", f"Preempted by pod {two.uid} on node {where}")
        assert two.spec.node_name == ""
        assert two.status.nominated_node_name == where
        await b.client.delete(Pod, "one", "default", grace=0)
        assert await b.wait_until_scheduled("two") == where


async def test_the_message_of_a_pod_that_makes_room_says_nothing_of_preemption() -> None:
    async with scheduler_env(node("a")) as b:
        await important(b)
        await b.client.create(sized("low"))
        await b.wait_until_scheduled("low")
        await b.client.create(sized("high", cls="high"))
        await b.expect_unschedulable("high", "0/1 nodes are available: 1 Insufficient cpu.")


async def test_room_that_was_made_is_not_given_to_a_lesser_pod() -> None:
    async with scheduler_env(node("a")) as b:
        await important(b)
        await b.client.create(sized("low"))
        await b.wait_until_scheduled("low")
        await b.client.create(sized("high", cls="high"))
        assert await going(b) == ["low"]
        await b.client.create(sized("small", cpu="1", cls="middle"))  # would fit beside `low`'s end
        await b.client.create(sized("waiting", cls="middle"))
        await b.settle(5)
        await b.client.delete(Pod, "low", "default", grace=0)
        assert await b.wait_until_scheduled("high") == "a"
        await b.settle(30)
        assert (await b.client.get(Pod, "waiting", "default")).spec.node_name == ""
        high = await b.client.get(Pod, "high", "default")
        assert not high.is_deleting


async def test_while_the_victim_is_going_no_second_one_is_chosen() -> None:
    async with scheduler_env(node("a"), node("b")) as b:
        await important(b)
        for name in ("one", "two"):
            await b.client.create(sized(name))
            await b.wait_until_scheduled(name)
        await b.client.create(sized("high", cls="high"))
        assert len(await going(b)) == 1
        await b.client.patch(Node, "a", merge={"metadata": {"labels": {"touched": "yes"}}})  # wakes it
        await b.expect_unschedulable(
            "high",
            "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: "
            "not eligible due to a terminating pod on the nominated node.",
        )
        assert len(await going(b)) == 1


async def test_a_modest_pod_waits() -> None:
    async with scheduler_env(node("a")) as b:
        await important(b)
        await b.client.create(sized("low"))
        await b.wait_until_scheduled("low")
        await b.client.create(sized("high", cls="modest"))
        await b.expect_unschedulable(
            "high",
            "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: "
            "not eligible due to preemptionPolicy=Never.",
        )


async def test_nobody_is_evicted_where_it_would_not_help() -> None:
    async with scheduler_env(node("a"), node("b", unschedulable=True)) as b:
        await important(b)
        await b.client.create(sized("low"))
        await b.wait_until_scheduled("low")
        await b.client.create(sized("huge", cpu="9", cls="high"))
        await b.expect_unschedulable(
            "huge",
            "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable. no new claims to "
            "deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
        )


async def test_the_pods_of_a_budget_are_spared_where_others_can_go() -> None:
    async with scheduler_env(node("a"), node("b")) as b:
        await important(b)
        budget = {
            "metadata": {"name": "keep", "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
        }
        await b.client.create(codec.convert(PodDisruptionBudget, budget))
        await b.client.create(sized("kept", labels={"app": "kept"}))
        await b.wait_until_scheduled("kept")
        await b.client.create(sized("other"))
        await b.wait_until_scheduled("other")
        await b.client.create(sized("high", cls="high"))
        assert await going(b) == ["other"]


async def test_the_least_important_pods_go_and_no_more_of_them_than_needed() -> None:
    async with scheduler_env(node("a"), node("b")) as b:
        await important(b)
        where: dict[str, list[str]] = {}
        for name, cls in (("low-1", ""), ("low-2", ""), ("mid-1", "middle"), ("mid-2", "middle")):
            await b.client.create(sized(name, cpu="2", cls=cls))
            where.setdefault(await b.wait_until_scheduled(name), []).append(name)
        await b.client.create(sized("high", cpu="2", cls="high"))
        (victim,) = await going(b)
        assert victim.startswith("low")


async def test_a_new_scheduler_knows_whom_room_was_made_for() -> None:
    async with scheduler_env(node("a"), scheduler=False) as b:
        await important(b)
        async with b.scheduling():
            await b.client.create(sized("low"))
            await b.wait_until_scheduled("low")
            await b.client.create(sized("high", cls="high"))
            assert await going(b) == ["low"]

            async def nominated() -> bool:
                return (await b.client.get(Pod, "high", "default")).status.nominated_node_name == "a"

            await until(nominated)
        await b.client.create(sized("lesser", cls="middle"))
        await b.client.delete(Pod, "low", "default", grace=0)
        async with b.scheduling():
            assert await b.wait_until_scheduled("high") == "a"
            assert (await b.client.get(Pod, "lesser", "default")).spec.node_name == ""
