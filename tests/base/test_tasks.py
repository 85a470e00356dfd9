"""Background tasks have an owner that gets their errors and ends them."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest

from volplane.base.tasks import (
    KeyedTasks,
    TaskSet,
    background,
    cancel_and_wait,
    ignore_error,
    run_until,
)


async def fail() -> None:
    raise OSError("no disk")


async def wait_forever(ended: list[str] | None = None) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)  # an end may take a moment
        if ended is not None:
            ended.append("ended")


async def test_an_error_is_logged_with_the_name_of_its_task(caplog: pytest.LogCaptureFixture) -> None:
    tasks = TaskSet()
    with caplog.at_level(logging.ERROR, "volplane.base.tasks"):
        tasks.start(fail(), "mounts")
        await tasks.wait()
        await asyncio.sleep(0)
    (record,) = caplog.records
    assert record.getMessage() == "mounts failed"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "no disk"
    assert len(tasks) == 0


async def test_the_owner_can_take_errors_itself() -> None:
    taken: list[tuple[str, str]] = []
    tasks = TaskSet(lambda task, error: taken.append((task.get_name(), str(error))))
    tasks.start(fail(), "a")
    await tasks.wait()
    await asyncio.sleep(0)
    assert taken == [("a", "no disk")]


async def test_closing_waits_until_every_task_has_ended() -> None:
    ended: list[str] = []
    tasks = TaskSet()
    for _ in range(3):
        tasks.start(wait_forever(ended))
    await asyncio.sleep(0)
    await tasks.close()
    assert ended == ["ended"] * 3
    assert len(tasks) == 0


async def test_a_task_is_not_collected_while_it_runs() -> None:
    tasks = TaskSet()
    ended: list[str] = []
    tasks.start(wait_forever(ended))
    await asyncio.sleep(0)
    gc.collect()
    assert len(tasks) == 1
    await tasks.close()


async def test_callers_of_one_key_share_a_task() -> None:
    calls: list[str] = []

    async def work() -> int:
        calls.append("called")
        await asyncio.sleep(0)
        return 7

    tasks: KeyedTasks[str, int] = KeyedTasks()

    async def ask() -> int:
        return await asyncio.shield(tasks.get_or_start("pod", work))

    assert list(await asyncio.gather(ask(), ask())) == [7, 7]
    assert calls == ["called"]
    assert tasks.get("pod") is None
    assert await ask() == 7
    assert calls == ["called", "called"]


async def test_a_caller_that_leaves_does_not_end_the_shared_task() -> None:
    go = asyncio.Event()
    tasks: KeyedTasks[str, bool] = KeyedTasks(ignore_error)
    task = tasks.get_or_start("x", go.wait)
    caller = asyncio.ensure_future(asyncio.shield(task))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait({caller})
    assert tasks.get("x") is task
    go.set()
    assert await task
    await asyncio.sleep(0)
    assert "x" not in tasks


async def test_a_key_can_be_given_to_another_task() -> None:
    tasks: KeyedTasks[str, None] = KeyedTasks()
    first = tasks.start("x", wait_forever())
    tasks.discard("x")
    second = tasks.start("x", wait_forever())
    await cancel_and_wait(first)
    assert tasks.get("x") is second  # the end of the first does not remove the second
    await tasks.close()


async def test_background_work_ends_with_its_block() -> None:
    ended: list[str] = []

    async def run_block() -> None:
        async with background(wait_forever(ended), wait_forever(ended)):
            await asyncio.sleep(0)
            raise ValueError("block")

    with pytest.raises(ValueError, match="block"):
        await run_block()
    assert ended == ["ended", "ended"]


@pytest.mark.parametrize("is_stopped", [True, False])
async def test_work_runs_until_it_ends_or_is_stopped(is_stopped: bool) -> None:
    stop = asyncio.Event()
    ended: list[str] | None = [] if is_stopped else None
    loop = asyncio.get_running_loop()
    if is_stopped:
        loop.call_later(0.01, stop.set)
        await run_until(stop, wait_forever(ended))
        assert ended == ["ended"]
    else:
        with pytest.raises(OSError, match="no disk"):
            await run_until(stop, fail())


async def test_nothing_to_cancel_is_fine() -> None:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    await cancel_and_wait(None, done)
