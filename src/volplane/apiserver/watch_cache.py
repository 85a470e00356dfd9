"""Store events as watchers of one kind see them, worked out once for all of them.

Each watcher reads the store's own stream (which keeps order, history and the drop of slow readers); what
is expensive about an event (its line on the wire, the decoded object, the selectable values) is made on
first use and shared by revision. The subtle things: with a selector, an object that leaves the selection is
told as DELETED in its old state under the new revision; and watchers hear of a commit before its writer does,
so a writer says beforehand what its bytes are, and nobody in this process decodes them. What a cache of this
process holds is found again as long as it does, however much was written since. What else is kept is bounded
by count, by bytes, and by age: who asks does so soon after the write, or it is worked out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from msgspec import structs

from volplane.apiserver.object_access import ObjectAccess, StructAccess
from volplane.apiserver.selectors import EVERYTHING, Selection, SelectorReader, Values
from volplane.store import StoreEvent, StoreRecord

CACHED = 512  # newest events and objects of a kind that stay worked out,
BUDGET = 1 << 20  # as long as what they were worked out from is not larger than this

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"


class WatchEvent:
    """One event, shared by all watchers of its kind."""

    __slots__ = ("_before", "_feed", "_gone", "_lines", "_now", "_object", "event")

    def __init__(self, feed: WatchCache, event: StoreEvent) -> None:
        self.event = event
        self._feed = feed
        self._lines: dict[str, bytes] = {}
        self._object: Any = None
        self._gone: Any = None
        self._now: Values | None = None
        self._before: Values | None = None

    def type_for(self, selection: Selection) -> str:
        """ADDED, MODIFIED or DELETED as this selection sees it, or "" when it sees nothing."""
        event = self.event
        if selection.selects_all:
            return DELETED if event.record is None else MODIFIED if event.previous else ADDED
        now = event.record is not None and selection.matches(self._values_now())
        before = event.previous is not None and selection.matches(self._values_before())
        if now:
            return MODIFIED if before else ADDED
        return DELETED if before else ""

    def line(self, type: str) -> bytes:
        """The event on the wire, newline included."""
        line = self._lines.get(type)
        if line is None:
            body = self._feed.shape.to_wire(self._state(type).value, self.event.revision)
            line = self._lines[type] = b'{"type":"%b","object":%b}\n' % (type.encode(), body)
        return line

    def body(self, type: str) -> bytes:
        return self._feed.shape.to_wire(self._state(type).value, self.event.revision)

    def object(self, type: str) -> Any:
        """The decoded object: the new state, or for DELETED the old state under the new revision."""
        if type == DELETED:
            if self._gone is None:
                self._gone = self._feed.shape.load(self._state(type).value, self.event.revision)
            return self._gone
        if self._object is None:
            self._object = self._feed.object(self._state(type))
        return self._object

    def _state(self, type: str) -> StoreRecord:
        state = self.event.previous if type == DELETED else self.event.record
        assert state is not None
        return state

    def _values_now(self) -> Values:
        if self._now is None:
            assert self.event.record is not None
            self._now = self._feed.glance.read(self.event.record.value)
        return self._now

    def _values_before(self) -> Values:
        if self._before is None:
            assert self.event.previous is not None
            self._before = self._feed.glance.read(self.event.previous.value)
        return self._before


class WatchCache:
    """The worked-out events and objects of one kind."""

    def __init__(self, shape: ObjectAccess[Any], glance: SelectorReader) -> None:
        self.shape = shape
        self.glance = glance
        self._notes = _RecentItems()
        self._objects = _RecentItems()
        # Plain data takes no weak references.
        self._held: WeakValueDictionary[int, Any] | None = (
            WeakValueDictionary() if isinstance(shape, StructAccess) else None
        )
        self._coming: dict[int, tuple[bytes, Any]] = {}  # by the id of the bytes, as long as they are held
        self._last: tuple[Sequence[StoreEvent], bytes] = ([], b"")

    def watch_event(self, event: StoreEvent) -> WatchEvent:
        found: WatchEvent | None = self._notes.get(event.revision)
        if found is None:
            found = WatchEvent(self, event)
            state = event.record or event.previous
            self._notes.put(event.revision, found, len(state.value) if state else 0)
        return found

    def encode_lines(self, batch: Sequence[StoreEvent]) -> bytes:
        """A batch as who selects nothing sees it; the same bytes for all who are given the same batch."""
        if self._last[0] is not batch:
            notes = [self.watch_event(event) for event in batch]
            self._last = batch, b"".join([note.line(note.type_for(EVERYTHING)) for note in notes])
        return self._last[1]

    def object(self, record: StoreRecord) -> Any:
        """The decoded object of a record, shared: a revision names one state of one object."""
        value, revision = record.value, record.revision
        found = self._objects.get(revision)
        if found is None and self._held is not None:
            found = self._held.get(revision)
        if found is None:
            coming, obj = self._coming.get(id(value), (None, None))
            found = (
                self._with_revision(obj, revision) if coming is value else self.shape.load(value, revision)
            )
            self._keep(revision, found, len(value))
        return found

    def expect_write(self, value: bytes, obj: Any) -> None:
        """A writer is about to store this object; `written` or `given_up` follows."""
        self._coming[id(value)] = (value, obj)

    def finish_write(self, value: bytes, obj: Any, revision: int) -> Any:
        """The object as all readers see it."""
        self.cancel_write(value)
        found = self._objects.get(revision)
        if found is None:
            found = self._with_revision(obj, revision)
            self._keep(revision, found, len(value))
        return found

    def _keep(self, revision: int, obj: Any, size: int) -> None:
        self._objects.put(revision, obj, size)
        if self._held is not None:
            self._held[revision] = obj

    def cancel_write(self, value: bytes) -> None:
        self._coming.pop(id(value), None)

    def forget(self) -> None:
        """What has been here since the last call; called every now and then."""
        self._notes.forget()
        self._objects.forget()
        self._last = ([], b"")

    def _with_revision(self, obj: Any, revision: int) -> Any:
        meta = structs.replace(self.shape.metadata(obj), resource_version=str(revision))
        return self.shape.with_metadata(obj, meta)


class _RecentItems:
    """What was worked out last, by revision."""

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}
        self._sizes: dict[int, int] = {}
        self._size = 0
        self._seen = 0  # the newest revision when things were last forgotten
        self.get = self._kept.get  # None when it is no longer kept

    def put(self, revision: int, made: Any, size: int) -> None:
        kept, sizes = self._kept, self._sizes
        if revision in kept:
            self._drop(revision)  # the newest stand last
        kept[revision], sizes[revision] = made, size
        self._size += size
        while len(kept) > CACHED or (self._size > BUDGET and len(kept) > 1):
            self._drop(next(iter(kept)))

    def forget(self) -> None:
        for revision in [revision for revision in self._kept if revision <= self._seen]:
            self._drop(revision)
        self._seen = max(self._kept, default=self._seen)

    def _drop(self, revision: int) -> None:
        del self._kept[revision]
        self._size -= self._sizes.pop(revision)
