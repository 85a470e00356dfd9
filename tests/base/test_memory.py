"""Unused memory is released while a process serves."""

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
