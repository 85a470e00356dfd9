"""The tables and all SQL statements. Blocking; runs only in the store's threads.

One table holds the log of all writes; a record is the newest row of its key. A batch of writes is one INSERT
outside any explicit transaction: it compares each expected revision with the newest row, assigns revisions,
commits and syncs in a single step, so the thread releases the interpreter lock once per batch and not once
per row. Rows whose comparison fails are not inserted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from volplane.store.contract import (
    Listing,
    RevisionCompacted,
    StoreEvent,
    StoreEvents,
    StoreFailed,
    StoreRecord,
)
from volplane.store.state import after_prefix

FORMAT = 1
LARGEST_BATCH = 256
ANY, NONE, NEVER = -1, 0, -2  # special values for the expected revision
LAST = "\U0010ffff"  # after every key

_SCHEMA = (
    """
    CREATE TABLE IF NOT EXISTS log (
        revision INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again, even after its row is compacted away
        key      TEXT    NOT NULL,
        previous INTEGER NOT NULL,  -- revision of the row this one replaces; 0: none, or a tombstone
        created  INTEGER NOT NULL,  -- 0: by this very row
        deleted  INTEGER NOT NULL,
        value    BLOB
    )
    """,
    "CREATE INDEX IF NOT EXISTS log_key ON log (key)",  # the rowid, our revision, is its second column
    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT OR IGNORE INTO meta VALUES ('floor', 0)",
    f"PRAGMA user_version = {FORMAT}",
)


def _append_statement(rows: int) -> str:
    values = ",".join(["(?,?,?,?)"] * rows)
    head = "CASE WHEN head.deleted = 0 THEN head.revision ELSE 0 END"
    return f"""
        INSERT INTO log (key, previous, created, deleted, value)
        SELECT new.column1, {head},
            CASE WHEN head.deleted = 0 THEN coalesce(nullif(head.created, 0), head.revision) ELSE 0 END,
            new.column3, new.column4
        FROM (VALUES {values}) AS new
        LEFT JOIN log AS head ON head.revision = (SELECT max(revision) FROM log WHERE key = new.column1)
        WHERE new.column1 IS NOT NULL
            AND CASE new.column2 WHEN {ANY} THEN {head} > 0 ELSE {head} = new.column2 END
    """


# A few sizes, so that the statements stay prepared; batches are padded with rows without a key.
_APPEND = {rows: _append_statement(rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128, LARGEST_BATCH)}
_FILLER = (None, 0, 0, None)

_REFUSED = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR_WRITE,  # for example, over quota
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
    }
)

_NEWEST = """
    SELECT key, value, revision, created FROM log
    WHERE deleted = 0 AND revision IN (
        SELECT max(revision) FROM log WHERE key >= ? AND key < ? AND revision <= ? GROUP BY key)
    ORDER BY key
"""

_EVENTS = """
    SELECT log.revision, log.key, log.value, log.created, log.deleted, old.value, old.revision, old.created
    FROM log LEFT JOIN log AS old ON log.previous > 0 AND old.revision = log.previous
    WHERE log.revision > ? AND log.revision <= ? AND log.key >= ? AND log.key < ?
    ORDER BY log.revision
"""

# Oldest first: a tombstone must not be removed before the rows it hides.
_SUPERSEDED = """
    DELETE FROM log WHERE revision IN (
        SELECT revision FROM log AS row
        WHERE revision <= :floor AND revision > :after AND (deleted = 1 OR EXISTS (
            SELECT 1 FROM log AS newer
            WHERE newer.key = row.key AND newer.revision > row.revision AND newer.revision <= :floor))
        ORDER BY revision LIMIT :limit)
    RETURNING revision
