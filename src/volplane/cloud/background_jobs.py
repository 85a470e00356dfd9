"""Work that outlasts the request that began it: a long copy answers "pending" and goes on."""

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
        """The result, or None when it takes longer: then it goes on by itself."""
        task = self.start(coroutine)
        done, _ = await asyncio.wait([task], timeout=seconds)
        return task.result() if done else None

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._tasks.start(coroutine)

    async def close(self) -> None:
        """What is under way is given up; the ledger knows of it, and the next start sees to it."""
        await self._tasks.close()


def _log_unexpected(task: asyncio.Task[Any], error: BaseException) -> None:
    if not isinstance(error, Ec2ErrorResponse):  # which the caller gets
        log.error("a background job failed", exc_info=error)
