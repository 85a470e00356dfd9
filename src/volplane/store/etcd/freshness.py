"""Read etcd's newest revision, with one request for all concurrent readers.

A response is valid for a reader only if the request was sent after the reader came. So readers that come
while a request is in progress share the next one: under load, a hundred reads cost one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from volplane.base.tasks import cancel_and_wait
from volplane.store.contract import StoreClosed


class SharedRevisionRead:
    def __init__(self, ask: Callable[[], Awaitable[int]]) -> None:
        self._ask = ask
        self._next: asyncio.Future[int] | None = None
        self._running: asyncio.Task[None] | None = None

    async def revision(self) -> int:
        """A revision that etcd had reached when this was called, or a newer one."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        answer = self._next
        if self._running is None:
            self._begin(answer)
        return await asyncio.shield(answer)

    def _begin(self, answer: asyncio.Future[int]) -> None:
        self._next = None
        self._running = asyncio.create_task(self._round(answer), name="etcd revision")

    async def _round(self, answer: asyncio.Future[int]) -> None:
        try:
            answer.set_result(await self._ask())
        except asyncio.CancelledError:
            _fail(answer, StoreClosed("the store is closed"))
            raise
        except Exception as error:
            _fail(answer, error)
        finally:
            self._running = None
            if self._next is not None:
                self._begin(self._next)

    async def close(self) -> None:
        while self._running is not None:
            running = self._running
            await cancel_and_wait(running)


def _fail(answer: asyncio.Future[int], error: Exception) -> None:
    answer.set_exception(error)
    answer.exception()  # the callers may be gone
