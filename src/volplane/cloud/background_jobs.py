"""Jobs that run longer than their request: a long copy is answered with "pending" and goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from volplane.base.tasks import TaskSet
from volplane.cloud.errors import Ec2ErrorResponse

log = logging.getLogger(__name__)

T = TypeVar("T")


class BackgroundJobs:
    def __init__(self) -> None:
        self._tasks = TaskSet(_log_unexpected)

    async def run_within(self, seconds: float, coroutine: Coroutine[Any, Any, T]) -> T | None:
        """The result, or None if the job takes longer: then it goes on in the background."""
        task = self.start(coroutine)
        done, _ = await asyncio.wait([task], timeout=seconds)
        return task.result() if done else None

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._tasks.start(coroutine)

    async def close(self) -> None:
        """Cancel all jobs; the next start recovers them from the records."""
        await self._tasks.close()


def _log_unexpected(task: asyncio.Task[Any], error: BaseException) -> None:
    if not isinstance(error, Ec2ErrorResponse):  # which is raised where the task is awaited
        log.error("a background job failed", exc_info=error)
