"""What a role stands on when it can be killed: after that nothing it does happens, and nothing answers it.

What was under way takes effect or has taken it, as a request that is on the wire; its answer is never heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

WRITES = ("create", "update", "patch", "delete")


class RoleLife:
    """Shared by the transport and the driver's caller of one role."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self._under_way: set[asyncio.Task[Any]] = set()

    async def through(self, effect: Any) -> Any:
        if self.over.is_set():
            effect.close()
            await asyncio.get_running_loop().create_future()
        task: asyncio.Task[Any] = asyncio.ensure_future(effect)
        self._under_way.add(task)
        task.add_done_callback(self._forget_task)
        end = asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            end.cancel()
        if self.over.is_set():
            await asyncio.get_running_loop().create_future()
        return task.result()

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()

    async def wait_until_settled(self) -> None:
        """Until everything that was under way has ended."""
        while self._under_way:
            await asyncio.wait(set(self._under_way))


class CrashingTransport:
    def __init__(self, transport: Any, life: RoleLife) -> None:
        self._transport, self._life = transport, life

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._transport, name)
        if name not in WRITES:
            return verb

        def mortal(*args: Any, **options: Any) -> Awaitable[Any]:
            return self._life.through(verb(*args, **options))

        return mortal


class CrashingCaller:
    def __init__(self, caller: Any, life: RoleLife) -> None:
        self._caller, self._life = caller, life

    async def call(self, method: str, request: Any, **options: Any) -> Any:
        return await self._life.through(self._caller.call(method, request, **options))

    async def ready(self, timeout: float | None = None) -> None:
        await self._caller.ready(timeout)

    async def close(self) -> None:
        return None
