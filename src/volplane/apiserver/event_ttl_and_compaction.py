"""Periodic work: delete expired Events and compact the history of the store.

Events expire after an hour; they are deleted with revisions of their own, so that watchers see it. History is
kept for at least five minutes and a thousand revisions.
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
AT_ONCE = 100  # events checked before yielding to the event loop
EVENT_LIFETIME = timedelta(hours=1)
HISTORY_SECONDS = 300.0
HISTORY_REVISIONS = 1000


async def expire_events_and_compact(backend: Backend) -> None:
    """Run until cancelled, or until the store is closed."""
    past: deque[tuple[float, int]] = deque()  # time and revision of the store
    while True:
        await asyncio.sleep(PERIOD)
        try:
            await expire_events(backend, clock.wall())
            await compact(backend, past)
        except StoreClosed:
            return
        except StoreFailed as error:  # for example a full disk
            log.warning("cannot expire events or compact the store; retrying in a minute: %s", error)
        except StoreError:
            log.exception("cannot expire events or compact the store; retrying in a minute")


async def expire_events(backend: Backend, now: datetime) -> None:
    entry = backend.registry.of(Event)
    oldest = now - EVENT_LIFETIME
    for number, record in enumerate((await backend.store.list(entry.prefix)).records, 1):
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
        event = entry.access.load(record.value, record.revision)
        if _last_seen(event) < oldest:
            try:
                await backend.store.delete(record.key, revision=record.revision)
            except (KeyMissing, StaleRevision):
                continue


def _last_seen(event: Event) -> datetime:
    """When the event was last observed; an event that is repeated stays."""
    repeated = event.series.last_observed_time if event.series is not None else ""
    times = filter(None, (repeated, event.last_timestamp, event.event_time))
    return max(map(clock.parse, times), default=clock.parse(event.metadata.creation_timestamp))


async def compact(backend: Backend, past: deque[tuple[float, int]]) -> None:
    now = clock.now()
    past.append((now, backend.store.revision))
    floor = 0
    while past and past[0][0] <= now - HISTORY_SECONDS:
        floor = past.popleft()[1]
    floor = min(floor, backend.store.revision - HISTORY_REVISIONS)
    if floor > backend.store.floor:
        await backend.store.compact(floor)
