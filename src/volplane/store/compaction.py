"""Compaction: history is kept for at least five minutes and at least a thousand revisions."""

from __future__ import annotations

import asyncio
import logging

from volplane.store.contract import Store, StoreFailed

log = logging.getLogger(__name__)

AGE = 300.0  # seconds
KEEP = 1000  # revisions


async def keep_compacted(store: Store, *, age: float = AGE, keep: int = KEEP) -> None:
    """Compact until cancelled. What was the newest revision in one round may be compacted in the next."""
    seen = store.revision
    while True:
        await asyncio.sleep(age)
        target = min(seen, store.revision - keep)
        seen = store.revision
        if target > store.floor:
            try:
                await store.compact(target)
            except StoreFailed as error:
                # For example a full disk; history grows until the next round.
                log.warning("cannot compact: %s", error)
