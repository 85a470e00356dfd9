"""A world that stops at the n-th thing a role does, just before or just after it took effect.

Nothing the role does afterwards happens: it hangs where it was, until the test lets it go. This is not a
killed process, but it visits every instant between two effects.
"""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

from volplane.csi.client import Caller


class StopPoint:
    """Counts effects; `at` is the one that is never seen (`before`) or never heard of (`after`)."""

    def __init__(self, at: int, when: str) -> None:
        self.left, self.when = at, when
        self.struck = asyncio.Event()
        self.effects: list[str] = []

    async def around(self, name: str, effect: Any) -> Any:
        if self.struck.is_set():
            effect.close()
            await self._hang()
        self.effects.append(name)
        self.left -= 1
        if self.left == 0 and self.when == "before":
            effect.close()
            await self._hang()
        result = await effect
        if self.left == 0:
            await self._hang()
        return result

    async def _hang(self) -> NoReturn:
        self.struck.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")


class StoppingTransport:
    """A transport whose writes go through the doom; events are told, but do not count."""

    def __init__(self, transport: Any, doom: StopPoint) -> None:
        self._transport, self._doom = transport, doom

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._transport, name)
        if name not in ("create", "update", "patch", "delete"):
            return verb

        async def doomed(first: Any, *args: Any, **options: Any) -> Any:
            kind = (first if isinstance(first, type) else type(first)).__name__
            if kind == "Event":
                return await verb(first, *args, **options)
            return await self._doom.around(f"{name} {kind}", verb(first, *args, **options))

        return doomed


class StoppingCaller:
    """The same for calls to the driver; questions do not count."""

    def __init__(self, caller: Caller, doom: StopPoint) -> None:
        self._caller, self._doom = caller, doom

    async def call(self, method: str, request: Any, *, timeout: float = 15.0, subject: str = "") -> Any:
        effect = self._caller.call(method, request, timeout=timeout, subject=subject)
        if "Get" in method or method == "Probe":
            return await effect
        return await self._doom.around(method, effect)

    async def ready(self, timeout: float | None = None) -> None:
        await self._caller.ready(timeout)

    async def close(self) -> None:
        await self._caller.close()
