"""The one thread that writes: takes what has queued up, commits it in one go, tells the loop once.

While a commit waits for the disk the next writes gather, so that the disk's latency is shared (group
commit); and what one turn of the loop writes is handed over together, because a thread that is woken for each
of them takes the interpreter from the loop each time. The thread decides nothing that the database does not
decide; the loop turns outcomes into events.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from msgspec import Struct

from volplane.store.contract import Event, Failed, StoreError
from volplane.store.sqlite.database import LARGEST_BATCH, Database, is_refused

log = logging.getLogger(__name__)


class Write(Struct):
    key: str
    expected: int  # the revision to replace, or ANY, NONE, NEVER
    value: bytes | None  # None: delete
    done: asyncio.Future[Event]


class Batch(Struct):
    writes: list[Write]
    keys: list[str]  # those that were written, in the order of their revisions
    error: StoreError | None = None  # nothing was written


Job: TypeAlias = Callable[[], None]


class Writer:
    def __init__(self, database: Database, tell: Callable[[Batch], None]) -> None:
        self._database = database
        self._tell = tell  # on the loop, in commit order
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[list[Write] | Job] = SimpleQueue()
        self._gathered: list[Write] = []  # in this turn of the loop
        self._next: list[Write] = []
        self._broken: StoreError | None = None
        self._refused = False  # the newest batch was: the disk is full, or was
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, write: Write) -> None:
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
            except sqlite3.Error as refused:
                error = Failed(str(refused))
            self._loop.call_soon_threadsafe(_settle, done, error)

        self.hand_over()
        self._queue.put(attempt)
        return done

    async def check(self) -> None:
        """Raise Failed when writes fail. The disk is tried only after a refusal: most checks sync nothing."""
        if self._broken is not None:
            raise Failed(str(self._broken))
        if not self._thread.is_alive():
            raise Failed("the store's writer has ended; restart to go on")
        if self._refused:
            await self.run(self._try_disk)

    def _try_disk(self) -> None:
        self._database.try_write()
        self._refused = False

    def stop(self) -> None:
        """Finish what was handed over and end the thread. Blocks."""
        self._queue.put(self._end)
        self._thread.join()

    def _end(self) -> None:
        self._ended = True

    def _run(self) -> None:
        while self._next or not self._ended:
            job = self._gather()
            if self._next:
                self._loop.call_soon_threadsafe(self._tell, self._commit(self._take()))
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

    def _take(self) -> list[Write]:
        """The first write to each key; a second one must see the first, so it stays for the batch after."""
        first: dict[str, Write] = {}
        rest = []
        for write in self._next:
            if write.key in first or len(first) == LARGEST_BATCH:
                rest.append(write)
            else:
                first[write.key] = write
        self._next = rest
        return list(first.values())

    def _commit(self, writes: list[Write]) -> Batch:
        if self._broken is not None:
            return Batch(writes, [], self._broken)
        rows = [(w.key, w.expected, 1 if w.value is None else 0, w.value) for w in writes]
        try:
            batch = Batch(writes, self._database.append(rows))
            self._refused = False
            return batch
        except Exception as error:  # whatever it is, nobody may wait for this thread in vain
            return Batch(writes, [], self._judge(error))

    def _judge(self, error: Exception) -> StoreError:
        if isinstance(error, sqlite3.Error) and is_refused(error):
            self._refused = True
            return Failed(f"the write was not stored: {error}")
        # After a failed sync nobody knows what is on the disk; only a restart, which reads it again, does.
        log.error("the store accepts no more writes", exc_info=error)
        self._broken = Failed(f"the store stopped after a disk error ({error}); restart to go on")
        return self._broken


def _settle(done: asyncio.Future[None], error: StoreError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
