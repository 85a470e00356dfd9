"""What the server does by itself: old events are deleted, and history that nobody can need is let go.

Events live an hour; they go as real deletes with revisions of their own, so watchers see them leave.
History is kept for at least five minutes and a thousand revisions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import datetime, timedelta

from volplane.api.core import Event
from volplane.apiserver.backend import Backend
from volplane.base import clock
from volplane.store import KeyMissing, StaleRevision, StoreClosed, StoreError, StoreFailed

log = logging.getLogger(__name__)

PERIOD = 60.0
AT_ONCE = 100  # events that are looked at without a pause
EVENT_LIFETIME = timedelta(hours=1)
HISTORY_SECONDS = 300.0
HISTORY_REVISIONS = 1000


async def expire_events_and_compact(backend: Backend) -> None:
    """Until cancelled, or until the store is closed."""
    past: deque[tuple[float, int]] = deque()  # when the store was at which revision
    while True:
        await asyncio.sleep(PERIOD)
        try:
            await expire_events(backend, clock.wall())
            await compact(backend, past)
        except StoreClosed:
            return
        except StoreFailed as error:  # a full disk, for one
            log.warning("housekeeping failed; it is tried again in a minute: %s", error)
        except StoreError:
            log.exception("housekeeping failed; it is tried again in a minute")


async def expire_events(backend: Backend, now: datetime) -> None:
    entry = backend.registry.of(Event)
    oldest = now - EVENT_LIFETIME
    for number, record in enumerate((await backend.store.list(entry.prefix)).records, 1):
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)  # an hour of events takes a while to look through: others come first
        event = entry.access.load(record.value, record.revision)
        seen = event.last_timestamp or event.event_time or event.metadata.creation_timestamp
        if clock.parse(seen) < oldest:
            try:
                await backend.store.delete(record.key, revision=record.revision)
            except (KeyMissing, StaleRevision):
                continue


async def compact(backend: Backend, past: deque[tuple[float, int]]) -> None:
    now = clock.now()
    past.append((now, backend.store.revision))
    floor = 0
    while past and past[0][0] <= now - HISTORY_SECONDS:
        floor = past.popleft()[1]
    floor = min(floor, backend.store.revision - HISTORY_REVISIONS)
    if floor > backend.store.floor:
        await backend.store.compact(floor)