"""


class NewerFormat(StoreFailed):
    """The database was written by a newer version."""


class Database:
    """One connection. The writer has one, and the reader of old revisions another."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA cache_size = -1024")
        self._connection.execute("PRAGMA temp_store = MEMORY")  # a full /var/tmp is not a full database
        self._connection.execute("PRAGMA wal_autocheckpoint = 0")  # done in another thread

    def close(self) -> None:
        self._connection.close()

    def prepare(self) -> None:
        (version,) = self._one("PRAGMA user_version")
        if version > FORMAT:
            raise NewerFormat(f"its format {version} is of a newer version; this one knows {FORMAT}")
        with self._transaction():
            for statement in _SCHEMA:
                self._connection.execute(statement)
        self._connection.execute("DROP TABLE IF EXISTS room")  # left by a process that was killed in `grow`

    def grow(self, size: int) -> None:
        """Extend the file with free pages, which later writes use before they need space on the disk."""
        self._connection.execute("CREATE TABLE IF NOT EXISTS room (value BLOB)")
        try:
            self._connection.execute("INSERT INTO room VALUES (zeroblob(?))", (size,))
            self.checkpoint("RESTART")
        finally:
            self._connection.execute("DROP TABLE IF EXISTS room")

    # Writing

    def append(self, rows: Sequence[tuple[str, int, int, bytes | None]]) -> list[str]:
        """Insert rows of (key, expected, deleted, value) whose expected revision matches. Returns their keys
        in revision order.

        Keys must be distinct: rows are compared with the state before the batch.
        """
        size = 1 << (len(rows) - 1).bit_length()
        flat: list[object] = []
        for row in rows:
            flat += row
        flat += _FILLER * (size - len(rows))
        cursor = self._connection.execute(_APPEND[size], flat)
        if cursor.rowcount == len(rows):
            return [row[0] for row in rows]
        if not cursor.rowcount or cursor.lastrowid is None:
            return []
        return self._keys_after(cursor.lastrowid - cursor.rowcount)

    def _keys_after(self, revision: int) -> list[str]:
        query = "SELECT key FROM log WHERE revision > ? ORDER BY revision"
        return [key for (key,) in self._connection.execute(query, (revision,))]

    def set_floor(self, floor: int) -> None:
        self._connection.execute("UPDATE meta SET value = ? WHERE name = 'floor'", (floor,))

    def drop_superseded(self, floor: int, *, after: int, limit: int) -> int:
        """Delete some rows that no snapshot from the floor on shows. Returns 0, or the revision to continue
        after.
        """
        arguments = {"floor": floor, "after": after, "limit": limit}
        rows = self._connection.execute(_SUPERSEDED, arguments).fetchall()
        return max((revision for (revision,) in rows), default=0)

    def checkpoint(self, mode: str = "PASSIVE") -> int:
        """Checkpoint the log. Returns its length in pages."""
        _, pages, _ = self._one(f"PRAGMA wal_checkpoint({mode})")
        return pages

    # Reading

    def revision(self) -> int:
        row = self._one("SELECT max(seq) FROM sqlite_sequence WHERE name = 'log'")
        return row[0] or 0

    def floor(self) -> int:
        (floor,) = self._one("SELECT value FROM meta WHERE name = 'floor'")
        return int(floor)

    def records(self) -> Iterator[StoreRecord]:
        return read_records(self._connection)

    def get(self, key: str, revision: int) -> StoreRecord | None:
        with self._snapshot(revision):
            found = _make_records(self._connection.execute(_NEWEST, (key, key + "\0", revision)))
            return next(found, None)

    def list(self, prefix: str, *, after: str, limit: int, revision: int) -> Listing:
        start, end = max(prefix, after + "\0" if after else ""), after_prefix(prefix) if prefix else LAST
        with self._snapshot(revision):
            records = list(_make_records(self._connection.execute(_NEWEST, (start, end, revision))))
        page = records[:limit] if limit else records
        return Listing(page, revision, len(records) - len(page))

    def events(self, prefix: str, after: int, upto: int) -> StoreEvents:
        end = after_prefix(prefix) if prefix else LAST
        with self._snapshot(after):
            return [_event(row) for row in self._connection.execute(_EVENTS, (after, upto, prefix, end))]

    @contextmanager
    def _snapshot(self, revision: int) -> Iterator[None]:
        """One read transaction that includes the floor, so that a compaction cannot remove rows meanwhile."""
        with self._transaction("DEFERRED"):
            floor = self.floor()
            if revision < floor:
                raise RevisionCompacted(floor)
            yield

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        self._connection.execute(f"BEGIN {kind}")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _one(self, query: str) -> tuple[int, ...]:
        row: tuple[int, ...] = self._connection.execute(query).fetchone()
        return row


def read_records(connection: sqlite3.Connection) -> Iterator[StoreRecord]:
    """The newest records."""
    return _make_records(connection.execute(_NEWEST, ("", LAST, 1 << 62)))


def _make_records(cursor: sqlite3.Cursor) -> Iterator[StoreRecord]:
    for key, value, revision, created in cursor:
        yield StoreRecord(key, value, revision, created or revision)


def is_full(error: BaseException) -> bool:
    return _code(error) == sqlite3.SQLITE_FULL


def is_refused(error: BaseException) -> bool:
    """Whether the write failed before anything was committed. In all other cases it is uncertain."""
    return _code(error) in _REFUSED


def is_uncertain(error: BaseException) -> bool:
    """Whether the write is in the log: a restart may find it, unless the next write overwrites it."""
    return _code(error) == sqlite3.SQLITE_IOERR_SHMSIZE


def _code(error: BaseException) -> int:
    return getattr(error, "sqlite_errorcode", 0)


def _event(row: tuple[int, str, bytes, int, int, bytes | None, int, int]) -> StoreEvent:
    revision, key, value, created, deleted, old_value, old_revision, old_created = row
    record = None if deleted else StoreRecord(key, value, revision, created or revision)
    previous = (
        None if old_value is None else StoreRecord(key, old_value, old_revision, old_created or old_revision)
    )
    return StoreEvent(revision, record, previous)
