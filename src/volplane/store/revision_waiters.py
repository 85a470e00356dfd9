"""Callers that wait until a revision is visible."""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count

from volplane.store.contract import StoreClosed


class RevisionWaiters:
    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()  # futures do not compare
        self._closed = False

    async def wait(self, revision: int, current: int) -> None:
        if revision <= current:
            return
        if self._closed:
            raise StoreClosed("the store is closed")
        future = asyncio.get_running_loop().create_future()
        heappush(self._heap, (revision, next(self._order), future))
        await future

    def wake(self, revision: int) -> None:
        while self._heap and self._heap[0][0] <= revision:
            future = heappop(self._heap)[2]
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        self._closed = True
        for _, _, future in self._heap:
            if not future.done():
                future.set_exception(StoreClosed("the store is closed"))
        self._heap.clear()
