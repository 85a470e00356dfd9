"""Time as the running loop tells it.

Under the virtual loop the wall clock follows the loop's time too, so that stamps on objects and timers
agree.
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
    """Seconds on the running loop's clock: for intervals and deadlines, never for stamps."""
    return asyncio.get_running_loop().time()


def wall() -> datetime:
    return datetime.fromtimestamp(_seconds(), UTC)


def _seconds() -> float:
    loop = asyncio._get_running_loop()  # None outside a coroutine, where the machine's clock is the right one
    return loop.wall() if isinstance(loop, VirtualLoop) else time.time()


def stamp(moment: datetime | None = None) -> str:
    """The API's Time: whole seconds. Those of one second share the text, for many are kept."""
    return _format_second(int(moment.timestamp() if moment else _seconds()))


@lru_cache(maxsize=4)
def _format_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat(timespec="seconds")[:-6] + "Z"


def microstamp(moment: datetime | None = None) -> str:
    """The API's MicroTime: always six digits, because Go refuses a Lease without them."""
    return _utc(moment or wall()).isoformat(timespec="microseconds")[:-6] + "Z"


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is UTC else moment.astimezone(UTC)


def parse(text: str) -> datetime:
    """Read a Time or MicroTime; raises ValueError on anything that is not RFC 3339 with a zone."""
    moment = datetime.fromisoformat(_NANOSECONDS.sub(r"\1", text))
    if moment.tzinfo is None:
        raise ValueError(f"no time zone in {text!r}")
    return moment.astimezone(UTC)
