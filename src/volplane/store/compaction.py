"""How long history is kept: at least five minutes and at least a thousand revisions, whichever is more."""

from __future__ import annotations

import asyncio
import logging

from volplane.store.contract import Store, StoreFailed

log = logging.getLogger(__name__)

AGE = 300.0  # seconds
KEEP = 1000  # revisions


async def keep_compacted(store: Store, *, age: float = AGE, keep: int = KEEP) -> None:
    """Run until cancelled. A revision seen at one round is old enough to go at the next."""
    seen = store.revision
    while True:
        await asyncio.sleep(age)
        target = min(seen, store.revision - keep)
        seen = store.revision
        if target > store.floor:
            try:
                await store.compact(target)
            except StoreFailed as error:
                log.warning("cannot compact: %s", error)  # a full disk passes; history only grows meanwhile
