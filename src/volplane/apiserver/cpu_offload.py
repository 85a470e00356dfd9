"""Run CPU-heavy work in a worker thread, so that one request does not block the event loop.

Work on small input runs on the event loop. Work on large input runs in one worker thread, which Python
interrupts whenever the loop has something to do. Some work takes long although its input is small (a CEL rule
over nested lists, a pattern with many alternatives): it counts its cost with `spend`, and when it exceeds the
allowance it is started again in the thread. Therefore functions passed to `run` must be pure.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache, partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

LARGE = 16 * 1024  # bytes of input, which take a few milliseconds to process
ALLOWANCE = 10_000  # units of work allowed on the event loop; one is roughly a microsecond
SWITCH_INTERVAL = 0.001  # seconds; with Python's default of 5 ms the worker would delay each turn of the loop


class _AllowanceExceeded(BaseException):
    """The allowance is used up. A BaseException, so that no `except Exception` stops it before `run`."""


_allowance: ContextVar[int | None] = ContextVar("allowance", default=None)  # None: no limit


def remaining_allowance() -> int | None:
    """Return the remaining units; None: no limit, as in the worker thread."""
    return _allowance.get()


def spend(units: int) -> None:
    """Count work that was done or is about to be done."""
    left = _allowance.get()
    if left is not None:
        _allowance.set(left - units)
        if units > left:
            raise _AllowanceExceeded


async def run(size: int, notes: list[str], work: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """Return the result of `work`. `size`: bytes of input; `notes`: a list that `work` appends to, reset
    before a second run.
    """
    if size > LARGE:
        return await _run_in_worker(work, *args, **more)
    before = len(notes)
    _allowance.set(ALLOWANCE)
    try:
        return work(*args, **more)
    except _AllowanceExceeded:
        del notes[before:]
    finally:
        _allowance.set(None)
    return await _run_in_worker(work, *args, **more)


async def map_in_turns(items: Sequence[S], work: Callable[[S], T], at_once: int) -> list[T]:
    """Apply `work` to each item; yield to the event loop after every `at_once` items."""
    if len(items) <= at_once:
        return [work(item) for item in items]
    result: list[T] = []
    for at in range(0, len(items), at_once):
        result += [work(item) for item in items[at : at + at_once]]
        await asyncio.sleep(0)
    return result


async def _run_in_worker(work: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    return await asyncio.get_running_loop().run_in_executor(_worker(), partial(work, *args, **more))


@cache
def _worker() -> ThreadPoolExecutor:
    """One thread: more would compete with the event loop for the interpreter lock."""
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
    return ThreadPoolExecutor(1, "apiserver-large")
