"""The time of the running event loop.

Under the virtual loop the wall clock follows the loop's time, so timestamps on objects and timers agree.
"""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime
from functools import lru_cache

from volplane.base.virtual_time_loop import VirtualLoop

# Go writes up to nine fractional digits, Python reads six.
_NANOSECONDS = re.compile(r"(\.\d{6})\d+")


def now() -> float:
    """Seconds on the running loop's clock: for intervals and deadlines, never for timestamps."""
    return asyncio.get_running_loop().time()


def wall() -> datetime:
    return datetime.fromtimestamp(_seconds(), UTC)


def _seconds() -> float:
    loop = asyncio._get_running_loop()  # None outside a coroutine: then the machine's clock is right
    return loop.wall() if type(loop) is VirtualLoop else time.time()


def stamp(moment: datetime | None = None) -> str:
    """The API's Time, in whole seconds. All timestamps of one second share a string, to save memory."""
    return _format_second(int(moment.timestamp() if moment else _seconds()))


@lru_cache(maxsize=4)
def _format_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat(timespec="seconds")[:-6] + "Z"


def microstamp(moment: datetime | None = None) -> str:
    """The API's MicroTime, always with six digits: Go rejects a Lease without them."""
    if moment is not None:
        return _utc(moment).isoformat(timespec="microseconds")[:-6] + "Z"
    second, microsecond = divmod(round(_seconds() * 1_000_000), 1_000_000)
    return f"{_format_second(second)[:-1]}.{microsecond:06}Z"  # a third of the time of isoformat


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is UTC else moment.astimezone(UTC)


def parse(text: str) -> datetime:
    """Parse a Time or MicroTime. Raises ValueError for anything that is not RFC 3339 with a time zone."""
    moment = datetime.fromisoformat(_NANOSECONDS.sub(r"\1", text))
    if moment.tzinfo is None:
        raise ValueError(f"no time zone in {text!r}")
    return moment.astimezone(UTC)
