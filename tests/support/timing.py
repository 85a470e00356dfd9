"""Tests that are played twice: in virtual time with everything in memory, and on real sockets.

`pytest.mark.both` plays a test of `tests/contract/` so. On real sockets a rule of minutes has the duration
that its flag sets; what is asserted of it is a lower bound, by the driver's own clock.
"""

from __future__ import annotations

import asyncio

from volplane.base.virtual_time_loop import VirtualLoop

GRAIN = 0.02  # seconds by which a loop's timers are not exact
SILENCE = 0.3  # seconds of real time in which nothing is to happen


def is_virtual() -> bool:
    return isinstance(asyncio.get_running_loop(), VirtualLoop)


async def rest(seconds: float = 1.0) -> None:
    """A time in which nothing is to happen: as long as is said in virtual time, else a short while."""
    await asyncio.sleep(seconds if is_virtual() else SILENCE)
