"""The store on SQLite: restarts, locks, full disks, and revisions that are no longer in memory."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from volplane.store import RevisionCompacted, StaleRevision, StoreEvent, StoreFailed, StoreInUse, StoreRecord
from volplane.store import sqlite as keeper
from volplane.store.sqlite import SqliteStore, checkpoints


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "store.db"


async def test_a_restarted_store_continues_its_revisions(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.create("/a", b"1")
    await store.create("/b", b"1")
    await store.update("/a", b"2", revision=1)
    await store.delete("/b")
    await store.close()

    store = await SqliteStore.open(path)
    assert store.revision == 4
    assert [(r.key, r.value, r.revision, r.created) for r in store.scan("/")] == [("/a", b"2", 3, 1)]
    assert await store.create("/c", b"") == 5
    await store.close()


async def test_no_revision_is_used_twice_even_when_the_newest_row_is_compacted_away(
    path: Path,
) -> None:
    store = await SqliteStore.open(path)
    await store.create("/a", b"")
    await store.delete("/a")
    await store.compact(2)
    await store.close()

    store = await SqliteStore.open(path)
    assert (store.revision, store.floor) == (2, 2)
    assert await store.create("/a", b"") == 3
    await store.close()


async def test_a_store_without_a_window_looks_back_on_disk(path: Path) -> None:
    store = await SqliteStore.open(path, window=0)
    for n in range(3):
        await store.create(f"/{n}", b"old")
    await store.update("/1", b"new", revision=2)
    await store.delete("/2")
    assert [(r.key, r.value) for r in (await store.list("/")).records] == [("/0", b"old"), ("/1", b"new")]
    assert [r.key for r in (await store.list("/", revision=3)).records] == ["/0", "/1", "/2"]
    async with store.watch("/", revision=3) as watcher:
        batch = await anext(watcher)
        assert [event.revision for event in batch] == [4, 5]
        await store.create("/3", b"")
        assert [event.revision for event in await anext(watcher)] == [6]
    await store.close()


async def test_the_floor_is_remembered(path: Path) -> None:
    store = await SqliteStore.open(path)
    for n in range(5):
        await store.create(f"/{n}", b"")
    await store.compact(3)
    await store.close()

    store = await SqliteStore.open(path)
    assert store.floor == 3
    with pytest.raises(RevisionCompacted):
        await store.list("/", revision=2)
    with pytest.raises(RevisionCompacted):
        async with store.watch("/", revision=2):
            pass
    await store.close()


async def test_watchers_and_readers_go_back_beyond_a_restart(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.create("/p/a", b"1")
    await store.update("/p/a", b"2", revision=1)
    await store.create("/q/b", b"1")
    await store.delete("/p/a")
    await store.close()

    store = await SqliteStore.open(path)
    async with store.watch("/p/", revision=1) as watch:
        await store.create("/p/c", b"1")
        events = await anext(aiter(watch))
        if len(events) == 2:
            events += await anext(aiter(watch))
    assert events == [
        StoreEvent(2, StoreRecord("/p/a", b"2", 2, 1), StoreRecord("/p/a", b"1", 1, 1)),
        StoreEvent(4, None, StoreRecord("/p/a", b"2", 2, 1)),
        StoreEvent(5, StoreRecord("/p/c", b"1", 5, 5), None),
    ]
    old = await store.list("/", revision=3, limit=1)
    assert [(r.key, r.value, r.created) for r in old.records] == [("/p/a", b"2", 1)]
    assert old.remaining == 1
    assert [r.key for r in (await store.list("/", revision=3, after="/p/a")).records] == ["/q/b"]
    record = await store.get("/p/a", revision=1)
    assert record is not None
    assert record.value == b"1"
    assert await store.get("/p/a", revision=4) is None
    await store.close()


@pytest.mark.parametrize("window", [{"WINDOW_EVENTS": 3}, {"WINDOW_BYTES": 300}])
async def test_what_memory_has_forgotten_is_read_from_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch, window: dict[str, int]
) -> None:
    for name, value in window.items():
        monkeypatch.setattr(keeper, name, value)
    store = await SqliteStore.open(path)
    for n in range(20):
        await store.create(f"/{n:02}", b"x" * 100)
    for revision in (1, 10, 19, 20):
        assert len((await store.list("/", revision=revision)).records) == revision
    async with store.watch("/", revision=2) as watch:
        assert [e.revision for e in await anext(aiter(watch))] == list(range(3, 21))
    await store.close()


async def test_compaction_drops_the_rows_that_nobody_can_see(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "COMPACT_CHUNK", 2)
    store = await SqliteStore.open(path)
    revision = await store.create("/a", b"")
    for _ in range(10):
        revision = await store.update("/a", b"", revision=revision)
    await store.create("/b", b"")
    await store.delete("/b")
    await store.create("/c", b"")
    await asyncio.gather(store.compact(14), store.create("/b", b"again"))
    await store.close()
    with sqlite3.connect(path) as raw:
        rows = raw.execute("SELECT revision, key FROM log ORDER BY revision").fetchall()
    raw.close()
    assert rows == [(11, "/a"), (14, "/c"), (15, "/b")]


async def test_a_second_process_is_told_who_has_the_store(path: Path) -> None:
    store = await SqliteStore.open(path)
    with pytest.raises(StoreInUse, match=rf"store\.db is in use by process {os.getpid()}"):
        await SqliteStore.open(path)
    await store.close()
    await (await SqliteStore.open(path)).close()


async def test_files_are_for_their_owner_only(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.create("/secret", b"")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(f.stat().st_mode) for f in path.parent.iterdir()} == {0o600}
    await store.close()


@pytest.fixture
def letter(tmp_path: Path) -> Path:
    file = tmp_path / "letter.db"
    file.write_bytes(b"this is a letter, not a database" * 100)
    return file


async def test_what_is_no_database_is_refused_with_its_path(letter: Path) -> None:
    with pytest.raises(
        StoreFailed, match=r"cannot open .*letter\.db: it is damaged \(file is not a database"
    ):
        await SqliteStore.open(letter)


async def test_a_newer_format_is_refused(path: Path) -> None:
    await (await SqliteStore.open(path)).close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(StoreFailed, match=r"cannot open \S+: its format 99 is of a newer version"):
        await SqliteStore.open(path)


async def test_a_whole_batch_keeps_its_order(path: Path) -> None:
    store = await SqliteStore.open(path)
    async with store.watch("/", revision=0) as watch:
        await asyncio.gather(*(store.create(f"/{n % 7}/{n}", b"") for n in range(700)))
        keys = [e.key for e in await anext(aiter(watch))]
    assert keys == [f"/{n % 7}/{n}" for n in range(700)]
    await store.close()


async def test_the_log_on_disk_does_not_grow_without_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "EVERY_BYTES", 1 << 20)
    monkeypatch.setattr(checkpoints, "LONGEST", 512)
    store = await SqliteStore.open(path)
    for n in range(20):
        await asyncio.gather(*(store.create(f"/{n}/{m}", b"x" * 10_000) for m in range(100)))
    await store._checkpoints.wait_idle()
    assert os.stat(f"{path}-wal").st_size < 16 << 20  # of 20 MB of values
    await store.close()
    assert sorted(os.listdir(path.parent)) == ["store.db", "store.db.lock", "store.db.reserve"]


async def test_a_revision_out_of_this_world_is_stale_and_harms_nobody(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.create("/a", b"")
    for absurd in (1 << 70, -7):
        with pytest.raises(StaleRevision):
            await store.update("/a", b"", revision=absurd)
        with pytest.raises(StaleRevision):
            await store.delete("/a", revision=absurd)
    with pytest.raises(UnicodeEncodeError):
        await store.create("/\ud800", b"")
    assert await store.update("/a", b"", revision=1) == 2
    await store.close()


async def test_after_a_disk_error_nothing_more_is_accepted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open(path)
    await store.create("/a", b"")

    def fail(*_: object) -> list[str]:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(store._disk, "append", fail)
        with pytest.raises(StoreFailed, match="disk I/O error"):
            await store.create("/b", b"")
    with pytest.raises(StoreFailed, match="restart to go on"):
        await store.create("/c", b"")
    assert store.peek("/a") is not None
    assert store.revision == 1
    await store.close()

    store = await SqliteStore.open(path)
    assert await store.create("/b", b"") == 2
    await store.close()
