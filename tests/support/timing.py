"""Tests that run twice (`pytest.mark.both`): in virtual time and in memory, and on real sockets.

On real sockets long durations are shortened by their flags; tests assert only lower bounds, by the driver's
clock.
"""

from __future__ import annotations

import asyncio

from volplane.base.virtual_time_loop import VirtualLoop

GRAIN = 0.02  # tolerance of timers in seconds
SILENCE = 0.3  # seconds of real time in which nothing may happen


def is_virtual() -> bool:
    return isinstance(asyncio.get_running_loop(), VirtualLoop)


async def rest(seconds: float = 1.0) -> None:
    """Wait while nothing may happen: `seconds` in virtual time, else a short time."""
    await asyncio.sleep(seconds if is_virtual() else SILENCE)
