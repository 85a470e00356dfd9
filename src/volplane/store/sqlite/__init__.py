"""The embedded store: SQLite on disk, the newest state in memory, one thread that writes.

The event loop sees a write only after its commit: the writer's thread reports a batch, and one callback
updates the state, publishes the events and completes the writes. Old revisions that are no longer in memory
are read through a second connection on its own thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from volplane.base.virtual_time_loop import real_work
from volplane.store.contract import (
    FutureRevision,
    KeyExists,
    KeyMissing,
    Listing,
    RevisionCompacted,
    StaleRevision,
    StoreClosed,
    StoreError,
    StoreEvent,
    StoreEvents,
    StoreFailed,
    StoreRecord,
    StoreRecords,
)
from volplane.store.hub import BACKLOG, Hub, Watcher
from volplane.store.revision_waiters import RevisionWaiters
from volplane.store.sqlite.checkpoints import Checkpoints
from volplane.store.sqlite.database import ANY, NEVER, NONE
from volplane.store.sqlite.files import DatabaseFiles
from volplane.store.sqlite.writer import PendingWrite, SqliteWriter, WriteBatch
from volplane.store.state import StoreState

T = TypeVar("T")

WINDOW_EVENTS = 8192
WINDOW_BYTES = 4 << 20
COMPACT_CHUNK = 500  # rows deleted between two batches of writes
# Seconds that a busy loop may hold the interpreter lock while the writer's thread waits for it. With Python's
# 5 ms, a loop that is never idle starves the writer (measured: median 3 ms, but 2.7 s at p99); with this
# value, 4 ms at p99. It costs nothing while no thread waits.
SWITCH_INTERVAL = 0.0001


class SqliteStore:
    """Created by `await SqliteStore.open(path)`; belongs to the loop that opened it."""

    def __init__(
        self,
        files: DatabaseFiles,
        executor: ThreadPoolExecutor,
        *,
        backlog: int,
        compressed_prefixes: tuple[str, ...],
        window: int,
    ) -> None:
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
        self._files = files
        self._disk, self._old = files.disk, files.old
        self._executor = executor
        self._state = StoreState(
            max_events=window, max_bytes=WINDOW_BYTES, compressed_prefixes=compressed_prefixes
        )
        self._state.load(files.records, revision=files.revision, floor=files.floor)
        files.records.clear()  # the state has them; this list would keep deleted ones alive
        self._hub = Hub(revision=files.revision, backlog=backlog)
        self._waiters = RevisionWaiters()
        self._closed = False
        self._writer = SqliteWriter(self._disk, files.descriptor, files.reserve, self._publish_batch)
        self._checkpoints = Checkpoints(self._executor, self._old, self._writer, self._disk)

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        backlog: int = BACKLOG,
        compressed_prefixes: tuple[str, ...] = (),
        window: int = WINDOW_EVENTS,
    ) -> SqliteStore:
        """Open or create the database file; its directory is made private. Raises StoreInUse, StoreFailed.

        `compressed_prefixes`: prefixes of keys whose records are many and rarely read; they take less memory.
        `window`: number of events in memory; older ones are read from disk.
        """
        executor = ThreadPoolExecutor(1, "store-reader")
        try:
            files = await asyncio.get_running_loop().run_in_executor(executor, DatabaseFiles.open, str(path))
        except BaseException:
            executor.shutdown()
            raise
        return cls(files, executor, backlog=backlog, compressed_prefixes=compressed_prefixes, window=window)

    @property
    def revision(self) -> int:
        return self._state.revision

    @property
    def floor(self) -> int:
        return self._state.floor

    # Reading

    def peek(self, key: str) -> StoreRecord | None:
        return self._state.peek(key)

    def scan(self, prefix: str) -> StoreRecords:
        return self._state.scan(prefix)

    async def get(self, key: str, *, revision: int = 0) -> StoreRecord | None:
        self._check(revision)
        if not revision:
            return self._state.peek(key)
        if revision >= self._state.horizon:
            return self._state.at(key, revision)
        return await self._read(lambda: self._old.get(key, revision))

    async def list(self, prefix: str, *, after: str = "", limit: int = 0, revision: int = 0) -> Listing:
        self._check(revision)
        if not revision or revision >= self._state.horizon:
            return self._state.page(prefix, after=after, limit=limit, revision=revision or self.revision)
        return await self._read(lambda: self._old.list(prefix, after=after, limit=limit, revision=revision))

    def watch(self, prefix: str, *, revision: int) -> Watcher:
        return self._hub.watch(prefix, revision, self._past)

    async def wait_for(self, revision: int) -> None:
        await self._waiters.wait(revision, self.revision)

    async def _past(self, prefix: str, after: int, upto: int) -> StoreEvents:
        if after < self.floor:
            raise RevisionCompacted(self.floor)
        if after >= self._state.horizon:
            return self._state.since(prefix, after)
        return await self._read(lambda: self._old.events(prefix, after, upto))

    async def _read(self, read: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, read)
        except sqlite3.Error as error:
            raise StoreFailed(f"cannot read an old revision: {error}") from error

    # Writing

    async def create(self, key: str, value: bytes) -> int:
        return (await self._write(key, NONE, value)).revision

    async def update(self, key: str, value: bytes, *, revision: int) -> int:
        return (await self._write(key, _expected_revision(revision, NEVER), value)).revision

    async def delete(self, key: str, *, revision: int = 0) -> StoreEvent:
        return await self._write(key, _expected_revision(revision, ANY), None)

    async def _write(self, key: str, expected: int, value: bytes | None) -> StoreEvent:
        self._check()
        key.encode()  # a key that is not text must fail here, not in a batch with others
        done: asyncio.Future[StoreEvent] = asyncio.get_running_loop().create_future()
        write = PendingWrite(key, expected, value, done)
        self._writer.submit(write)
        try:
            with real_work():
                return await done
        finally:
            del done, write  # the error's traceback would keep them alive

    def _publish_batch(self, batch: WriteBatch) -> None:
        """Update the state with a committed batch, then publish its events and complete its writes."""
        events = self._apply(batch)
        if events:
            self._hub.publish(list(events.values()))
            self._waiters.wake(self.revision)
            self._checkpoints.count_writes(batch)
        for write in batch.writes:
            if not write.done.done():
                self._answer(write, events.get(write.key), batch.errors.get(write.key))

    def _apply(self, batch: WriteBatch) -> dict[str, StoreEvent]:
        values = {write.key: write.value for write in batch.writes}
        events: dict[str, StoreEvent] = {}
        for key in batch.keys:
            value = values[key]
            events[key] = self._state.drop(key) if value is None else self._state.put(key, value)
        return events

    def _answer(self, write: PendingWrite, event: StoreEvent | None, error: StoreError | None) -> None:
        if event is not None:
            write.done.set_result(event)
        else:
            write.done.set_exception(self._refusal(write, error))

    def _refusal(self, write: PendingWrite, error: StoreError | None) -> StoreError:
        current = self._state.peek(write.key)  # as the database saw it: a batch has no key twice
        if write.expected == NONE and current is not None:
            return KeyExists(write.key)  # also on a full disk
        if error is not None:
            return _copy_error(error)
        return StaleRevision(current) if current is not None else KeyMissing(write.key)

    # Maintenance

    async def check(self) -> None:
        self._check()
        with real_work():
            await self._writer.check()

    async def compact(self, revision: int) -> None:
        self._check()
        if revision > self.revision:
            raise FutureRevision(self.revision)
        if revision <= self.floor:
            return
        self._state.compact(revision)
        # The floor first: rows that a crash leaves are below it, invisible, and removed by the next
        # compaction.
        await self._on_disk(lambda: self._disk.set_floor(revision))
        after = 0

        def drop() -> None:
            nonlocal after
            after = self._disk.drop_superseded(revision, after=after, limit=COMPACT_CHUNK)

        await self._on_disk(drop)
        while after:
            await self._on_disk(drop)

    async def _on_disk(self, job: Callable[[], None]) -> None:
        with real_work():
            await self._writer.run(job)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._hub.close()
        self._waiters.close()
        self._writer.hand_over()
        await asyncio.get_running_loop().run_in_executor(self._executor, self._shut)
        self._executor.shutdown()

    def _shut(self) -> None:
        self._writer.stop()
        self._files.close()

    def _check(self, revision: int = 0) -> None:
        if self._closed:
            raise StoreClosed("the store is closed")
        if revision > self.revision:
            raise FutureRevision(self.revision)
        if 0 < revision < self.floor:
            raise RevisionCompacted(self.floor)


def _copy_error(error: StoreError) -> StoreError:
    """A copy for each caller, since raising it adds a traceback."""
    return type(error)(*error.args)


def _expected_revision(revision: int, otherwise: int) -> int:
    """A revision that the database can compare; clients may send any number."""
    if not revision:
        return otherwise
    return revision if 0 < revision < 1 << 62 else NEVER
