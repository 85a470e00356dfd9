"""Release unused memory: collect cycles, trim the heap.

Python collects cycles only after many more objects were allocated than freed. A process that serves for weeks
reaches that late, and at any moment. Collecting every ten seconds takes about twenty milliseconds and bounds
what cycles hold. A large heap takes longer, so it is collected less often; trimming is cheap and done every
time.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import time

EVERY = 10.0  # seconds
SHARE = 0.002  # of the process's time that collecting may take

ARENAS = 1  # heaps of the C library: one per thread would keep the peak of each thread
LARGE = 128 << 10  # bytes; larger allocations are returned to the machine when freed

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # malloc.h

_libc = ctypes.CDLL(None)


def configure_malloc() -> None:
    """Configure the C library's allocator. Call it before threads start."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_ARENA_MAX, ARENAS)
        _libc.mallopt(_M_MMAP_THRESHOLD, LARGE)


def tune_garbage_collector() -> None:
    """Exclude imported modules from collections, and collect less often. Call it after the imports."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def release_memory_periodically() -> None:
    """Collect cycles and trim the heap until cancelled."""
    await asyncio.sleep(EVERY)
    gc.collect()
    gc.freeze()  # what is left from the start lives as long as the process: exclude it, too
    rest = 0.0
    while True:
        await asyncio.sleep(EVERY)
        rest -= EVERY
        if rest <= 0:
            rest = collect_cycles() / SHARE
        release_memory()


def collect_cycles() -> float:
    """Collect cycles. Returns the CPU seconds it took."""
    began = time.thread_time()
    gc.collect()
    return time.thread_time() - began


def release_memory() -> None:
    """Return free pages to the machine."""
    if hasattr(_libc, "malloc_trim"):  # not every C library has it
        _libc.malloc_trim(0)
