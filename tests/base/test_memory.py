"""Memory that nobody uses is given back while a process serves."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from volplane.base import memory


class Link:
    other: Link


def circle() -> weakref.ref[Link]:
    one, two = Link(), Link()
    one.other, two.other = two, one
    return weakref.ref(one)


@pytest.mark.virtual
async def test_circles_do_not_stay() -> None:
    gc.disable()
    try:
        tidying = asyncio.create_task(memory.release_memory_periodically())
        await asyncio.sleep(memory.EVERY + 1)
        left = circle()
        assert left() is not None
        await asyncio.sleep(memory.EVERY)
        assert left() is None
        tidying.cancel()
        await asyncio.wait({tidying})
    finally:
        gc.enable()
        gc.unfreeze()


async def test_what_is_kept_only_to_be_quick_is_forgotten() -> None:
    class Quick:
        told = 0

        def forget(self) -> None:
            self.told += 1

    quick = Quick()
    memory.expiring_caches.add(quick)
    memory.release_memory()
    memory.release_memory()
    assert quick.told == 2
    left = weakref.ref(quick)
    del quick
    assert left() is None  # nobody lives on for having been told
