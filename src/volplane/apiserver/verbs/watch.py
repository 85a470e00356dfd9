"""Watch: what changes in a collection, from a revision on, in order and without a gap.

A watch begins with the state it starts from (as ADDED events, when asked for) and goes on with the store's
events after exactly that revision. It yields batches: whatever is ready. A watcher that offers a `PushTarget`
gets what happens from then on right where it is published, and the batches carry only what it could not take.
A bookmark names how far this watcher's own stream has got, not how far the store has.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from volplane.api.errors import Expired, Invalid, forbidden, not_supported
from volplane.apiserver import cpu_offload
from volplane.apiserver.backend import Backend
from volplane.apiserver.registry import ServedResource
from volplane.apiserver.selectors import EVERYTHING, Selection
from volplane.apiserver.strategy import ApiCall
from volplane.apiserver.verbs.resource_versions import parse_revision, wait_for_revision
from volplane.apiserver.watch_cache import ADDED, WatchEvent
from volplane.base import clock
from volplane.store import RevisionCompacted, StoreEvent, StoreRecord, StoreWatch, WatchOverrun

AT_ONCE = 500  # objects of the initial state that are told in one turn of the loop
BOOKMARK = "BOOKMARK"
BOOKMARK_PERIOD = 60.0
FIRST_BOOKMARK = 0.02  # whoever goes on from a revision learns so that it has what it missed
LAST_BOOKMARK = 2.0  # seconds before the end
LIFETIME = (1800.0, 3600.0)  # of a watch without timeoutSeconds


class WatchOptions(Struct):
    """The options of a watch."""

    selection: Selection = EVERYTHING
    version: str = ""
    match: str = ""
    initial: bool | None = None  # sendInitialEvents
    bookmarks: bool = False
    seconds: float = 0.0


class WatchItem(NamedTuple):
    """One thing to tell a watcher. A bookmark has no note; `ends_initial`: the initial state is complete."""

    type: str
    event: WatchEvent | None
    revision: int
    ends_initial: bool = False


class PushTarget(Protocol):
    """A watcher that can be told without a task."""

    def is_full(self) -> bool:
        """It takes no more for now; batches wait in the stream."""
        ...

    def __call__(self, batch: Sequence[StoreEvent]) -> bool:
        """Tell it, or answer False to be told in turn."""
        ...


def check_options(asked: WatchOptions) -> None:
    """Refuse what can be refused before the stream begins."""
    if asked.version:
        parse_revision(asked.version)
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
    backend: Backend,
    entry: ServedResource,
    call: ApiCall,
    asked: WatchOptions,
    push: PushTarget | None = None,
) -> AsyncGenerator[Sequence[WatchItem], None]:
    """Batches until the time is up. Raises Expired when events since that revision are no longer there.

    With `push` there are empty batches, too: whoever writes them waits then until its client has room.
    """
    deadline = clock.now() + (asked.seconds or random.uniform(*LIFETIME))
    revision, initial = await _start(backend, entry, call, asked)
    for at in range(0, len(initial), AT_ONCE):
        yield initial[at : at + AT_ONCE]
    try:
        async with backend.store.watch(
            entry.selection_prefix(call.namespace, asked.selection), revision=revision
        ) as events:
            async for batch in _live(entry, asked, events, deadline, push):
                yield batch
    except RevisionCompacted as error:
        raise Expired(f"too old resource version: {revision} ({error.floor})") from error
    except WatchOverrun as error:
        raise Expired("the watcher was too slow and has missed events") from error


async def _start(
    backend: Backend, entry: ServedResource, call: ApiCall, asked: WatchOptions
) -> tuple[int, list[WatchItem]]:
    """Where the live events begin, and what is told before them."""
    anew = asked.version in ("", "0")
    if asked.initial is False and anew:
        return backend.store.revision, []
    if not anew and not asked.initial:
        return parse_revision(asked.version), []
    if not anew:
        await wait_for_revision(backend.store, asked.version)
    listing = await backend.store.list(entry.selection_prefix(call.namespace, asked.selection))
    notes = [_added_event(entry, record) for record in listing.records]
    seen = await cpu_offload.map_in_turns(
        notes, lambda note: note.type_for(asked.selection), asked.selection.objects_per_turn
    )
    told = [
        WatchItem(ADDED, note, note.event.revision) for note, type in zip(notes, seen, strict=True) if type
    ]
    if asked.initial and asked.bookmarks:
        told.append(WatchItem(BOOKMARK, None, listing.revision, ends_initial=True))
    return listing.revision, told


def _added_event(entry: ServedResource, record: StoreRecord) -> WatchEvent:
    """An object that is there, as if just added; not shared, or its real event would look like that."""
    return WatchEvent(entry.watch_cache, StoreEvent(revision=record.revision, record=record, previous=None))


class _BookmarkTimer:
    """Rings when it is time for a bookmark, or for the end: a timer a minute, not one an event."""

    def __init__(self, nudge: Callable[[], None]) -> None:
        self._nudge = nudge
        self._timer: asyncio.TimerHandle | None = None
        self.rang = False

    def set(self, when: float) -> None:
        self.close()
        self.rang = False
        self._timer = asyncio.get_running_loop().call_at(when, self._ring)

    def _ring(self) -> None:
        self.rang = True
        self._nudge()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def _live(
    entry: ServedResource, asked: WatchOptions, events: StoreWatch, deadline: float, push: PushTarget | None
) -> AsyncGenerator[Sequence[WatchItem], None]:
    if entry.is_retired():
        return
    goes_on = asked.version not in ("", "0") and not asked.initial
    tick = clock.now() + FIRST_BOOKMARK if goes_on and asked.bookmarks else _next_tick(asked, deadline)
    nudge, alarm = events.nudge, _BookmarkTimer(events.nudge)
    alarm.set(min(tick, deadline))
    entry.watch_wakers.add(nudge)
    if push is not None:
        events.listen(_push_or_queue(push, nudge))
    try:
        async for batch in events:
            told = watch_items(entry, asked.selection, batch)
            if told or push is not None:
                yield told
            if entry.is_retired():  # its last objects have left before it did
                return
            if alarm.rang:
                if asked.bookmarks:
                    yield [WatchItem(BOOKMARK, None, events.progress)]
                if clock.now() >= deadline:
                    return
                alarm.set(min(_next_tick(asked, deadline), deadline))
    finally:
        alarm.close()
        entry.watch_wakers.discard(nudge)


def _push_or_queue(push: PushTarget, nudge: Callable[[], None]) -> Callable[[list[StoreEvent]], bool]:
    def take(batch: list[StoreEvent]) -> bool:
        if push.is_full() or not push(batch):
            return False
        if push.is_full():
            nudge()  # its stream waits until there is room again, and not forever
        return True

    return take


def _next_tick(asked: WatchOptions, deadline: float) -> float:
    """The next bookmark: once a minute, and once more shortly before the end."""
    if not asked.bookmarks:
        return deadline
    last = deadline - LAST_BOOKMARK
    now = clock.now()
    return min(now + BOOKMARK_PERIOD, last) if now < last else deadline


def watch_items(entry: ServedResource, selection: Selection, batch: Sequence[StoreEvent]) -> list[WatchItem]:
    told = []
    for event in batch:
        note = entry.watch_cache.watch_event(event)
        type = note.type_for(selection)
        if type:
            told.append(WatchItem(type, note, event.revision))
    return told
