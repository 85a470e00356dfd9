"""Watch: the changes of a collection from a revision on, in order and without gaps.

A watch starts with the initial state (as ADDED events, if requested) and continues with the store's events
after exactly that revision. It yields batches of whatever is ready. A watcher with a `PushTarget` gets events
directly when they are published; the batches then contain only what it could not take. A bookmark shows the
progress of this watcher's stream, not that of the store.
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

AT_ONCE = 500  # objects of the initial state per batch
BOOKMARK = "BOOKMARK"
BOOKMARK_PERIOD = 60.0
FIRST_BOOKMARK = 0.02  # a watch that resumes at a revision learns soon that it is up to date
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
    """An event, or a bookmark (without event); `ends_initial`: the initial state is complete."""

    type: str
    event: WatchEvent | None
    revision: int
    ends_initial: bool = False


class PushTarget(Protocol):
    """A watcher that events can be written to directly, without waking its task."""

    def is_full(self) -> bool:
        """Return whether it takes no more events for now; they wait in the stream."""
        ...

    def __call__(self, batch: Sequence[StoreEvent]) -> bool:
        """Write the batch, or return False to leave it to the stream."""
        ...


def check_options(options: WatchOptions) -> None:
    """Validate the options before the stream starts."""
    if options.version:
        parse_revision(options.version)
    causes = []
    if options.match and options.initial is None:
        detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        causes.append(forbidden("resourceVersionMatch", detail))
    if options.initial is not None and options.match != "NotOlderThan":
        detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        causes.append(forbidden("resourceVersionMatch", detail))
    if options.match not in ("", "NotOlderThan"):
        causes.append(not_supported("resourceVersionMatch", options.match, ("NotOlderThan",)))
    if causes:
        raise Invalid.of("ListOptions", "", causes, group="meta.k8s.io")


async def watch(
    backend: Backend,
    entry: ServedResource,
    call: ApiCall,
    options: WatchOptions,
    push: PushTarget | None = None,
) -> AsyncGenerator[Sequence[WatchItem], None]:
    """Yield batches until the timeout. Raise Expired if the events since that revision are compacted.

    With `push` there are also empty batches: writing them waits until the client's buffer has room.
    """
    deadline = clock.now() + (options.seconds or random.uniform(*LIFETIME))
    revision, initial = await _start(backend, entry, call, options)
    for at in range(0, len(initial), AT_ONCE):
        yield initial[at : at + AT_ONCE]
    try:
        async with backend.store.watch(
            entry.selection_prefix(call.namespace, options.selection), revision=revision
        ) as events:
            async for batch in _live(entry, options, events, deadline, push):
                yield batch
    except RevisionCompacted as error:
        raise Expired(f"too old resource version: {revision} ({error.floor})") from error
    except WatchOverrun as error:
        raise Expired("the watcher was too slow and has missed events") from error


async def _start(
    backend: Backend, entry: ServedResource, call: ApiCall, options: WatchOptions
) -> tuple[int, list[WatchItem]]:
    """Return the revision after which live events begin, and the items before them."""
    from_now = options.version in ("", "0")
    if options.initial is False and from_now:
        return backend.store.revision, []
    if not from_now and not options.initial:
        return parse_revision(options.version), []
    if not from_now:
        await wait_for_revision(backend.store, options.version)
    listing = await backend.store.list(entry.selection_prefix(call.namespace, options.selection))
    events = [_added_event(entry, record) for record in listing.records]
    types = await cpu_offload.map_in_turns(
        events, lambda event: event.type_for(options.selection), options.selection.objects_per_turn
    )
    items = [
        WatchItem(ADDED, event, event.source.revision)
        for event, type in zip(events, types, strict=True)
        if type
    ]
    if options.initial and options.bookmarks:
        items.append(WatchItem(BOOKMARK, None, listing.revision, ends_initial=True))
    return listing.revision, items


def _added_event(entry: ServedResource, record: StoreRecord) -> WatchEvent:
    """Return an ADDED event for an existing object; not cached, because its real event may differ."""
    return WatchEvent(entry.watch_cache, StoreEvent(revision=record.revision, record=record, previous=None))


class _BookmarkTimer:
    """Wakes the watch for a bookmark or for its end: one timer per minute instead of one per event."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self.is_due = False

    def set(self, when: float) -> None:
        self.close()
        self.is_due = False
        self._timer = asyncio.get_running_loop().call_at(when, self._fire)

    def _fire(self) -> None:
        self.is_due = True
        self._wake()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def _live(
    entry: ServedResource, options: WatchOptions, events: StoreWatch, deadline: float, push: PushTarget | None
) -> AsyncGenerator[Sequence[WatchItem], None]:
    if entry.is_retired():
        return
    resumes = options.version not in ("", "0") and not options.initial
    tick = clock.now() + FIRST_BOOKMARK if resumes and options.bookmarks else _next_tick(options, deadline)
    wake, timer = events.nudge, _BookmarkTimer(events.nudge)
    timer.set(min(tick, deadline))
    entry.watch_wakers.add(wake)
    if push is not None:
        events.listen(_push_or_queue(push, wake))
    try:
        async for batch in events:
            items = watch_items(entry, options.selection, batch)
            if items or push is not None:
                yield items
            if entry.is_retired():  # the deletions of its last objects were sent before
                return
            if timer.is_due:
                if options.bookmarks:
                    yield [WatchItem(BOOKMARK, None, events.progress)]
                if clock.now() >= deadline:
                    return
                timer.set(min(_next_tick(options, deadline), deadline))
    finally:
        timer.close()
        entry.watch_wakers.discard(wake)


def _push_or_queue(push: PushTarget, wake: Callable[[], None]) -> Callable[[list[StoreEvent]], bool]:
    def push_batch(batch: list[StoreEvent]) -> bool:
        if push.is_full() or not push(batch):
            return False
        if push.is_full():
            wake()  # the stream then waits for room, with a timeout
        return True

    return push_batch


def _next_tick(options: WatchOptions, deadline: float) -> float:
    """Return the time of the next bookmark: every minute, and once shortly before the end."""
    if not options.bookmarks:
        return deadline
    last = deadline - LAST_BOOKMARK
    now = clock.now()
    return min(now + BOOKMARK_PERIOD, last) if now < last else deadline


def watch_items(entry: ServedResource, selection: Selection, batch: Sequence[StoreEvent]) -> list[WatchItem]:
    items = []
    for change in batch:
        event = entry.watch_cache.watch_event(change)
        type = event.type_for(selection)
        if type:
            items.append(WatchItem(type, event, change.revision))
    return items
