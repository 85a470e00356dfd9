"""The frame: a room is one plan and one controller; it reads its own writes, backs off, and says what it
waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.loops.inprocess import World, running, world
from volplane.api.core import ConfigMap
from volplane.api.errors import NotFound
from volplane.api.meta import ObjectMeta
from volplane.base import clock
from volplane.loops.controller import Controller, Refused
from volplane.loops.queue import Backoff

pytestmark = pytest.mark.virtual


def config(name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data=data)


class Counting(Controller[str]):
    """Counts up `n` to `goal` by one write a time."""

    name = "counting"
    backoff = Backoff(1.0, 60.0)

    def setup(self) -> None:
        self.configs = self.watch(ConfigMap, self.keys)
        self.stale = 0
        self.told: dict[str, int] = {}
        self.times: list[float] = []

    def keys(self, old: ConfigMap | None, new: ConfigMap | None) -> Iterator[str]:
        if new is not None:
            yield new.key

    async def reconcile(self, key: str) -> None:
        self.times.append(clock.now())
        config = self.configs.at(key)
        if config is None or "goal" not in config.data:
            return
        n = int(config.data.get("n", "0"))
        self.stale += n < self.told.get(key, 0)
        if n < int(config.data["goal"]):
            await self.client.patch(
                ConfigMap, config.name, config.namespace, merge={"data": {"n": str(n + 1)}}
            )
            self.told[key] = n + 1
            self.queue.add(key)  # at once, on purpose before the cache can know of the write


async def test_a_key_is_planned_again_only_on_caches_that_know_what_it_wrote() -> None:
    async with world() as w:
        controller = Counting(w.role("counting"))
        async with running(controller.run()):
            for name in "abc":
                await w.client.create(config(name, goal="20"))
            await asyncio.sleep(60)
            assert controller.stale == 0
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
    left = 3

    async def reconcile(self, key: str) -> None:
        self.times.append(clock.now())
        if key.endswith("/a") and self.left:
            self.left -= 1
            raise Refused(f"not yet, {self.left} to go")


async def test_failures_come_back_with_a_growing_pause_and_say_why() -> None:
    async with world() as w:
        controller = Failing(w.role("failing"))
        async with running(controller.run()):
            await w.client.create(config("a"))
            await asyncio.sleep(0.5)
            assert [(x.key, x.why) for x in controller.waits] == [("default/a", "not yet, 2 to go")]
            await asyncio.sleep(100)
        pauses = [round(b - a) for a, b in zip(controller.times, controller.times[1:], strict=False)]
        assert pauses == [1, 2, 4]
        assert controller.waits == []


class Glancing(Counting):
    """Has nothing to do for whoever has reached the goal, and sees that at a glance."""

    name = "glancing"

    def setup(self) -> None:
        super().setup()
        self.glanced: list[str] = []

    def glance(self, key: str) -> bool:
        config = self.configs.at(key)
        if config is not None and config.data.get("goal") == "broken":
            raise ValueError(key)
        reached = config is None or int(config.data.get("n", "0")) >= int(config.data.get("goal", "0"))
        if reached:
            self.glanced.append(key)
        return reached


async def test_who_has_nothing_to_do_is_not_worked_and_never_on_caches_that_are_behind() -> None:
    async with world() as w:
        controller = Glancing(w.role("glancing"))
        async with running(controller.run()):
            await w.client.create(config("a", goal="3"))
            await asyncio.sleep(60)
            assert len(controller.times) == 3  # one for each write; the echo of the last is only looked at
            assert controller.glanced.count("default/a") >= 1
            assert controller.stale == 0
            assert controller.queue.is_idle
            assert (await w.client.get(ConfigMap, "a", "default")).data["n"] == "3"


async def test_a_look_clears_what_the_key_waited_for() -> None:
    async with world() as w:
        controller = Glancing(w.role("glancing"))
        async with running(controller.run()):
            await w.client.create(config("a", goal="0"))
            await asyncio.sleep(1)
            controller.queue.later("default/a", 5, "something")
            await asyncio.sleep(1)
            assert [wait.why for wait in controller.waits] == ["something"]
            await asyncio.sleep(10)
            assert controller.waits == []


async def test_a_look_that_fails_is_work() -> None:
    async with world() as w:
        controller = Glancing(w.role("glancing"))
        async with running(controller.run()):
            await w.client.create(config("a", goal="broken"))
            await asyncio.sleep(0.5)
            assert [wait.key for wait in controller.waits] == ["default/a"]  # and is retried with its reason
            assert len(controller.times) == 1


class Crowded(Counting):
    name = "crowded"
    workers = 2

    async def reconcile(self, key: str) -> None:
        self.told[key] = self.told.get(key, 0) + 1
        self.stale = max(self.stale, sum(self.told.values()))
        await asyncio.sleep(10)
        self.told[key] -= 1


async def test_no_more_keys_are_in_work_than_there_are_workers() -> None:
    async with world() as w:
        controller = Crowded(w.role("crowded"))
        async with running(controller.run()):
            for name in "abcdef":
                await w.client.create(config(name))
            await asyncio.sleep(100)
        assert controller.stale == 2


async def test_resync_is_a_backstop() -> None:
    async with world() as w:
        controller = Counting(w.role("counting"))
        controller.resync = 600.0
        async with running(controller.run()):
            await w.client.create(config("a"))
            await asyncio.sleep(1900)
        assert len(controller.times) == 4


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
        before = len(controller.times)
        await w.client.patch(ConfigMap, "a", "default", merge={"data": {"goal": "3"}})
        await asyncio.sleep(10)
        assert len(controller.times) == before


async def test_the_clients_verbs_mean_what_they_say() -> None:
    async with world() as w:
        await verbs(w)


async def verbs(w: World) -> None:
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
