"""Keys: once, one worker at a time, later and later; and what they say while they wait."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from volplane.base import clock
from volplane.base.backoff import Backoff
from volplane.loops.queue import Queue
from volplane.rules.waits import Wait, WaitData, WaitReason

pytestmark = pytest.mark.virtual

RETRY = Wait(WaitReason.RETRY, message="no answer")
FOR_NODE = Wait(WaitReason.MOUNTED_ON_NODE, WaitData(node="n"), 10)


async def test_a_key_added_fifty_times_is_worked_once() -> None:
    queue: Queue[str] = Queue()
    for _ in range(50):
        queue.add("a")
    queue.add("b")
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_in_work_is_not_handed_out_but_comes_again_afterwards() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.add("a")
    taker = asyncio.create_task(queue.get())
    await asyncio.sleep(1)
    assert not taker.done()
    queue.finish(key)
    assert await taker == "a"
    queue.finish("a")
    assert queue.is_idle


async def test_the_pause_doubles_per_key_up_to_its_longest_and_starts_over_after_success() -> None:
    queue: Queue[str] = Queue(Backoff(first=1, longest=5))
    pauses = []
    for _ in range(5):
        before = clock.now()
        queue.retry("a", RETRY)
        key = await queue.get()
        pauses.append(clock.now() - before)
        queue.finish(key)
    assert pauses == [1, 2, 4, 5, 5]
    assert queue.failures("a") == 5
    queue.forget("a")
    assert queue.retry("a", RETRY) == 1
    assert queue.retry("b", RETRY) == 1


def test_the_pause_never_overflows() -> None:
    assert Backoff().delay(10_000) == 1000.0
    assert Backoff().delay(1) == 0.005


async def test_the_earliest_of_several_waits_rings() -> None:
    queue: Queue[str] = Queue()
    for seconds in (30, 10, 20):
        queue.later("a", structs.replace(FOR_NODE, seconds=seconds))
    assert await queue.get() == "a"
    assert clock.now() == pytest.approx(10)


async def test_a_wait_ends_when_its_key_is_worked_for_another_reason() -> None:
    queue: Queue[str] = Queue()
    queue.later("a", structs.replace(FOR_NODE, seconds=30))
    queue.add("a")
    queue.finish(await queue.get())
    assert queue.waits == []
    await asyncio.sleep(60)
    assert queue.is_idle


async def test_a_wait_for_the_same_reason_and_data_keeps_its_since() -> None:
    queue: Queue[str] = Queue()
    for_pod = Wait(WaitReason.POD_NOT_SCHEDULED, WaitData(pods=("p",)))
    queue.later("a", structs.replace(FOR_NODE, message="the first error"))
    began = queue.waits[0].since
    key = await queue.get()
    queue.later("a", structs.replace(FOR_NODE, message="the second error"))
    queue.later("a", for_pod)
    queue.finish(key)
    first, second = queue.waits
    assert (first.key, first.wait.text, first.since) == (
        "a",
        "n still has the volume mounted: the second error",
        began,
    )
    assert first.next_try is not None
    assert (first.next_try - began).total_seconds() == pytest.approx(20)
    assert (second.wait, second.next_try) == (for_pod, None)


async def test_a_taker_that_leaves_does_not_take_a_wake_up_with_it() -> None:
    queue: Queue[str] = Queue()
    leaving, staying = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(1)
    queue.add("a")  # wakes the first
    leaving.cancel()
    assert await staying == "a"


async def test_a_closed_queue_forgets_waits_and_failures() -> None:
    queue: Queue[str] = Queue()
    queue.retry("a", FOR_NODE)
    queue.retry("a", FOR_NODE)
    queue.close()
    assert queue.waits == []
    assert queue.failures("a") == 0
    assert queue.retry("a", FOR_NODE) == queue.backoff.delay(1)
