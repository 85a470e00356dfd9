"""Combines lookups of many volumes into one request.

While a request is in progress, further lookups are collected and sent together in the next one. A single
lookup is sent at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from volplane.base.tasks import cancel_and_wait

T = TypeVar("T")

MAX_BATCH = 200  # values that EC2 accepts in a filter


class RequestBatcher(Generic[T]):
    def __init__(self, ask: Callable[[list[str]], Awaitable[Mapping[str, T]]]) -> None:
        self._ask = ask
        self._waiting: dict[str, asyncio.Future[T | None]] = {}
        self._running: asyncio.Task[None] | None = None

    async def get(self, key: str) -> T | None:
        """None for what does not exist."""
        answer = self._waiting.get(key)
        if answer is None:
            answer = self._waiting[key] = asyncio.get_running_loop().create_future()
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._drain())
        return await asyncio.shield(answer)

    async def close(self) -> None:
        if self._running is not None:
            await cancel_and_wait(self._running)

    async def _drain(self) -> None:
        while self._waiting:
            keys = list(self._waiting)[:MAX_BATCH]
            asked = {key: self._waiting.pop(key) for key in keys}
            try:
                found = await self._ask(keys)
            except Exception as error:
                for answer in asked.values():
                    if not answer.done():
                        answer.set_exception(error)
                        answer.exception()  # the caller may have left
            else:
                for key, answer in asked.items():
                    if not answer.done():
                        answer.set_result(found.get(key))
            finally:
                for answer in asked.values():
                    answer.cancel()  # those without an answer: the batcher is being closed
