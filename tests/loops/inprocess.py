"""The real API server, in process, on the memory store: what tests of loops and sidecars run against."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from volplane.apiserver.in_process_server import InProcessServer
from volplane.client.cache import Caches
from volplane.client.client import Client
from volplane.client.transport import Transport
from volplane.store.memory import MemoryStore


class InProcessEnv:
    """One server and the clients of any number of roles."""

    def __init__(self, core: InProcessServer, caches: Caches) -> None:
        self.core, self.caches = core, caches
        self.client = self.role("test")

    def transport(self) -> Transport:
        return self.core.in_process_transport()

    def role(self, component: str) -> Client:
        return Client(self.core.in_process_transport(), caches=self.caches, component=component)

    def separate_client(self, component: str) -> Client:
        """A client with caches of its own, as one in another process has them."""
        return Client(self.core.in_process_transport(), component=component)


@asynccontextmanager
async def world() -> AsyncIterator[InProcessEnv]:
    store = MemoryStore()
    core = await InProcessServer(store).start()
    try:
        async with Caches(core.in_process_transport()) as caches:
            yield InProcessEnv(core, caches)
    finally:
        await core.close()
        await store.close()


@asynccontextmanager
async def running(*jobs: Awaitable[None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run them beside the test; a job that fails makes the test fail."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def until(test: Callable[[], Awaitable[Any]], seconds: float = 30.0) -> Any:
    """The first truthy answer; the test's own waiting."""
    async with asyncio.timeout(seconds):
        while True:
            if answer := await test():
                return answer
            await asyncio.sleep(0.01)
