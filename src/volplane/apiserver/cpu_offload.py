"""Long work runs beside the loop, so that one request never keeps all others waiting.

Work on little input runs where it is called. Work on much input runs in one worker thread, from which Python
takes the interpreter whenever the loop has something to do. Some work takes long although its input is small
(a rule over lists in lists, a pattern with many alternatives): it counts what it does with `spend`, and when
the loop's allowance is used up it is begun anew in the thread. So whatever is handed to `run` is pure.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

LARGE = 16 * 1024  # bytes of input: what is read from as many takes a few milliseconds
ALLOWANCE = 10_000  # units that work may take on the loop; one is roughly a microsecond
SWITCH_INTERVAL = 0.001  # seconds after which a worker gives way; Python's own 5 ms would slow each turn down


class _AllowanceExceeded(BaseException):
    """The allowance is used up. Nobody but `run` catches it, and no `except Exception` on the way."""


class _Allowance(threading.local):
    left: int | None = None  # None: as much as it takes


_allowance = _Allowance()


def remaining_allowance() -> int | None:
    """The units that are left on the loop; None: there is no limit, as in a worker."""
    return _allowance.left


def spend(units: int) -> None:
    """Count work that was done, or is about to be."""
    left = _allowance.left
    if left is not None:
        _allowance.left = left - units
        if units > left:
            raise _AllowanceExceeded


async def run(size: int, notes: list[str], work: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """The work's result. `size`: bytes of input; `notes`: what the work adds to, which is not added twice."""
    if size > LARGE:
        return await _run_in_worker(work, *args, **more)
    before = len(notes)
    _allowance.left = ALLOWANCE
    try:
        return work(*args, **more)
    except _AllowanceExceeded:
        del notes[before:]
    finally:
        _allowance.left = None
    return await _run_in_worker(work, *args, **more)


async def map_in_turns(items: Sequence[S], work: Callable[[S], T], at_once: int) -> list[T]:
    """What the work makes of each item; others get their turn after so many."""
    if len(items) <= at_once:
        return [work(item) for item in items]
    made: list[T] = []
    for at in range(0, len(items), at_once):
        made += [work(item) for item in items[at : at + at_once]]
        await asyncio.sleep(0)
    return made


async def _run_in_worker(work: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    return await asyncio.get_running_loop().run_in_executor(_worker(), partial(work, *args, **more))


@cache
def _worker() -> ThreadPoolExecutor:
    """One thread: several would only take turns, and the loop's would come less often."""
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
    return ThreadPoolExecutor(1, "apiserver-large")
