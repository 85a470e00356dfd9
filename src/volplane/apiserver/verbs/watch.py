"""Watch: what changes in a collection, from a revision on, in order and without a gap.

A watch begins with the state it starts from (as ADDED events, when asked for) and goes on with the store's
events after exactly that revision. It yields batches: whatever is ready. The subtle thing is the bookmark:
it names how far this watcher's own stream has got, not how far the store has.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from msgspec import Struct

from volplane.api.errors import Expired, Invalid, forbidden, not_supported
from volplane.apiserver.backend import Backend
from volplane.apiserver.feed import ADDED, Note
from volplane.apiserver.registry import Entry
from volplane.apiserver.selection import EVERYTHING, Selection
from volplane.apiserver.strategy import Call
from volplane.apiserver.verbs.versions import not_older_than, number
from volplane.base import clock
from volplane.store import Compacted, Event, Overrun, Record, Watch

BOOKMARK = "BOOKMARK"
BOOKMARK_PERIOD = 60.0
FIRST_BOOKMARK = 0.02  # whoever goes on from a revision learns so that it has what it missed
LAST_BOOKMARK = 2.0  # seconds before the end
LIFETIME = (1800.0, 3600.0)  # of a watch without timeoutSeconds


class Asked(Struct):
    """The options of a watch."""

    selection: Selection = EVERYTHING
    version: str = ""
    match: str = ""
    initial: bool | None = None  # sendInitialEvents
    bookmarks: bool = False
    seconds: float = 0.0


class Told(NamedTuple):
    """One thing to tell a watcher. A bookmark has no note; `ends_initial`: the initial state is complete."""

    type: str
    note: Note | None
    revision: int
    ends_initial: bool = False


def check(asked: Asked) -> None:
    """Refuse what can be refused before the stream begins."""
    if asked.version:
        number(asked.version)
    causes = []
    if asked.match and asked.initial is None:
        told = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        causes.append(forbidden("resourceVersionMatch", told))
    if asked.initial is not None and asked.match != "NotOlderThan":
        told = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        causes.append(forbidden("resourceVersionMatch", told))
    if asked.match not in ("", "NotOlderThan"):
        causes.append(not_supported("resourceVersionMatch", asked.match, ("NotOlderThan",)))
    if causes:
        raise Invalid.of("ListOptions", "", causes, group="meta.k8s.io")


async def watch(
    backend: Backend, entry: Entry, call: Call, asked: Asked
) -> AsyncGenerator[Sequence[Told], None]:
    """Batches until the time is up. Raises Expired when events since that revision are no longer there."""
    deadline = clock.now() + (asked.seconds or random.uniform(*LIFETIME))
    revision, initial = await _start(backend, entry, call, asked)
    if initial:
        yield initial
    try:
        async with backend.store.watch(
            entry.reach(call.namespace, asked.selection), revision=revision
        ) as events:
            async for batch in _live(entry, asked, events, deadline):
                yield batch
    except Compacted as error:
        raise Expired(f"too old resource version: {revision} ({error.floor})") from error
    except Overrun as error:
        raise Expired("the watcher was too slow and has missed events") from error


async def _start(backend: Backend, entry: Entry, call: Call, asked: Asked) -> tuple[int, list[Told]]:
    """Where the live events begin, and what is told before them."""
    anew = asked.version in ("", "0")
    if asked.initial is False and anew:
        return backend.store.revision, []
    if not anew and not asked.initial:
        return number(asked.version), []
    if not anew:
        await not_older_than(backend.store, asked.version)
    listing = await backend.store.list(entry.reach(call.namespace, asked.selection))
    told = [
        Told(ADDED, note, note.event.revision)
        for note in (_as_event(entry, record) for record in listing.records)
        if note.type_for(asked.selection)
    ]
    if asked.initial and asked.bookmarks:
        told.append(Told(BOOKMARK, None, listing.revision, ends_initial=True))
    return listing.revision, told


def _as_event(entry: Entry, record: Record) -> Note:
    """An object that is there, as if just added; not shared, or its real event would look like that."""
    return Note(entry.feed, Event(revision=record.revision, record=record, previous=None))


async def _live(
    entry: Entry, asked: Asked, events: Watch, deadline: float
) -> AsyncGenerator[Sequence[Told], None]:
    goes_on = asked.version not in ("", "0") and not asked.initial
    tick = clock.now() + FIRST_BOOKMARK if goes_on and asked.bookmarks else _next_tick(asked, deadline)
    while not entry.is_retired():
        try:
            async with asyncio.timeout_at(min(tick, deadline)) as timeout:
                entry.watching.add(timeout)
                try:
                    batch = await anext(events)
                finally:
                    entry.watching.discard(timeout)
        except TimeoutError:
            if entry.is_retired():
                async for rest in _rest(entry, asked, events):
                    yield rest
                return
            if asked.bookmarks:
                yield [Told(BOOKMARK, None, events.progress)]
            if clock.now() >= deadline:
                return
            tick = _next_tick(asked, deadline)
            continue
        except StopAsyncIteration:
            return
        told = _told(entry, asked.selection, batch)
        if told:
            yield told


async def _rest(entry: Entry, asked: Asked, events: Watch) -> AsyncGenerator[Sequence[Told], None]:
    """What was already there when the kind went: the last objects leave before it does."""
    while True:
        try:
            async with asyncio.timeout(0):
                batch = await anext(events)
        except (TimeoutError, StopAsyncIteration):
            return
        if told := _told(entry, asked.selection, batch):
            yield told


def _next_tick(asked: Asked, deadline: float) -> float:
    """The next bookmark: once a minute, and once more shortly before the end."""
    if not asked.bookmarks:
        return deadline
    last = deadline - LAST_BOOKMARK
    now = clock.now()
    return min(now + BOOKMARK_PERIOD, last) if now < last else deadline


def _told(entry: Entry, selection: Selection, batch: Sequence[Event]) -> list[Told]:
    told = []
    for event in batch:
        note = entry.feed.note(event)
        type = note.type_for(selection)
        if type:
            told.append(Told(type, note, event.revision))
    return told
