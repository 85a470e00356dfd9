"""Threads for blocking calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from volplane.base.virtual_time_loop import VirtualLoop
from volplane.host.worker_threads import WorkerThreads

place: ContextVar[str] = ContextVar("place", default="")


@pytest.fixture
def threads() -> Iterator[WorkerThreads]:
    workers = WorkerThreads(2, "test")
    yield workers
    workers.close()
    workers.join()


async def test_a_call_returns_its_result_and_sees_the_context_of_its_caller(threads: WorkerThreads) -> None:
    place.set("here")
    assert await threads.start(lambda: (place.get(), threading.current_thread().name)) == ("here", "test-0")


async def test_an_error_reaches_the_caller(threads: WorkerThreads) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await threads.start(int, "x")


async def test_no_more_calls_than_threads_run_at_the_same_time(threads: WorkerThreads) -> None:
    go, running, most = threading.Event(), 0, 0

    def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            go.set()
        go.wait(10)
        running -= 1

    await asyncio.gather(*(threads.start(work) for _ in range(8)))
    assert most == 2


async def test_a_cancelled_call_runs_to_its_end_and_one_that_waits_is_not_started(
    threads: WorkerThreads,
) -> None:
    begun, go, ended = threading.Barrier(3), threading.Event(), list[str]()

    def work() -> None:
        begun.wait(10)
        go.wait(10)
        ended.append("running")

    calls = (threads.start(work), threads.start(work), threads.start(ended.append, "waiting"))
    await asyncio.to_thread(begun.wait, 10)
    for call in calls:
        call.cancel()
    go.set()
    threads.close()
    await asyncio.to_thread(threads.join)
    assert ended == ["running", "running"]


async def test_closed_threads_finish_their_calls_and_refuse_new_ones() -> None:
    workers = WorkerThreads(1, "test")
    ended: list[int] = []
    calls = [workers.start(ended.append, number) for number in range(3)]
    workers.close()
    with pytest.raises(RuntimeError, match="closed"):
        workers.start(int)
    await asyncio.to_thread(workers.join)
    await asyncio.gather(*calls)
    assert ended == [0, 1, 2]


async def test_a_thread_that_cannot_be_started_leaves_nothing_behind(
    threads: WorkerThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threads.start(int)
    assert await threads.start(lambda: threading.current_thread().name) == "test-0"


def test_virtual_time_stands_still_during_a_call() -> None:
    async def measure() -> float:
        workers, go = WorkerThreads(1, "test"), threading.Event()
        call = workers.start(go.wait, 0.05)
        timer = asyncio.create_task(asyncio.sleep(60))
        await call
        passed = asyncio.get_running_loop().time()
        timer.cancel()
        workers.close()
        workers.join()
        return passed

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(measure()) == 0
