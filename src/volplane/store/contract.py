"""The contract of every store.

One revision counts all writes of a store, without gaps. A write is acknowledged when it is durable; reads and
watches see it only then, in revision order. Snapshots and events are kept from the revision `floor` on; older
ones raise `RevisionCompacted`. Keys are text in code point order; values are bytes that the store does not
interpret.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Protocol, TypeAlias

from msgspec import Struct


class StoreRecord(Struct, frozen=True, gc=False):
    key: str
    value: bytes
    revision: int  # of the last write to this key
    created: int  # revision of the write that created it


class StoreEvent(Struct, frozen=True, gc=False):
    revision: int
    record: StoreRecord | None  # None: deleted
    previous: StoreRecord | None  # None: created

    @property
    def key(self) -> str:
        known = self.record or self.previous
        assert known is not None, "an event without a record"
        return known.key


StoreRecords: TypeAlias = list[StoreRecord]
StoreEvents: TypeAlias = list[StoreEvent]


class Listing(Struct, frozen=True):
    records: StoreRecords
    revision: int  # of the snapshot that all records are read from
    remaining: int  # number of records after this page


# StoreError
# ├── KeyExists           create: the key exists
# ├── KeyMissing          update, delete: the key does not exist
# ├── StaleRevision       update, delete: the record is at another revision than given
# ├── RevisionCompacted   the revision is older than the floor
# ├── FutureRevision      the revision is newer than the newest one
# ├── WatchOverrun        the watcher was too slow; it must list again
# ├── StoreFailed         the store refused or does not answer; a write was not stored
# │   ├── RecordTooLarge  the store never accepts a record of this size
# │   └── StoreFull       no space left on the store's disk; deletes may still be possible
# ├── WriteUncertain      the store did not answer in time; the write may be stored, or may still be
# ├── StoreClosed         the store is closed
# └── StoreInUse          another process has opened the store
class StoreError(Exception):
    pass


class KeyExists(StoreError):
    def __init__(self, key: str) -> None:
        super().__init__(f"{key} exists")
        self.key = key


class KeyMissing(StoreError):
    def __init__(self, key: str) -> None:
        super().__init__(f"{key} does not exist")
        self.key = key


class StaleRevision(StoreError):
    def __init__(self, current: StoreRecord) -> None:
        super().__init__(f"{current.key} is at revision {current.revision}")
        self.current = current


class RevisionCompacted(StoreError):
    def __init__(self, floor: int) -> None:
        super().__init__(f"compacted up to revision {floor}")
        self.floor = floor


class FutureRevision(StoreError):
    def __init__(self, current: int) -> None:
        super().__init__(f"the newest revision is {current}")
        self.current = current


class WatchOverrun(StoreError):
    pass


class StoreFailed(StoreError):
    pass


class RecordTooLarge(StoreFailed):
    pass


class StoreFull(StoreFailed):
    pass


class WriteUncertain(StoreError):
    """Not a `StoreFailed`: a writer that just repeats the write may conflict with its own first one."""


class StoreClosed(StoreError):
    pass


class StoreInUse(StoreError):
    def __init__(self, path: str, pid: int) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(f"{path} is in use by {holder}")
        self.path, self.pid = path, pid


class StoreWatch(Protocol):
    """`async with store.watch(…) as watch: async for batch in watch: …`. One consumer only."""

    @property
    def progress(self) -> int:
        """All matching events up to this revision have been returned."""

    async def __aenter__(self) -> StoreWatch: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...
    def __aiter__(self) -> AsyncIterator[StoreEvents]: ...
    async def __anext__(self) -> StoreEvents: ...
    def listen(self, take: Callable[[StoreEvents], bool]) -> None:
        """Offer every batch to `take` when it is published. Batches that it refuses go to the iterator."""

    def nudge(self) -> None:
        """Wake the iterator now; the next batch may be empty."""


class Store(Protocol):
    @property
    def revision(self) -> int:
        """The revision of the newest write that readers see."""

    @property
    def floor(self) -> int:
        """The oldest revision that can still be read, and from which a watch can start."""

    async def get(self, key: str, *, revision: int = 0) -> StoreRecord | None:
        """The newest record, or the one at a revision. Raises RevisionCompacted, FutureRevision."""

    async def list(self, prefix: str, *, after: str = "", limit: int = 0, revision: int = 0) -> Listing:
        """A page in key order, after the key `after`; newest or at a revision. Raises RevisionCompacted,
        FutureRevision.
        """

    def peek(self, key: str) -> StoreRecord | None:
        """The newest record, without waiting."""

    def scan(self, prefix: str) -> StoreRecords:
        """The newest records in key order, without waiting."""

    async def create(self, key: str, value: bytes) -> int:
        """Create a record. Returns the new revision. Raises KeyExists."""

    async def update(self, key: str, value: bytes, *, revision: int) -> int:
        """Replace a record that is at the given revision. Returns the new one. Raises KeyMissing,
        StaleRevision.
        """

    async def delete(self, key: str, *, revision: int = 0) -> StoreEvent:
        """Delete a record, or only one at the given revision. Raises KeyMissing, StaleRevision."""

    def watch(self, prefix: str, *, revision: int) -> StoreWatch:
        """Events after the revision. Entering raises RevisionCompacted; reading, WatchOverrun and
        StoreClosed.
        """

    async def wait_for(self, revision: int) -> None:
        """Wait until readers see the revision."""

    async def check(self) -> None:
        """Raise StoreFailed with the reason if a write would not be stored now, or StoreClosed."""

    async def compact(self, revision: int) -> None:
        """Raise the floor to the revision; a lower one has no effect. Raises FutureRevision."""

    async def close(self) -> None: ...
