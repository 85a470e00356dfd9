"""The one thread that writes: takes what has queued up, commits it in one go, tells the loop once.

While a commit waits for the disk the next writes gather, so that the disk's latency is shared (group
commit); and what one turn of the loop writes is handed over together, because a thread that is woken for each
of them takes the interpreter from the loop each time. The thread decides nothing that the database does not
decide; the loop turns outcomes into events.

On a full disk the reserve is spent on deletes and on changes of small objects; nothing is created. As soon as
there is room, which is looked for once a second, everything is accepted again.
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

LOOK_EVERY = 1.0  # seconds between two looks for space on a full disk
START_OVER = 64  # batches on a full disk after which the log is written from its beginning again
# What may be changed on a full disk. A changed object is stored as a whole, so its size is what counts.
SMALL_CHANGE = 4 << 10  # bytes of an object whose change is always stored: a Lease, a removed finalizer
LARGEST_CHANGE = 64 << 10
CHANGES = 4 << 20  # bytes of the reserve that changes of larger objects may take; the rest is for deletes


class PendingWrite(Struct):
    key: str
    expected: int  # the revision to replace, or ANY, NONE, NEVER
    value: bytes | None  # None: delete
    done: asyncio.Future[StoreEvent]


class WriteBatch(Struct):
    writes: list[PendingWrite]
    keys: list[str]  # those that were written, in the order of their revisions
    errors: dict[str, StoreError] = field(default_factory=dict)  # by key: why it was not even compared


Job: TypeAlias = Callable[[], None]


class SqliteWriter:
    def __init__(
        self, database: Database, descriptor: int, reserve: SpaceReserve, tell: Callable[[WriteBatch], None]
    ) -> None:
        """`descriptor`: of the database's file."""
        self._database, self._descriptor = database, descriptor
        self._reserve = reserve
        self._tell = tell  # on the loop, in commit order
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[list[PendingWrite] | Job] = SimpleQueue()
        self._gathered: list[PendingWrite] = []  # in this turn of the loop
        self._next: list[PendingWrite] = []
        self._broken: StoreError | None = None
        self.full: StoreFull | None = None  # while the disk is
        self._sparing = 0  # batches since the log was started over
        self._changed = 0  # bytes of changes that were stored from the reserve
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
        """Run something on the writer's connection, between two batches."""
        done: asyncio.Future[None] = self._loop.create_future()

        def attempt() -> None:
            error: StoreError | None = None
            try:
                job()
            except Exception as refused:  # whatever it is, nobody may wait for this thread in vain
                error = StoreFailed(str(refused))
            self._loop.call_soon_threadsafe(_settle, done, error)

        self.hand_over()
        self._queue.put(attempt)
        return done

    async def check(self) -> None:
        """Raise Failed when writes fail. The disk is looked at only while it is full."""
        if self._broken is not None:
            raise StoreFailed(str(self._broken))
        if not self._thread.is_alive():
            raise StoreFailed("the store's writer has ended; restart to go on")
        if self.full is not None:
            await self.run(self._resume)
        if self.full is not None:
            raise StoreFull(str(self.full))

    def stop(self) -> None:
        """Finish what was handed over and end the thread. Blocks."""
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
                except Exception as error:  # whatever it is, nobody may wait for this thread in vain
                    batch = _fail_all(writes, self._stop_writes(error))
                self._loop.call_soon_threadsafe(self._tell, batch)
            if job is not None:
                job()

    def _gather(self) -> Job | None:
        """Fill up the next batch with what waits; a job ends the batch and runs after it."""
        while len(self._next) < LARGEST_BATCH and (not self._next or self._queue.qsize()):
            item = self._queue.get()  # blocks only when there is nothing to do
            if not isinstance(item, list):
                return item
            self._next += item
        return None

    def _take(self) -> list[PendingWrite]:
        """The first write to each key; a second one must see the first, so it stays for the batch after."""
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
        """What may still be written, together or each for itself; deletes first."""
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
            if not (is_full(error) or is_refused(error)):  # in doubt nothing is written a second time
                batch.errors |= dict.fromkeys(kept, self._classify_error(error))
                return batch
            if self._has_run_out(error):
                self._start_log_over()
            for write in allowed:
                self._append_alone(write, batch)
        return batch

    def _may_write_from_reserve(self, write: PendingWrite) -> bool:
        """Whether a write is stored from the reserve."""
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
        log.error("no space left on the disk of %s (%s): from the reserve, deletes are stored", where, error)
        self._reserve.spend(self._descriptor)
        try:
            self._database.grow(PAGES)
        except sqlite3.Error as refused:
            log.warning("the database was not extended: %s", refused)
            self._start_log_over()
        self._loop.call_soon_threadsafe(self._schedule_space_check)

    def _start_log_over(self) -> None:
        """Move all of the log into the database, so that the space it has can be written once more."""
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
            done.exception()  # the next look may have more luck
        self._schedule_space_check()

    def _resume(self) -> None:
        if self.full is not None and self._reserve.make(RESUME):
            self.full, self._changed = None, 0
            log.warning("the disk of %s has space again: everything is stored", self._reserve.directory)

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
        """After a failed sync only a restart, which reads the disk again, knows what was stored."""
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
