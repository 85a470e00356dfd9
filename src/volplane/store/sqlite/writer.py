"""The writer thread: takes all queued writes, commits them together, and reports to the event loop once.

While a commit waits for the disk, further writes are queued, so they share the latency of the next commit
(group commit). The writes of one iteration of the event loop are handed over together, because waking the
thread for each of them would take the interpreter lock from the loop each time. The database decides which
writes succeed; the loop turns the outcomes into events.

On a full disk, the reserve is used for deletes and for changes of small objects; nothing is created. Free
space is checked once a second; as soon as there is enough, all writes are accepted again.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from msgspec import Struct, field

from volplane.store.contract import StoreError, StoreEvent, StoreFailed, StoreFull, WriteUncertain
from volplane.store.sqlite.database import (
    LARGEST_BATCH,
    NONE,
    Database,
    is_full,
    is_refused,
    is_uncertain,
)
from volplane.store.sqlite.space import PAGES, RESUME, SpaceReserve

log = logging.getLogger(__name__)

LOOK_EVERY = 1.0  # seconds between two checks for space on a full disk
START_OVER = 64  # batches on a full disk after which the log is restarted
# Limits of changes on a full disk. A changed object is stored as a whole, so its size counts.
SMALL_CHANGE = 4 << 10  # bytes up to which a changed object is always stored, such as a Lease
LARGEST_CHANGE = 64 << 10
CHANGES = 4 << 20  # bytes of the reserve for changes of larger objects; the rest is for deletes


class PendingWrite(Struct):
    key: str
    expected: int  # the revision to replace, or ANY, NONE, NEVER
    value: bytes | None  # None: delete
    done: asyncio.Future[StoreEvent]


class WriteBatch(Struct):
    writes: list[PendingWrite]
    keys: list[str]  # the written ones, in revision order
    errors: dict[str, StoreError] = field(default_factory=dict)  # by key, of writes that were not tried


Job: TypeAlias = Callable[[], None]


class SqliteWriter:
    def __init__(
        self, database: Database, descriptor: int, reserve: SpaceReserve, tell: Callable[[WriteBatch], None]
    ) -> None:
        """`descriptor`: of the database file."""
        self._database, self._descriptor = database, descriptor
        self._reserve = reserve
        self._tell = tell  # called on the loop, in commit order
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[list[PendingWrite] | Job] = SimpleQueue()
        self._gathered: list[PendingWrite] = []  # in this iteration of the loop
        self._next: list[PendingWrite] = []
        self._broken: StoreError | None = None
        self.full: StoreFull | None = None  # while the disk is full
        self._sparing = 0  # batches since the log was restarted
        self._changed = 0  # bytes of changes stored from the reserve
        self._ending = self._ended = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, write: PendingWrite) -> None:
        if not self._gathered:
            self._loop.call_soon(self.hand_over)
        self._gathered.append(write)

    def hand_over(self) -> None:
        if self._gathered:
            self._queue.put(self._gathered)
            self._gathered = []

    def run(self, job: Job) -> asyncio.Future[None]:
        """Run a job on the writer's connection, between two batches."""
        done: asyncio.Future[None] = self._loop.create_future()

        def attempt() -> None:
            error: StoreError | None = None
            try:
                job()
            except Exception as refused:  # any error must be reported: callers wait for this thread
                error = StoreFailed(str(refused))
            self._loop.call_soon_threadsafe(_settle, done, error)

        self.hand_over()
        self._queue.put(attempt)
        return done

    async def check(self) -> None:
        """Raise StoreFailed if writes fail. Checks the disk only while it is full."""
        if self._broken is not None:
            raise StoreFailed(str(self._broken))
        if not self._thread.is_alive():
            raise StoreFailed("the store's writer has ended; restart to go on")
        if self.full is not None:
            await self.run(self._resume)
        if self.full is not None:
            raise StoreFull(str(self.full))

    def stop(self) -> None:
        """Finish the queued writes and end the thread. Blocks."""
        self._ending = True
        self._queue.put(self._end)
        self._thread.join()

    def _end(self) -> None:
        self._ended = True

    def _run(self) -> None:
        while self._next or not self._ended:
            job = self._gather()
            if self._next:
                writes = self._take()
                try:
                    batch = self._commit(writes)
                except Exception as error:  # any error must be reported: callers wait for this thread
                    batch = _fail_all(writes, self._stop_writes(error))
                self._loop.call_soon_threadsafe(self._tell, batch)
            if job is not None:
                job()

    def _gather(self) -> Job | None:
        """Fill the next batch from the queue; a job ends the batch and runs after it."""
        while len(self._next) < LARGEST_BATCH and (not self._next or self._queue.qsize()):
            item = self._queue.get()  # blocks only if there is nothing to do
            if not isinstance(item, list):
                return item
            self._next += item
        return None

    def _take(self) -> list[PendingWrite]:
        """Take the first write to each key; a second write must see the first, so it waits for the next
        batch.
        """
        first: dict[str, PendingWrite] = {}
        rest = []
        for write in self._next:
            if write.key in first or len(first) == LARGEST_BATCH:
                rest.append(write)
            else:
                first[write.key] = write
        self._next = rest
        return list(first.values())

    def _commit(self, writes: list[PendingWrite]) -> WriteBatch:
        if self._broken is not None:
            return _fail_all(writes, self._broken)
        if self.full is None:
            try:
                return WriteBatch(writes, self._append(writes))
            except Exception as error:
                if not self._has_run_out(error):
                    return _fail_all(writes, self._classify_error(error))
                self._enter_full_mode(error)
        return self._commit_from_reserve(writes)

    def _append(self, writes: list[PendingWrite]) -> list[str]:
        rows = [(w.key, w.expected, 1 if w.value is None else 0, w.value) for w in writes]
        return self._database.append(rows)

    def _commit_from_reserve(self, writes: list[PendingWrite]) -> WriteBatch:
        """Commit what may still be written, together or one by one; deletes first."""
        assert self.full is not None
        batch = WriteBatch(writes, [])
        allowed = [
            w
            for w in sorted(writes, key=lambda write: write.value is not None)
            if self._may_write_from_reserve(w)
        ]
        kept = {write.key for write in allowed}
        batch.errors = {write.key: self.full for write in writes if write.key not in kept}
        self._sparing += bool(allowed)
        if self._sparing > START_OVER:
            self._start_log_over()
        try:
            batch.keys = self._append(allowed) if allowed else []
        except Exception as error:
            if not (is_full(error) or is_refused(error)):  # if uncertain, nothing is written a second time
                batch.errors |= dict.fromkeys(kept, self._classify_error(error))
                return batch
            if self._has_run_out(error):
                self._start_log_over()
            for write in allowed:
                self._append_alone(write, batch)
        return batch

    def _may_write_from_reserve(self, write: PendingWrite) -> bool:
        """Whether a write may be stored from the reserve."""
        if write.value is None:
            return True
        size = len(write.value)
        if write.expected == NONE or size > LARGEST_CHANGE:
            return False
        if size > SMALL_CHANGE:
            self._changed += size
        return size <= SMALL_CHANGE or self._changed <= CHANGES

    def _append_alone(self, write: PendingWrite, batch: WriteBatch) -> None:
        if self._broken is not None:
            batch.errors[write.key] = self._broken
            return
        try:
            batch.keys += self._append([write])
        except Exception as error:
            batch.errors[write.key] = self._classify_error(error)

    def _has_run_out(self, error: Exception) -> bool:
        return is_full(error) or (is_refused(error) and self._reserve.has_run_out())

    def _enter_full_mode(self, error: Exception) -> None:
        where = self._reserve.directory
        self.full = StoreFull(
            f"no space left on the disk of {where}; objects can be deleted, none can be created"
        )
        log.error(
            "no space left on the disk of %s (%s): storing only deletes and small changes", where, error
        )
        self._reserve.spend(self._descriptor)
        try:
            self._database.grow(PAGES)
        except sqlite3.Error as refused:
            log.warning("the database was not extended: %s", refused)
            self._start_log_over()
        self._loop.call_soon_threadsafe(self._schedule_space_check)

    def _start_log_over(self) -> None:
        """Checkpoint the whole log, so that its space can be reused."""
        self._sparing = 0
        try:
            self._database.checkpoint("RESTART")
        except sqlite3.Error as refused:
            log.warning("checkpoint failed: %s", refused)

    def _schedule_space_check(self) -> None:
        if self.full is not None and not self._ending:
            self._loop.call_later(LOOK_EVERY, self._check_space)

    def _check_space(self) -> None:
        if not self._ending:
            self.run(self._resume).add_done_callback(self._end_space_check)

    def _end_space_check(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled():
            done.exception()  # the next check tries again
        self._schedule_space_check()

    def _resume(self) -> None:
        if self.full is not None and self._reserve.make(RESUME):
            self.full, self._changed = None, 0
            log.warning("the disk of %s has space again: all writes are accepted", self._reserve.directory)

    def _classify_error(self, error: Exception) -> StoreError:
        if self.full is not None and self._has_run_out(error):
            return StoreFull(
                f"no space left on the disk of {self._reserve.directory}, and the reserve is spent"
            )
        if is_refused(error):
            return StoreFailed(f"the write was not stored: {error}")
        if is_uncertain(error):
            return WriteUncertain(f"the write may be stored: {error}")
        return self._stop_writes(error)

    def _stop_writes(self, error: Exception) -> StoreError:
        """Accept no more writes: after a failed sync, only a restart can find out what was stored."""
        log.error("the store accepts no more writes", exc_info=error)
        self._broken = StoreFailed(f"the store stopped after a disk error ({error}); restart to go on")
        return self._broken


def _fail_all(writes: list[PendingWrite], error: StoreError) -> WriteBatch:
    return WriteBatch(writes, [], {write.key: error for write in writes})


def _settle(done: asyncio.Future[None], error: StoreError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
