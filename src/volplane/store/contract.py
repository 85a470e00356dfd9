"""What a store promises, whoever keeps the bytes.

One revision counts every write of the whole keeper, without gaps. A write is acknowledged when it is
durable; reads and watchers see it only then, in revision order. Snapshots and events are kept down to a
floor; below it they are `RevisionCompacted`. Keys are plain text in code point order, values are bytes that
the store does not look into.
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
    revision: int  # the snapshot that all records are read from
    remaining: int  # records behind the last one of this page


# StoreError
# ├── Exists      create: the key is taken
# ├── Missing     update, delete: there is no such key
# ├── Stale       update, delete: the record has another revision than the caller saw
# ├── Compacted   the revision is older than the floor
# ├── Future      the revision has not happened yet
# ├── Overrun     this watcher was too slow; it must list again
# ├── Failed      the keeper refused or does not answer; a write did not happen
# │   ├── RecordTooLarge   the keeper never takes a record of this size
# │   └── Full             no room on the keeper's disk; deletes may still be possible
# ├── Uncertain   the keeper did not answer in time; the write may have happened, or may still happen
# ├── Closed      the store is shut
# └── InUse       another process has the store open
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
    """Not a `Failed`: whoever writes again blindly may meet his own first write."""


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
        """Every matching event up to this revision has been handed out."""

    async def __aenter__(self) -> StoreWatch: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...
    def __aiter__(self) -> AsyncIterator[StoreEvents]: ...
    async def __anext__(self) -> StoreEvents: ...
    def listen(self, take: Callable[[StoreEvents], bool]) -> None:
        """`take` is offered every batch first, when it is published; what it refuses is iterated over."""

    def nudge(self) -> None:
        """Whoever iterates goes on now, with what is there: the next batch may be empty."""


class Store(Protocol):
    @property
    def revision(self) -> int:
        """The newest committed write that readers see."""

    @property
    def floor(self) -> int:
        """The oldest revision whose snapshot can still be read, and from which a watch can start."""

    async def get(self, key: str, *, revision: int = 0) -> StoreRecord | None:
        """The newest record, or the one at a revision. Compacted, Future."""

    async def list(self, prefix: str, *, after: str = "", limit: int = 0, revision: int = 0) -> Listing:
        """A page in key order, behind the key `after`; newest or at a revision. Compacted, Future."""

    def peek(self, key: str) -> StoreRecord | None:
        """The newest record, at once."""

    def scan(self, prefix: str) -> StoreRecords:
        """The newest records in key order, at once."""

    async def create(self, key: str, value: bytes) -> int:
        """The new revision. Exists."""

    async def update(self, key: str, value: bytes, *, revision: int) -> int:
        """The new revision, if the record is still at the given one. Missing, Stale."""

    async def delete(self, key: str, *, revision: int = 0) -> StoreEvent:
        """Whatever is there, or only the given revision. Missing, Stale."""

    def watch(self, prefix: str, *, revision: int) -> StoreWatch:
        """Events after the revision. Compacted is raised on entering, Overrun and Closed while reading."""

    async def wait_for(self, revision: int) -> None:
        """Until readers see the revision."""

    async def check(self) -> None:
        """Raise Failed with the reason when a write now would not be stored; Closed."""

    async def compact(self, revision: int) -> None:
        """Raise the floor; lower or equal ones do nothing. Future."""

    async def close(self) -> None: ...
