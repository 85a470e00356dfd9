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
        self._running: asyncio.Task[int] | None = None

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
        self._running = asyncio.create_task(self._request(), name="etcd revision")
        # A callback, because a task that is cancelled before its first step runs no code of its own.
        self._running.add_done_callback(lambda request: self._end(answer, request))

    async def _request(self) -> int:
        return await self._ask()

    def _end(self, answer: asyncio.Future[int], request: asyncio.Task[int]) -> None:
        self._running = None
        if request.cancelled():
            _fail(answer, StoreClosed("the store is closed"))
        elif (error := request.exception()) is not None:
            _fail(answer, error)
        else:
            answer.set_result(request.result())
        if self._next is not None:
            self._begin(self._next)

    async def close(self) -> None:
        while self._running is not None:
            await cancel_and_wait(self._running)


def _fail(answer: asyncio.Future[int], error: BaseException) -> None:
    answer.set_exception(error)
    answer.exception()  # the callers may be gone
