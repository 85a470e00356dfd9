"""Checkpoints: move SQLite's write-ahead log into the database file without blocking the writer.

A passive checkpoint runs on the reader's thread while writes go on. Under constant load it can never restart
the log, so beyond a limit the writer checkpoints the small rest itself.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from concurrent.futures import ThreadPoolExecutor

from volplane.store.sqlite.database import Database
from volplane.store.sqlite.writer import SqliteWriter, WriteBatch

log = logging.getLogger(__name__)

EVERY_BYTES = 4 << 20
BYTES_PER_WRITE = 3 * 4096  # a small write touches the pages of the table, the index and the sequence
LONGEST = 16_384  # pages in the log


class Checkpoints:
    def __init__(
        self, executor: ThreadPoolExecutor, reader: Database, writer: SqliteWriter, disk: Database
    ) -> None:
        self._executor = executor
        self._reader = reader
        self._writer = writer
        self._disk = disk
        self._written = 0
        self._running: asyncio.Future[int] | None = None

    def count_writes(self, batch: WriteBatch) -> None:
        self._written += sum(BYTES_PER_WRITE + len(write.value or b"") for write in batch.writes)
        if self._written >= EVERY_BYTES and self._running is None:
            self._written = 0
            self._running = asyncio.get_running_loop().run_in_executor(self._executor, self._passive)
            self._running.add_done_callback(self._end_checkpoint)

    async def wait_idle(self) -> None:
        """Wait until the running checkpoint, if any, has ended."""
        while self._running is not None:
            await asyncio.wait([self._running])
            await asyncio.sleep(0)  # its callback runs after this

    def _passive(self) -> int:
        try:
            return self._reader.checkpoint()
        except sqlite3.Error as error:
            # The log is complete; the next checkpoint tries again.
            log.warning("checkpoint failed: %s", error)
            return 0

    def _end_checkpoint(self, pages: asyncio.Future[int]) -> None:
        self._running = None
        if not pages.cancelled() and pages.result() > LONGEST:
            restart = self._writer.run(self._restart)
            restart.add_done_callback(_ignore)

    def _restart(self) -> None:
        self._disk.checkpoint("RESTART")


def _ignore(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.warning("checkpoint failed: %s", error)
