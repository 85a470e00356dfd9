"""The frame of controllers: it reads its own writes, backs off, reports waits and events, runs batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from msgspec import Struct

from tests.loops.inprocess import InProcessEnv, running, world
from volplane.api.core import ConfigMap, Event
from volplane.api.errors import NotFound
from volplane.api.meta import ObjectMeta
from volplane.base import clock
from volplane.base.backoff import Backoff
from volplane.client.client import Client
from volplane.loops.controller import Controller, Outcome, Replan, RetryableError, Stop
from volplane.rules.steps import CommonStep, Requeue, normal
from volplane.rules.waits import Wait, WaitData, WaitReason

pytestmark = pytest.mark.virtual


def config(name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data=data)


class CountUp(Struct, frozen=True):
    """Write the next number."""

    number: int


class Refuse(Struct, frozen=True):
    why: str


class Linger(Struct, frozen=True):
    """Act for a while."""


class CountingMemory:
    def __init__(self) -> None:
        self.stale = 0  # views that were older than what was written
        self.written: dict[str, int] = {}
        self.planned: list[float] = []
        self.acted: list[float] = []
        self.seen: list[str] = []


Step = CountUp | Refuse | Linger


class Counting(Controller[str, ConfigMap, Step]):
    """Counts up `n` to `goal` by one write a time."""

    name = "counting"
    backoff = Backoff(1.0, 60.0)

    def __init__(self, client: Client, *, resync: float = 0.0) -> None:
        super().__init__(client, resync=resync)
        self.memory = CountingMemory()  # kept over several runs, for the tests to look at

    def setup(self) -> None:
        self.configs = self.watch(ConfigMap, self.keys, observe=self.observe)

    def keys(self, old: ConfigMap | None, new: ConfigMap | None) -> Iterator[str]:
        if new is not None:
            yield new.key

    def observe(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        if new is not None:
            self.memory.seen.append(new.key)

    def view(self, key: str) -> ConfigMap | None:
        return self.configs.at(key)

    def plan(self, view: ConfigMap) -> Iterator[Step | CommonStep]:
        goal = view.data.get("goal", "0")
        if goal == "broken":
            raise ValueError(goal)
        n = int(view.data.get("n", "0"))
        if n < int(goal):
            yield CountUp(n + 1)

    def update_memory(self, key: str, view: ConfigMap | None, steps: Sequence[Step | CommonStep]) -> None:
        self.memory.planned.append(clock.now())
        if view is not None:
            self.memory.stale += int(view.data.get("n", "0")) < self.memory.written.get(key, 0)

    async def act(self, key: str, view: ConfigMap, step: Step) -> Outcome[ConfigMap]:
        self.memory.acted.append(clock.now())
        match step:
            case CountUp(number):
                patch = {"data": {"n": str(number)}}
                await self.client.patch(ConfigMap, view.name, view.namespace, merge=patch)
                self.memory.written[key] = number
                self.queue.add(key)  # at once, on purpose before the cache can know of the write
            case Refuse(why):
                raise RetryableError(why)
            case Linger():
                await asyncio.sleep(10)
        return None


async def test_a_key_is_planned_again_only_on_caches_that_know_what_it_wrote() -> None:
    async with world() as w:
        controller = Counting(w.role("counting"))
        async with running(controller.run()):
            for name in "abc":
                await w.client.create(config(name, goal="20"))
            await asyncio.sleep(60)
            assert controller.memory.stale == 0
            found = await w.client.list(ConfigMap, "default")
            assert [c.data["n"] for c in found if c.name in "abc"] == ["20"] * 3


async def test_what_exists_already_is_worked_after_all_caches_are_synced() -> None:
    async with world() as w:
        await w.client.create(config("a", goal="1"))
        async with running(Counting(w.role("counting")).run()):
            await asyncio.sleep(1)
        assert (await w.client.get(ConfigMap, "a", "default")).data["n"] == "1"


class Failing(Counting):
    name = "failing"

    def plan(self, view: ConfigMap) -> Iterator[Step | CommonStep]:
        left = 3 - len(self.memory.acted)
        if left and view.name == "a":
            yield Refuse(f"not yet, {left - 1} to go")


async def test_failures_come_back_with_a_growing_pause_and_say_why() -> None:
    async with world() as w:
        controller = Failing(w.role("failing"))
        async with running(controller.run()):
            await w.client.create(config("a"))
            await asyncio.sleep(0.5)
            assert [(x.key, x.wait.text) for x in controller.waits] == [("default/a", "not yet, 2 to go")]
            await asyncio.sleep(100)
        pauses = [
            round(b - a)
            for a, b in zip(controller.memory.planned, controller.memory.planned[1:], strict=False)
        ]
        assert pauses == [1, 2, 4]
        assert controller.waits == []


class BackingOff(Counting):
    """Acts, then waits for the backoff, three times."""

    name = "backing-off"

    def plan(self, view: ConfigMap) -> Iterator[Step | CommonStep]:
        if len(self.memory.acted) < 3:
            yield Linger()
            data = WaitData(node="n")
            yield Wait(WaitReason.DRIVER_NOT_REGISTERED, data, message="not registered", backoff=True)


async def test_a_wait_with_backoff_is_retried_like_a_failure() -> None:
    async with world() as w:
        controller = BackingOff(w.role("backing-off"))
        async with running(controller.run()):
            await w.client.create(config("a"))
            await asyncio.sleep(10.5)
            (waiting,) = controller.waits
            assert (waiting.wait.reason, waiting.wait.text) == ("DriverNotRegistered", "not registered")
            assert waiting.next_try is not None
            assert controller.queue.failures("default/a") == 1
            await asyncio.sleep(100)
            assert len(controller.memory.acted) == 3
            assert controller.waits == []


async def test_a_task_is_started_only_for_a_plan_with_something_to_act_on() -> None:
    async with world() as w:
        controller = Counting(w.role("counting"))
        async with running(controller.run()):
            await w.client.create(config("a", goal="3"))
            await asyncio.sleep(60)
            memory = controller.memory
            assert len(memory.acted) == 3  # one for each write; the echo of the last is only planned
            assert len(memory.planned) > 3
            assert memory.stale == 0
            assert controller.queue.is_idle
            assert (await w.client.get(ConfigMap, "a", "default")).data["n"] == "3"


async def test_a_plan_without_steps_clears_what_the_key_waited_for() -> None:
    async with world() as w:
        controller = Counting(w.role("counting"))
        async with running(controller.run()):
            await w.client.create(config("a", goal="0"))
            await asyncio.sleep(1)
            controller.queue.later("default/a", Wait(WaitReason.RETRY, seconds=5, message="something"))
            await asyncio.sleep(1)
            assert [waiting.wait.text for waiting in controller.waits] == ["something"]
            await asyncio.sleep(10)
            assert controller.waits == []


async def test_a_plan_that_fails_is_retried_and_says_why() -> None:
    async with world() as w:
        controller = Counting(w.role("counting"))
        async with running(controller.run()):
            await w.client.create(config("a", goal="broken"))
            await asyncio.sleep(0.5)
            assert [(waiting.key, waiting.wait.text) for waiting in controller.waits] == [
                ("default/a", "broken")
            ]
            await w.client.patch(ConfigMap, "a", "default", merge={"data": {"goal": "1"}})
            await asyncio.sleep(5)
        assert (await w.client.get(ConfigMap, "a", "default")).data["n"] == "1"


class Reporting(Counting):
    """Waits for a goal, and says so."""

    name = "reporting"

    def plan(self, view: ConfigMap) -> Iterator[Step | CommonStep]:
        if view.data.get("goal"):
            yield Requeue("default/other")
        else:
            yield normal("NoGoal", "it has no goal")
            yield Wait(WaitReason.RETRY, message="no goal")

    def subject(self, view: ConfigMap) -> ConfigMap:
        return view


async def test_waits_events_and_other_keys_are_the_frames_business() -> None:
    async with world() as w:
        controller = Reporting(w.role("reporting"))
        async with running(controller.run()):
            await w.client.create(config("a"))
            await w.client.create(config("b", goal="1"))
            await asyncio.sleep(5)
            assert [(waiting.key, waiting.wait.text) for waiting in controller.waits] == [
                ("default/a", "no goal")
            ]
            events = await w.client.list(Event, "default")
            assert [(e.involved_object.name, e.reason) for e in events] == [("a", "NoGoal")]
        assert controller.memory.acted == []
        assert len(controller.memory.planned) == 3  # a, b, and the other, which does not exist


class Sideways(Counting):
    """Two slow steps side by side, then a step that ends the plan or makes a new one."""

    name = "sideways"

    def plan(self, view: ConfigMap) -> Iterator[Step | CommonStep]:
        if "proven" in view.data:
            yield CountUp(7)
        else:
            yield from (Linger(), Linger(), CountUp(0), CountUp(99))

    def batches(self, steps: Sequence[Step | CommonStep]) -> Iterator[Sequence[Step | CommonStep]]:
        yield [step for step in steps if isinstance(step, Linger)]
        yield from ([step] for step in steps if not isinstance(step, Linger))

    async def act(self, key: str, view: ConfigMap, step: Step) -> Outcome[ConfigMap]:
        if step == CountUp(0):
            self.memory.acted.append(clock.now())
            if view.data.get("goal") == "stop":
                return Stop()
            return Replan(config(view.name, proven="yes"))
        if isinstance(step, CountUp):
            self.memory.written[key] = step.number
            return None
        return await super().act(key, view, step)


async def test_steps_of_a_batch_run_side_by_side_and_a_step_can_end_or_replace_the_plan() -> None:
    async with world() as w:
        controller = Sideways(w.role("sideways"))
        async with running(controller.run()):
            for name, goal in (("a", "1"), ("b", "stop")):
                begun = clock.now()
                controller.memory.acted.clear()
                await w.client.create(config(name, goal=goal))
                await asyncio.sleep(50)
                assert [round(at - begun) for at in controller.memory.acted] == [0, 0, 10]
        assert controller.memory.written == {"default/a": 7}


class Crowded(Counting):
    name = "crowded"
    workers = 2

    def plan(self, view: ConfigMap) -> Iterator[Step | CommonStep]:
        yield Linger()

    async def act(self, key: str, view: ConfigMap, step: Step) -> Outcome[ConfigMap]:
        memory = self.memory
        memory.written[key] = 1
        memory.stale = max(memory.stale, sum(memory.written.values()))
        await asyncio.sleep(10)
        memory.written[key] = 0
        return None

    def update_memory(self, key: str, view: ConfigMap | None, steps: Sequence[Step | CommonStep]) -> None:
        pass


async def test_no_more_keys_are_in_work_than_there_are_workers() -> None:
    async with world() as w:
        controller = Crowded(w.role("crowded"))
        async with running(controller.run()):
            for name in "abcdef":
                await w.client.create(config(name))
            await asyncio.sleep(100)
        assert controller.memory.stale == 2


async def test_what_is_there_is_observed_without_planning_for_readers_of_views() -> None:
    async with world() as w:
        await w.client.create(config("a", goal="1"))
        controller = Counting(w.role("counting"))
        await controller.sync_only()
        view = controller.view("default/a")
        assert view is not None
        assert list(controller.plan(view)) == [CountUp(1)]
        assert controller.memory.seen == ["default/a"]
        assert controller.memory.planned == []


async def test_resync_is_a_backstop() -> None:
    async with world() as w:
        controller = Counting(w.role("counting"), resync=600.0)
        async with running(controller.run()):
            await w.client.create(config("a"))
            await asyncio.sleep(1900)
        assert len(controller.memory.planned) == 4


async def test_it_can_run_again_after_it_was_stopped() -> None:
    async with world() as w:
        controller = Counting(w.role("counting"))
        for goal in ("1", "2"):
            async with running(controller.run()):
                if goal == "1":
                    await w.client.create(config("a", goal=goal))
                else:
                    await w.client.patch(ConfigMap, "a", "default", merge={"data": {"goal": goal}})
                await asyncio.sleep(10)
        assert (await w.client.get(ConfigMap, "a", "default")).data["n"] == "2"
        before = len(controller.memory.planned)
        await w.client.patch(ConfigMap, "a", "default", merge={"data": {"goal": "3"}})
        await asyncio.sleep(10)
        assert len(controller.memory.planned) == before


async def test_the_clients_verbs_mean_what_they_say() -> None:
    async with world() as w:
        await verbs(w)


async def verbs(w: InProcessEnv) -> None:
    client = w.client
    made = await client.create(config("a", x="1"))
    again = await client.create(config("a", x="2"), exists_ok=True)
    assert (again.uid, again.data["x"]) == (made.uid, "1")
    patched = await client.patch(ConfigMap, "a", "default", merge={"data": {"x": "3"}}, uid=made.uid)
    assert patched.data["x"] == "3"
    assert patched.revision > made.revision
    assert await client.find(ConfigMap, "b", "default") is None
    assert await client.patch(ConfigMap, "b", "default", merge={}, missing_ok=True) is None
    with pytest.raises(NotFound):
        await client.patch(ConfigMap, "b", "default", merge={})
    assert await client.delete(ConfigMap, "a", "default", uid=made.uid) is None
    assert await client.delete(ConfigMap, "a", "default", missing_ok=True) is None
