"""Background tasks with an owner, who keeps a reference to each, gets their errors and ends them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeAlias, TypeVar

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

OnError: TypeAlias = Callable[["asyncio.Task[Any]", BaseException], None]


def log_error(task: asyncio.Task[Any], error: BaseException) -> None:
    log.error("%s failed", task.get_name(), exc_info=error)


def ignore_error(task: asyncio.Task[Any], error: BaseException) -> None:
    """For tasks whose callers await the result: they get the error, or no longer want it."""


class TaskSet:
    """Tasks that run until they end or the owner closes the set. `on_error` gets each error."""

    def __init__(self, on_error: OnError = log_error) -> None:
        self._on_error = on_error
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name or None)
        self.add(task)
        return task

    def add(self, task: asyncio.Task[Any]) -> None:
        """Own a task that was started elsewhere."""
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(task, error)

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(tuple(self._tasks))

    async def wait(self) -> None:
        """Wait until all tasks have ended, without cancelling any."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        await cancel_and_wait(*self._tasks)


class KeyedTasks(Generic[K, T]):
    """At most one running task for each key. `on_error` gets each error."""

    def __init__(self, on_error: OnError = log_error) -> None:
        self._on_error = on_error
        self._tasks: dict[K, asyncio.Task[T]] = {}

    def start(self, key: K, work: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Start the task of a key that has none."""
        assert self.get(key) is None, f"a task of {key} runs already"
        task = self._tasks[key] = asyncio.create_task(work, name=name or None)
        task.add_done_callback(lambda ended: self._end(key, ended))
        return task

    def get_or_start(
        self, key: K, work: Callable[[], Coroutine[Any, Any, T]], name: str = ""
    ) -> asyncio.Task[T]:
        """The key's task; the first caller starts it. Await it under `asyncio.shield`: others share it."""
        return self.get(key) or self.start(key, work(), name)

    def get(self, key: K) -> asyncio.Task[T] | None:
        """The task of the key, if it still runs."""
        task = self._tasks.get(key)
        return None if task is None or task.done() else task

    def discard(self, key: K) -> None:
        """Let another task of the key start; its present one ends by itself."""
        self._tasks.pop(key, None)

    def _end(self, key: K, task: asyncio.Task[T]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(task, error)

    def __contains__(self, key: K) -> bool:
        return key in self._tasks

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[K]:
        return iter(tuple(self._tasks))

    def values(self) -> list[asyncio.Task[T]]:
        return list(self._tasks.values())

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        await cancel_and_wait(*self._tasks.values())


async def cancel_and_wait(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks and wait until they have ended. Results and errors are dropped."""
    started = [task for task in tasks if task is not None]
    for task in started:
        task.cancel()
    await asyncio.gather(*started, return_exceptions=True)


@asynccontextmanager
async def background(*works: Awaitable[Any]) -> AsyncIterator[tuple[asyncio.Future[Any], ...]]:
    """Run `works` beside the block; when the block ends, cancel them and wait until they have ended."""
    tasks = tuple(asyncio.ensure_future(work) for work in works)
    try:
        yield tasks
    finally:
        await cancel_and_wait(*tasks)


async def run_until(stop: asyncio.Event, work: Awaitable[None]) -> None:
    """Run `work` until it ends or `stop` is set; then cancel it and wait until it has ended."""
    async with background(work, stop.wait()) as (running, stopping):
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
