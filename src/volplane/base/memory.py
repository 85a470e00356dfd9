"""Memory that nobody uses goes back: what is kept only to be quick is forgotten when it is old, circles of
objects are found, and free pages returned to the machine.

Python looks for circles only after many more objects were made than freed, which a process that serves for
weeks reaches late and at any moment. Looking every ten seconds costs it some twenty milliseconds, and bounds
what they hold. The subtle thing: a large heap takes longer to look through, so it is looked at less often;
the rest costs next to nothing, and is done every time.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import time

EVERY = 10.0  # seconds
SHARE = 0.002  # of the time, at most

ARENAS = 1  # heaps of the C library: one for each thread would each keep what its thread once needed
LARGE = 128 << 10  # bytes; what is larger goes back to the machine as soon as it is free

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # malloc.h

_libc = ctypes.CDLL(None)


def configure_malloc() -> None:
    """Before there are threads: how the C library keeps memory."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_ARENA_MAX, ARENAS)
        _libc.mallopt(_M_MMAP_THRESHOLD, LARGE)


def tune_garbage_collector() -> None:
    """When everything is imported: that lives as long as the process, and is not looked through again."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def release_memory_periodically() -> None:
    """Until cancelled."""
    await asyncio.sleep(EVERY)
    gc.collect()
    gc.freeze()  # what was made at the start and is still here stays: it is not looked through again, either
    rest = 0.0
    while True:
        await asyncio.sleep(EVERY)
        rest -= EVERY
        if rest <= 0:
            rest = collect_cycles() / SHARE
        release_memory()


def collect_cycles() -> float:
    """For circles; the seconds of work that it took."""
    began = time.thread_time()
    gc.collect()
    return time.thread_time() - began


def release_memory() -> None:
    if hasattr(_libc, "malloc_trim"):  # not every C library has it, or needs it
        _libc.malloc_trim(0)
