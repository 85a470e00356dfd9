"""Copy databases that may be in use, all as of one moment.

Write transactions on all of them keep every writer out for some milliseconds. Meanwhile a read transaction
is opened on each: it shows the content of that moment for as long as it is open, while writers go on.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from volplane.store.contract import StoreFailed, StoreFull, StoreRecords
from volplane.store.sqlite.database import FORMAT, read_records
from volplane.store.sqlite.space import free_space

TIMEOUT = 30.0  # seconds for which another transaction may hold a database
PAGES = 512  # copied at a time: other threads run in between
INDEX_SPACE = 1 << 20  # bytes for the index of a database that is not in use


class DatabaseView:
    """The content of a database at one moment."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @property
    def size(self) -> int:
        (pages,), (page,) = self._ask("PRAGMA page_count"), self._ask("PRAGMA page_size")
        return pages * page

    @contextmanager
    def copy_into(self, directory: Path) -> Iterator[int]:
        """Check the database, and copy it. Yields a descriptor of the copy, which has no name: nothing is
        left if this process is killed. Raises StoreFailed.
        """
        if found := find_damage(self._connection):
            raise StoreFailed(f"{self.path} is damaged ({found}): restore an older backup")
        descriptor, path = tempfile.mkstemp(prefix=".volplane-", suffix=".db", dir=directory)
        try:
            try:
                with closing(sqlite3.connect(path, isolation_level=None)) as copy:
                    # With a journal SQLite would refuse to write to a file that has lost its name.
                    copy.execute("PRAGMA journal_mode = OFF")
                    copy.execute("PRAGMA synchronous = OFF")
                    os.unlink(path)
                    self._connection.backup(copy, pages=PAGES)
            except sqlite3.Error as error:
                raise StoreFailed(f"cannot copy {self.path}: {error}") from error
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            yield descriptor
        finally:
            os.close(descriptor)

    def _ask(self, query: str) -> tuple[int, ...]:
        row: tuple[int, ...] = self._connection.execute(query).fetchone()
        return row


@contextmanager
def view_at_one_moment(paths: Sequence[Path], at_moment: Callable[[], None]) -> Iterator[list[DatabaseView]]:
    """The databases as of one moment. Nothing is written to them while `at_moment` runs.

    Raises StoreFailed, also if a writer does not end its transaction in time.
    """
    with ExitStack() as readers:
        try:
            with ExitStack() as writers:
                for path in paths:
                    _keep_writers_out(path, writers)
                views = [_open_view(path, readers) for path in paths]
                at_moment()
        except sqlite3.Error as error:
            raise StoreFailed(f"cannot read {' and '.join(map(str, paths))}: {error}") from error
        yield views


def _keep_writers_out(path: Path, stack: ExitStack) -> None:
    if not os.path.exists(f"{path}-shm") and free_space(str(path.parent)) < INDEX_SPACE:
        # SQLite maps the index into memory; on a full disk the kernel kills a process that writes there.
        raise StoreFull(f"cannot open {path}: no space left on the disk; free some space")
    connection = stack.enter_context(closing(_connect(path, "rw")))
    connection.execute("BEGIN IMMEDIATE")
    stack.callback(connection.execute, "ROLLBACK")


def _open_view(path: Path, stack: ExitStack) -> DatabaseView:
    connection = stack.enter_context(closing(_connect(path, "ro")))
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the transaction begins with a read
    return DatabaseView(path, connection)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    address = f"file:{quote(os.path.abspath(path))}?mode={mode}"
    return sqlite3.connect(address, uri=True, isolation_level=None, timeout=TIMEOUT)


def read_database(path: Path) -> StoreRecords:
    """Check a database, and read its newest records. Raises StoreFailed."""
    try:
        with closing(_connect(path, "ro")) as connection:
            if found := find_damage(connection):
                raise StoreFailed(found)
            return list(read_records(connection))
    except sqlite3.Error as error:
        raise StoreFailed(str(error)) from error


def find_damage(database: sqlite3.Connection) -> str:
    """What is wrong with a database; "" if nothing is."""
    try:
        ((found,),) = database.execute("PRAGMA integrity_check(1)").fetchall()
        (version,) = database.execute("PRAGMA user_version").fetchone()
    except sqlite3.DatabaseError as error:
        found, version = str(error), FORMAT
    if found != "ok":
        return " ".join(found.split())
    return f"its format {version} is of a newer version" if version > FORMAT else ""
