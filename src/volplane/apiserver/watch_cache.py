"""The watch cache of one kind: encoded events and decoded objects, shared by all watchers and readers.

Each watcher reads the store's own event stream, which provides order, history and the disconnection of slow
readers. The expensive parts of an event (its encoded line, the decoded object, the selectable values) are
computed on first use and shared by revision.

- With a selector, an object that leaves the selection is sent as DELETED, in its old state with the new
  revision.
- Watchers see a commit before its writer does. Therefore a writer registers its object before the commit, and
  nothing in this process decodes it again.
- An object that a client cache of this process still holds is found through a weak reference. Everything else
  is limited by count, bytes and age.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from msgspec import structs

from volplane.apiserver.object_access import ObjectAccess, StructAccess
from volplane.apiserver.selectors import EVERYTHING, Selection, SelectorReader, Values
from volplane.store import StoreEvent, StoreRecord

CACHED = 512  # events and objects of a kind
BUDGET = 1 << 20  # bytes: stored size of the cached events and objects

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"


class WatchEvent:
    """One event, shared by all watchers of its kind."""

    __slots__ = ("_before", "_cache", "_gone", "_lines", "_now", "_object", "source")

    def __init__(self, cache: WatchCache, event: StoreEvent) -> None:
        self.source = event
        self._cache = cache
        self._lines: dict[str, bytes] = {}
        self._object: Any = None
        self._gone: Any = None
        self._now: Values | None = None
        self._before: Values | None = None

    def type_for(self, selection: Selection) -> str:
        """Return ADDED, MODIFIED or DELETED as this selection sees it, or "" if it does not match."""
        event = self.source
        if selection.selects_all:
            return DELETED if event.record is None else MODIFIED if event.previous else ADDED
        now = event.record is not None and selection.matches(self._values_now())
        before = event.previous is not None and selection.matches(self._values_before())
        if now:
            return MODIFIED if before else ADDED
        return DELETED if before else ""

    def line(self, type: str) -> bytes:
        """Return the encoded event, including the newline."""
        line = self._lines.get(type)
        if line is None:
            body = self._cache.access.to_wire(self._state(type).value, self.source.revision)
            line = self._lines[type] = b'{"type":"%b","object":%b}\n' % (type.encode(), body)
        return line

    def body(self, type: str) -> bytes:
        return self._cache.access.to_wire(self._state(type).value, self.source.revision)

    def object(self, type: str) -> Any:
        """Return the decoded object: the new state, or for DELETED the old state with the new revision."""
        if type == DELETED:
            if self._gone is None:
                self._gone = self._cache.access.load(self._state(type).value, self.source.revision)
            return self._gone
        if self._object is None:
            self._object = self._cache.object(self._state(type))
        return self._object

    def _state(self, type: str) -> StoreRecord:
        state = self.source.previous if type == DELETED else self.source.record
        assert state is not None
        return state

    def _values_now(self) -> Values:
        if self._now is None:
            assert self.source.record is not None
            self._now = self._cache.selector_reader.read(self.source.record.value)
        return self._now

    def _values_before(self) -> Values:
        if self._before is None:
            assert self.source.previous is not None
            self._before = self._cache.selector_reader.read(self.source.previous.value)
        return self._before


class WatchCache:
    """The cached events and objects of one kind."""

    def __init__(self, access: ObjectAccess[Any], selector_reader: SelectorReader) -> None:
        self.access = access
        self.selector_reader = selector_reader
        self._events = _RecentItems()
        self._objects = _RecentItems()
        # Dicts do not support weak references.
        self._held: WeakValueDictionary[int, Any] | None = (
            WeakValueDictionary() if isinstance(access, StructAccess) else None
        )
        self._pending: dict[
            int, tuple[bytes, Any]
        ] = {}  # by the id of the bytes; the tuple keeps the bytes alive
        self._last: tuple[Sequence[StoreEvent], bytes] = ([], b"")

    def watch_event(self, event: StoreEvent) -> WatchEvent:
        found: WatchEvent | None = self._events.get(event.revision)
        if found is None:
            found = WatchEvent(self, event)
            state = event.record or event.previous
            self._events.put(event.revision, found, len(state.value) if state else 0)
        return found

    def encode_lines(self, batch: Sequence[StoreEvent]) -> bytes:
        """Encode a batch without selector; watchers of the same batch share the bytes."""
        if self._last[0] is not batch:
            events = [self.watch_event(change) for change in batch]
            self._last = batch, b"".join([event.line(event.type_for(EVERYTHING)) for event in events])
        return self._last[1]

    def object(self, record: StoreRecord) -> Any:
        """Return the decoded object of a record, shared by all readers of the revision."""
        value, revision = record.value, record.revision
        found = self._objects.get(revision)
        if found is None and self._held is not None:
            found = self._held.get(revision)
        if found is None:
            expected, obj = self._pending.get(id(value), (None, None))
            found = (
                self._with_revision(obj, revision) if expected is value else self.access.load(value, revision)
            )
            self._keep(revision, found, len(value))
        return found

    def expect_write(self, value: bytes, obj: Any) -> None:
        """Register an object before it is stored; `finish_write` or `cancel_write` must follow."""
        self._pending[id(value)] = (value, obj)

    def finish_write(self, value: bytes, obj: Any, revision: int) -> Any:
        """Return the object with its revision, as all readers see it."""
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
        self._pending.pop(id(value), None)

    def forget(self) -> None:
        """Drop what was already cached at the last call; called periodically."""
        self._events.forget()
        self._objects.forget()
        self._last = ([], b"")

    def _with_revision(self, obj: Any, revision: int) -> Any:
        meta = structs.replace(self.access.metadata(obj), resource_version=str(revision))
        return self.access.with_metadata(obj, meta)


class _RecentItems:
    """The most recent items, by revision."""

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}
        self._sizes: dict[int, int] = {}
        self._size = 0
        self._seen = 0  # the newest revision at the last `forget`
        self.get = self._kept.get  # None if it was dropped

    def put(self, revision: int, result: Any, size: int) -> None:
        kept, sizes = self._kept, self._sizes
        if revision in kept:
            self._drop(revision)  # dicts keep insertion order: the newest item must be last
        kept[revision], sizes[revision] = result, size
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
