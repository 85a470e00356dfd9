"""The newest records and events in memory, for fast reads.

An older snapshot is the newest state with the events since then undone. How far back that works (`horizon`)
is bounded by the number and size of events; older revisions are read from the store's disk. Records that are
rarely read are compressed once their events have left this window. A store that is shared with others (etcd)
counts their writes too, so revisions may have gaps here, or have several events.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import cast

from volplane.store.compressed_records import SORTED_TOGETHER, CompressedBlock, RecordArena, unpack
from volplane.store.contract import Listing, StoreEvent, StoreEvents, StoreRecord, StoreRecords


class StoreState:
    def __init__(
        self,
        *,
        max_events: int | None = None,
        max_bytes: int | None = None,
        compressed_prefixes: tuple[str, ...] = (),
    ) -> None:
        """`compressed_prefixes`: prefixes of keys whose records are many and rarely read."""
        self.revision = 0
        self.floor = 0
        self._packed = compressed_prefixes
        self._arena = RecordArena()
        self._records: dict[str, StoreRecord | CompressedBlock] = {}
        self._leaving: StoreRecords = []  # their events have left the window; to be compressed together
        self._keys: list[str] = []  # sorted
        self._events: deque[StoreEvent] = deque()  # all events after the horizon
        self._horizon = 0
        self._bytes = 0
        self._max_events = max_events
        self._max_bytes = max_bytes

    def load(self, records: Iterable[StoreRecord], *, revision: int, floor: int) -> None:
        """Start from stored records; their events are not loaded."""
        self._records = {record.key: record for record in records}
        self._keys = sorted(self._records)
        self._events.clear()
        self._bytes = 0
        self._leaving = [record for prefix in self._packed for record in self.scan(prefix)]
        self._pack()
        self.revision, self.floor, self._horizon = revision, floor, revision

    @property
    def horizon(self) -> int:
        """The oldest revision that can be read from memory."""
        return self._horizon

    def __len__(self) -> int:
        return len(self._records)

    # Reading

    def peek(self, key: str) -> StoreRecord | None:
        found = self._records.get(key)
        return self._record(key) if isinstance(found, CompressedBlock) else found

    def scan(self, prefix: str) -> StoreRecords:
        return self._all(self._range(prefix))

    def at(self, key: str, revision: int) -> StoreRecord | None:
        undone = self._undo_since(key, revision)
        return undone[key] if key in undone else self.peek(key)

    def _record(self, key: str) -> StoreRecord:
        return self._all([key])[0]

    def _all(self, keys: Sequence[str]) -> StoreRecords:
        held = self._records
        found = [held[key] for key in keys]
        packed = {id(each): each for each in found if isinstance(each, CompressedBlock)}
        if not packed:
            return cast("StoreRecords", found)
        wanted = set(keys)
        # A block may also contain an old record of a key: the dictionary tells which block is current.
        opened = {
            record.key: record
            for block in packed.values()
            for record in unpack(block)
            if record.key in wanted and held[record.key] is block
        }
        return [opened[k] if isinstance(f, CompressedBlock) else f for k, f in zip(keys, found, strict=True)]

    def page(self, prefix: str, *, after: str, limit: int, revision: int) -> Listing:
        undone = self._undo_since(prefix, revision)
        keys = self._range(prefix)
        if undone:
            keys = sorted({*keys, *undone} - {key for key, record in undone.items() if record is None})
        if after:
            keys = keys[bisect_right(keys, after) :]
        page = keys[:limit] if limit else keys
        records = self._all([key for key in page if key not in undone])
        if undone:
            read = {record.key: record for record in records}
            records = [undone.get(key) or read[key] for key in page]
        return Listing(records, revision, len(keys) - len(page))

    def since(self, prefix: str, revision: int) -> StoreEvents:
        return [event for event in self._newer(revision) if event.key.startswith(prefix)]

    def _range(self, prefix: str) -> list[str]:
        if not prefix:
            return self._keys
        start = bisect_left(self._keys, prefix)
        return self._keys[start : bisect_left(self._keys, after_prefix(prefix), start)]

    def _newer(self, revision: int) -> StoreEvents:
        newest_first = list(takewhile(lambda event: event.revision > revision, reversed(self._events)))
        return newest_first[::-1]

    def _undo_since(self, prefix: str, revision: int) -> dict[str, StoreRecord | None]:
        """The records at that revision of all keys that were changed since then."""
        undone: dict[str, StoreRecord | None] = {}
        for event in self._newer(revision):
            if event.key.startswith(prefix):
                undone.setdefault(event.key, event.previous)
        return undone

    # Writing. The revision is the next one, unless given

    def put(self, key: str, value: bytes, revision: int = 0) -> StoreEvent:
        revision = revision or self.revision + 1
        previous = self.peek(key)
        if previous is None:
            insort(self._keys, key)
        record = StoreRecord(key, value, revision, previous.created if previous else revision)
        self._records[key] = record
        return self._append(StoreEvent(revision, record, previous))

    def drop(self, key: str, revision: int = 0) -> StoreEvent:
        previous = self._record(key)
        del self._records[key]
        del self._keys[bisect_left(self._keys, key)]
        return self._append(StoreEvent(revision or self.revision + 1, None, previous))

    def skip(self, revision: int) -> None:
        """Note that there are no events up to this revision."""
        self.revision = max(self.revision, revision)

    def _append(self, event: StoreEvent) -> StoreEvent:
        self.revision = event.revision
        self._events.append(event)
        self._bytes += _size(event)
        while self._is_over():
            self._forget_oldest()
        return event

    def _is_over(self) -> bool:
        too_many = self._max_events is not None and len(self._events) > self._max_events
        return too_many or (self._max_bytes is not None and self._bytes > self._max_bytes)

    def _forget_oldest(self) -> None:
        oldest = self._events.popleft()
        self._bytes -= _size(oldest)
        self._horizon = oldest.revision
        record = oldest.record
        if record is not None and self._packed and record.key.startswith(self._packed):
            self._leaving.append(record)
            if len(self._leaving) >= SORTED_TOGETHER:
                self._pack()

    def _pack(self) -> None:
        for records, block in self._arena.compress([r for r in self._leaving if self._is_newest(r)]):
            self._records |= {record.key: block for record in records}
        self._leaving = []

    def _is_newest(self, record: StoreRecord) -> bool:
        return self._records.get(record.key) is record

    def compact(self, floor: int) -> None:
        self.floor = floor
        while self._events and self._events[0].revision <= floor:
            self._forget_oldest()
        self._horizon = max(self._horizon, floor)


def after_prefix(prefix: str) -> str:
    """The first key after all keys with the prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _size(event: StoreEvent) -> int:
    return len(event.record.value) if event.record else 0
