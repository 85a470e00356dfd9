"""A database's files on disk: private, locked to one process, opened once to write and once to look back."""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import ExitStack

from volplane.base.locks import Locked, lock
from volplane.store.contract import Failed, Full, InUse, Records
from volplane.store.sqlite.database import Database
from volplane.store.sqlite.space import Reserve, allocate_index

log = logging.getLogger(__name__)


class Files:
    disk: Database  # the writer's connection
    old: Database  # for old revisions and checkpoints, beside the writer
    revision: int
    floor: int
    records: Records
    reserve: Reserve
    descriptor: int  # of the database's file

    @classmethod
    def open(cls, path: str) -> Files:
        """Lock, create and load. InUse, Failed."""
        try:
            with ExitStack() as undo:
                files = cls(path, undo)
                files._stack = undo.pop_all()
        except Full as error:
            raise Full(f"cannot open {path}: {error}") from error
        except (sqlite3.Error, OSError) as error:
            raise Failed(f"cannot open {path}: {error}") from error
        return files

    def __init__(self, path: str, stack: ExitStack) -> None:
        self._stack = stack
        self.reserve = Reserve(path)
        os.makedirs(self.reserve.directory, mode=0o700, exist_ok=True)
        self.reserve.require_space()
        stack.callback(os.close, _lock(path))
        self.reserve.make()
        # Open until SQLite has closed its own: closing it earlier would drop the locks that SQLite has on it.
        self.descriptor = _create(path)
        stack.callback(os.close, self.descriptor)
        self._index = -1
        stack.callback(self._close_index)
        self.disk = Database(path)
        stack.callback(self.disk.close)
        self.disk.prepare()
        self._index = allocate_index(path)
        self.old = Database(path)
        stack.callback(self.old.close)
        self.revision, self.floor = self.disk.revision(), self.disk.floor()
        self.records = list(self.disk.records())

    def close(self) -> None:
        with self._stack:
            self.old.close()  # alone, the last connection can leave an empty log behind
            try:
                self.disk.checkpoint("TRUNCATE")
            except sqlite3.Error as error:
                log.warning(
                    "the log stays for the next start: %s", error
                )  # it is complete; a full disk is no loss

    def _close_index(self) -> None:
        if self._index >= 0:
            os.close(self._index)


def _lock(path: str) -> int:
    try:
        return lock(f"{path}.lock")
    except Locked as error:
        raise InUse(path, error.pid) from None


def _create(path: str) -> int:
    """Make the file private, and its directory entry durable, before SQLite opens it."""
    database = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    directory = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return database
