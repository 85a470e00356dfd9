"""Losing nodes on the real API server: lifecycle, taint eviction and pod garbage together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.controllers.kubelet import Kubelets
from tests.controllers.objects import account, node, pod
from tests.loops.inprocess import InProcessEnv, running, until, world
from volplane.api.coordination import Lease, LeaseSpec
from volplane.api.core import Event, Node, Pod, Taint
from volplane.api.meta import ObjectMeta
from volplane.base import clock
from volplane.controllers.nodelifecycle.controller import NodeLifecycle
from volplane.controllers.podgc.controller import PodGarbage
from volplane.controllers.tainteviction.controller import TaintEviction

pytestmark = pytest.mark.virtual
SHORT = "node.kubernetes.io/"


class Bench:
    def __init__(self, around: InProcessEnv, kubelets: Kubelets) -> None:
        self.around, self.client, self.kubelets = around, around.client, kubelets
        self.hearts: dict[str, asyncio.Task[None]] = {}

    async def _beat(self, name: str) -> None:
        while True:
            spec = LeaseSpec(holder_identity=name, lease_duration_seconds=40, renew_time=clock.microstamp())
            held = await self.client.find(Lease, name, "kube-node-lease")
            if held is None:
                meta = ObjectMeta(name=name, namespace="kube-node-lease")
                await self.client.create(Lease(metadata=meta, spec=spec))
            else:
                patch = {"spec": {"renewTime": spec.renew_time}}
                await self.client.patch(Lease, name, "kube-node-lease", merge=patch)
            await asyncio.sleep(10)

    def revive(self, name: str) -> None:
        self.hearts[name] = asyncio.create_task(self._beat(name))
        self.kubelets.dead.discard(name)

    async def kill(self, name: str) -> None:
        self.kubelets.dead.add(name)
        heart = self.hearts.pop(name)
        heart.cancel()
        with suppress(asyncio.CancelledError):
            await heart

    async def ready(self, name: str, status: str = "True") -> None:
        """What a kubelet says of itself."""
        patch = [{"type": "Ready", "status": status, "lastHeartbeatTime": clock.stamp()}]
        await self.client.patch(Node, name, strategic={"status": {"conditions": patch}}, subresource="status")

    async def taints(self, name: str) -> list[str]:
        held = await self.client.get(Node, name)
        return sorted(f"{t.key.removeprefix(SHORT)}:{t.effect}" for t in held.spec.taints)

    async def state(self, name: str) -> str:
        held = await self.client.get(Node, name)
        return next(c.status for c in held.status.conditions if c.type == "Ready")

    async def add(self, name: str, on: str, **spec: Any) -> Pod:
        await self.client.create(pod(name, on=on, **spec))

        async def runs() -> Pod | None:
            held = await self.client.get(Pod, name, "default")
            return held if held.status.phase == "Running" else None

        found: Pod = await until(runs)
        return found

    async def find(self, name: str) -> Pod | None:
        return await self.client.find(Pod, name, "default")

    async def wait_until_gone(self, name: str, seconds: float = 30.0) -> None:
        async def away() -> bool:
            return await self.find(name) is None

        await until(away, seconds)

    async def messages(self, reason: str, namespace: str = "default") -> list[str]:
        await asyncio.sleep(1)
        return [e.message for e in await self.client.list(Event, namespace) if e.reason == reason]


@asynccontextmanager
async def bench(*names: str, **options: Any) -> AsyncIterator[Bench]:
    async with world() as around:
        await around.client.create(account())
        kubelets = Kubelets(around.role("kubelets"), *names)
        b = Bench(around, kubelets)
        for name in names:
            await around.client.create(node(name))
            b.revive(name)
        rooms: list[Any] = [
            NodeLifecycle(around.role("kcm"), **options),
            TaintEviction(around.role("kcm")),
            PodGarbage(around.role("kcm")),
        ]
        async with running(kubelets.run(), *(room.run() for room in rooms)):
            try:
                yield b
            finally:
                for name in list(b.hearts):
                    await b.kill(name)


async def test_a_node_that_keeps_renewing_stays_ready() -> None:
    async with bench("a", "b") as b:
        await asyncio.sleep(1800)
        assert [await b.state(n) for n in ("a", "b")] == ["True", "True"]
        assert await b.taints("a") == []
        assert await b.messages("RegisteredNode") == [
            "Node a event: Registered Node a in Controller",
            "Node b event: Registered Node b in Controller",
        ]


async def test_a_silent_node_is_unknown_after_its_grace_and_tainted() -> None:
    async with bench("a", "b") as b:
        ready = await b.add("web", "a")
        await asyncio.sleep(5)
        await b.kill("a")
        await asyncio.sleep(29)
        assert await b.state("a") == "True"
        await asyncio.sleep(15)
        assert await b.state("a") == "Unknown"
        assert await b.taints("a") == ["unreachable:NoExecute", "unreachable:NoSchedule"]
        held = await b.client.get(Pod, ready.name, "default")
        assert {c.type: c.status for c in held.status.conditions}["Ready"] == "False"
        assert await b.messages("NodeNotReady") == ["Node a status is now: NodeNotReady", "Node is not ready"]


async def test_the_grace_is_a_flag() -> None:
    async with bench("a", "b", monitor_grace=3.0) as b:
        await b.kill("b")
        await asyncio.sleep(4)
        assert await b.state("b") == "Unknown"


async def test_pods_leave_after_their_toleration_and_only_those_that_do_not_tolerate_for_ever() -> None:
    async with bench("a", "b") as b:
        await b.add("default", "a")  # 300 seconds, given by the server
        await b.add("hasty", "a", tolerations=[_tolerating(30)])
        await b.add("faithful", "a", tolerations=[_tolerating(None)])
        await b.kill("a")
        await asyncio.sleep(45)
        assert await b.state("a") == "Unknown"
        await asyncio.sleep(40)
        assert (await b.client.get(Pod, "hasty", "default")).is_deleting
        assert not (await b.client.get(Pod, "default", "default")).is_deleting
        await asyncio.sleep(270)
        leaving = await b.client.get(Pod, "default", "default")
        assert leaving.is_deleting
        (mark,) = [c for c in leaving.status.conditions if c.type == "DisruptionTarget"]
        assert (mark.reason, mark.message) == (
            "DeletionByTaintManager",
            "Taint manager: deleting due to NoExecute taint",
        )
        assert "Marking for deletion Pod default/hasty" in await b.messages("TaintManagerEviction")
        await asyncio.sleep(3600)
        assert not (await b.client.get(Pod, "faithful", "default")).is_deleting


def _tolerating(seconds: int | None) -> dict[str, Any]:
    made: dict[str, Any] = {"key": f"{SHORT}unreachable", "operator": "Exists", "effect": "NoExecute"}
    return made if seconds is None else {**made, "tolerationSeconds": seconds}


async def test_a_node_that_comes_back_in_time_keeps_its_pods() -> None:
    async with bench("a", "b") as b:
        await b.add("web", "a")
        await b.kill("a")
        await asyncio.sleep(100)
        assert "unreachable:NoExecute" in await b.taints("a")
        b.revive("a")
        await b.ready("a")
        await asyncio.sleep(600)
        assert await b.taints("a") == []
        kept = await b.find("web")
        assert kept is not None
        assert not kept.is_deleting
        assert "Cancelling deletion of Pod default/web" in await b.messages("TaintManagerEviction")


async def test_a_kubelet_that_says_not_ready_is_tainted_at_once() -> None:
    async with bench("a", "b") as b:
        await b.ready("a", "False")
        await asyncio.sleep(1)
        assert await b.taints("a") == ["not-ready:NoExecute", "not-ready:NoSchedule"]
        await b.ready("a", "True")
        await asyncio.sleep(1)
        assert await b.taints("a") == []


async def test_cordon_and_uncordon() -> None:
    async with bench("a", "b") as b:
        await b.client.patch(Node, "a", merge={"spec": {"unschedulable": True}})
        await asyncio.sleep(1)
        assert await b.taints("a") == ["unschedulable:NoSchedule"]
        await b.client.patch(Node, "a", merge={"spec": {"unschedulable": None}})
        await asyncio.sleep(1)
        assert await b.taints("a") == []


async def test_when_no_node_answers_nothing_moves() -> None:
    async with bench("a", "b") as b:
        await b.add("web", "a", tolerations=[_tolerating(5)])
        await b.kill("a")
        await b.kill("b")
        await asyncio.sleep(600)
        assert [await b.state(n) for n in ("a", "b")] == ["Unknown", "Unknown"]
        # One of the two was given up first; with the second lost, even that is taken back.
        assert [t for n in ("a", "b") for t in await b.taints(n)] == ["unreachable:NoSchedule"] * 2


async def test_nodes_are_given_up_one_after_the_other() -> None:
    async with bench("a", "b", "c", "d", "e") as b:
        for name in ("a", "b"):
            await b.kill(name)
        await asyncio.sleep(45)
        driven = [n for n in ("a", "b") if "unreachable:NoExecute" in await b.taints(n)]
        assert len(driven) == 1
        await asyncio.sleep(10)
        driven = [n for n in ("a", "b") if "unreachable:NoExecute" in await b.taints(n)]
        assert driven == ["a", "b"]


async def test_a_taint_of_the_operator_drives_pods_off_and_stays() -> None:
    async with bench("a", "b") as b:
        await b.add("web", "a")
        mine = [{"key": "maintenance", "effect": "NoExecute"}]
        await b.client.patch(Node, "a", merge={"spec": {"taints": mine}})
        await b.wait_until_gone("web")
        assert (await b.client.get(Node, "a")).spec.taints == (Taint(key="maintenance", effect="NoExecute"),)


# Pod garbage


async def test_pods_of_a_deleted_node_go_at_once() -> None:
    async with bench("a", "b") as b:
        await b.add("web", "a")
        await b.kill("a")
        await b.client.delete(Node, "a")
        await b.wait_until_gone("web", 2)


async def test_pods_of_a_node_never_seen_are_given_time() -> None:
    async with bench("a") as b:
        b.kubelets.dead.add("late")
        await b.client.create(pod("web", on="late"))
        await asyncio.sleep(35)
        assert await b.find("web") is not None
        await b.client.create(node("late"))
        await asyncio.sleep(600)
        assert await b.find("web") is not None
        b.kubelets.dead.add("never")
        await b.client.create(pod("lost", on="never"))
        await b.wait_until_gone("lost", 45)


async def test_an_out_of_service_node_gives_up_its_terminating_pods() -> None:
    async with bench("a", "b") as b:
        await b.add("web", "a", tolerations=[_tolerating(0)])
        await b.kill("a")
        await asyncio.sleep(60)
        stuck = await b.client.get(Pod, "web", "default")
        assert stuck.is_deleting  # and no kubelet will ever say that it ended
        await asyncio.sleep(3600)
        assert await b.find("web") is not None
        taints = [
            *(await b.client.get(Node, "a")).spec.taints,
            Taint(key=f"{SHORT}out-of-service", effect="NoExecute"),
        ]
        patch = [{"key": t.key, "effect": t.effect} for t in taints]
        await b.client.patch(Node, "a", merge={"spec": {"taints": patch}})
        await b.wait_until_gone("web", 2)


async def test_finished_pods_do_not_pile_up() -> None:
    async with world() as around:
        await around.client.create(account())
        await around.client.create(node("n"))
        kubelets = Kubelets(around.role("kubelets"))
        async with running(kubelets.run(), PodGarbage(around.role("kcm"), threshold=2).run()):
            for at in range(5):
                await around.client.create(pod(f"p{at}"))
            await asyncio.sleep(1)
            for held in await around.client.list(Pod, "default"):
                await kubelets.show(held, phase="Succeeded")

            async def few() -> bool:
                return len(await around.client.list(Pod, "default")) == 2

            await until(few)
