"""Threads for blocking calls.

A volume takes some thirty such calls on its way, and `run_in_executor` spends more time on two futures, their
locks and their callbacks than most of these calls take. Here a call has one future, and everything is counted
on the event loop, so that nothing needs a lock; only `join` may be called elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

from msgspec import Struct

from volplane.base.virtual_time_loop import VirtualLoop

P = ParamSpec("P")
T = TypeVar("T")


class _Job(Struct, eq=False):
    """One call, its future, and how to tell the event loop about the end."""

    call: Callable[[], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class WorkerThreads:
    """At most `limit` threads, started as needed. Used from one event loop at a time."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit, self._name = limit, name
        self._threads: list[Thread] = []
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._unfinished = 0  # calls that wait for a thread, or run
        self._closed = False

    def start(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Call it on a thread. A call that is cancelled is not started, or runs to its end."""
        if self._closed:
            raise RuntimeError(f"the threads {self._name!r} are closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._unfinished >= len(self._threads) < self._limit:
            # A daemon: a process that ends without `join` does not wait for a hung file system.
            thread = Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            thread.start()
            self._threads.append(thread)
        if isinstance(loop, VirtualLoop):
            loop.count_work(future)
        self._unfinished += 1
        self._jobs.put(_Job(partial(copy_context().run, function, *args, **kwargs), future, loop))
        return future

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            result, error = None, None
            try:
                if not job.future.cancelled():
                    result = job.call()
            except BaseException as raised:
                error = raised
            try:
                job.loop.call_soon_threadsafe(self._finish, job.future, result, error)
            except RuntimeError:  # the loop was closed meanwhile
                self._unfinished -= 1
            del job, result, error  # a thread that waits keeps nothing alive

    def _finish(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._unfinished -= 1
        if future.done():  # cancelled
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def close(self) -> None:
        """Refuse new calls, and let the threads end after those that were started."""
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._jobs.put(None)

    def join(self) -> None:
        """Block until the closed threads have ended, for any time. May be called from another thread."""
        for thread in self._threads:
            thread.join()
