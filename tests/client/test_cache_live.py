"""A cache knows whether its watch is connected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from volplane.api.core import Node
from volplane.api.meta import ObjectMeta
from volplane.client.cache import Cache
from volplane.client.transport import ChangeType, ListPage, ObjectChange


class Line:
    """A server whose stream the test disconnects and reconnects."""

    def __init__(self) -> None:
        self.batches: asyncio.Queue[Sequence[ObjectChange[Node]] | None] = asyncio.Queue()
        self.open = asyncio.Event()
        self.open.set()

    async def list(self, type: type[Node], namespace: str = "", **_: Any) -> ListPage[Node]:
        return ListPage([], 1)

    @asynccontextmanager
    async def watch(self, type: type[Node], namespace: str = "", **_: Any) -> AsyncIterator[Any]:
        await self.open.wait()

        async def batches() -> AsyncIterator[Sequence[ObjectChange[Node]]]:
            while (batch := await self.batches.get()) is not None:
                yield batch

        yield batches()


@pytest.mark.virtual
async def test_what_was_missed_is_known_before_a_cache_is_live_again() -> None:
    line = Line()
    cache = Cache(line, Node)  # type: ignore[arg-type]
    running = asyncio.create_task(cache.run())
    try:
        await cache.wait_live()
        line.open.clear()
        line.batches.put_nowait(None)  # the stream ends
        await asyncio.sleep(30)
        waiting = asyncio.create_task(cache.wait_live())
        await asyncio.sleep(0)
        assert not waiting.done()
        node = Node(metadata=ObjectMeta(name="cordoned", uid="u", resource_version="2"))
        line.batches.put_nowait([ObjectChange(ChangeType.ADDED, node, 2)])
        line.open.set()
        await waiting
        assert cache.get("cordoned") is not None
    finally:
        running.cancel()


@pytest.mark.virtual
async def test_a_server_that_has_nothing_to_tell_is_heard_all_the_same() -> None:
    line = Line()
    cache = Cache(line, Node)  # type: ignore[arg-type]
    running = asyncio.create_task(cache.run())
    try:
        await cache.wait_live()
        line.batches.put_nowait(None)
        await asyncio.sleep(0.001)
        async with asyncio.timeout(5):
            await cache.wait_live()
    finally:
        running.cancel()
