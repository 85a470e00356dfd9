"""Wait for a condition on a cluster's objects by watching them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from volplane.api.meta import Resource
from volplane.client.client import Client

T = TypeVar("T", bound=Resource)


async def until(client: Client, kind: type[T], holds: Callable[[], object]) -> None:
    """Wait until `holds()`; it is called whenever an object of the kind has changed."""
    changed = asyncio.Event()
    cache = client.cache(kind)
    await cache.wait_synced()
    end = cache.subscribe(lambda old, new: changed.set())
    try:
        while not holds():
            changed.clear()
            await changed.wait()
    finally:
        end()
