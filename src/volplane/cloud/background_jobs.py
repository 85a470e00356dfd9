"""Jobs that run longer than their request: a long copy is answered with "pending" and goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from volplane.cloud.errors import Ec2ErrorResponse

log = logging.getLogger(__name__)

T = TypeVar("T")


class BackgroundJobs:
    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def run_within(self, seconds: float, coroutine: Coroutine[Any, Any, T]) -> T | None:
        """The result, or None if the job takes longer: then it goes on in the background."""
        task = self.start(coroutine)
        done, _ = await asyncio.wait([task], timeout=seconds)
        return task.result() if done else None

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(coroutine)
        self._running.add(task)
        task.add_done_callback(self._forget_task)
        return task

    async def close(self) -> None:
        """Cancel all jobs; the next start recovers them from the records."""
        tasks = tuple(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()  # also raised where the task is awaited
        if error is not None and not isinstance(error, Ec2ErrorResponse):
            log.error("a background job failed", exc_info=error)
