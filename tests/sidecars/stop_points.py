"""Stops a role at its n-th effect, just before or just after it.

The role hangs there until the test cancels it. This is not a killed process, but it covers every moment
between two effects.
"""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

from volplane.csi.client import Caller


class StopPoint:
    """Counts effects. Number `at` does not happen (`before`), or its result is lost (`after`)."""

    def __init__(self, at: int, when: str) -> None:
        self.left, self.when = at, when
        self.stopped = asyncio.Event()
        self.effects: list[str] = []

    async def around(self, name: str, effect: Any) -> Any:
        if self.stopped.is_set():
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
        self.stopped.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")


class StoppingTransport:
    """A transport whose writes pass the stop point; events do not count."""

    def __init__(self, transport: Any, stop_point: StopPoint) -> None:
        self._transport, self._stop_point = transport, stop_point

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._transport, name)
        if name not in ("create", "update", "patch", "delete"):
            return verb

        async def stopping_verb(first: Any, *args: Any, **options: Any) -> Any:
            kind = (first if isinstance(first, type) else type(first)).__name__
            if kind == "Event":
                return await verb(first, *args, **options)
            return await self._stop_point.around(f"{name} {kind}", verb(first, *args, **options))

        return stopping_verb


class StoppingCaller:
    """The same for calls to the driver; calls that only read do not count."""

    def __init__(self, caller: Caller, stop_point: StopPoint) -> None:
        self._caller, self._stop_point = caller, stop_point

    async def call(self, method: str, request: Any, *, timeout: float = 15.0, subject: str = "") -> Any:
        effect = self._caller.call(method, request, timeout=timeout, subject=subject)
        if "Get" in method or method == "Probe":
            return await effect
        return await self._stop_point.around(method, effect)

    async def ready(self, timeout: float | None = None) -> None:
        await self._caller.ready(timeout)

    async def close(self) -> None:
        await self._caller.close()
