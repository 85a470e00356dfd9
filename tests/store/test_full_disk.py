"""A store on a full disk: creates fail, deletes use the reserve, and all works again once there is space."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.small_disk import SmallDisk, small_disk
from volplane.store import KeyExists, KeyMissing, StaleRevision, StoreEvent, StoreFailed, StoreFull
from volplane.store.sqlite import SqliteStore, space, writer

pytestmark = pytest.mark.root

PATIENCE = 60.0


class Disk(SmallDisk):
    @property
    def database(self) -> Path:
        return self.path / "store.db"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """With blocks of 1 KiB, so that a page of SQLite's index may be partly a hole."""
    with small_disk(tmp_path, 72, block_size=1024) as made:
        yield Disk(made.path)


async def until_full(store: SqliteStore) -> None:
    """Write until the log has used the free space."""
    async with asyncio.timeout(PATIENCE):
        with suppress(StoreFull):
            while True:
                await store.create(f"/until-full/{store.revision}", b"x" * 10_000)


async def until_stored(store: SqliteStore, key: str) -> int:
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(StoreFull):
                return await store.create(key, b"")


async def test_a_full_disk_refuses_creates_and_stores_deletes_and_small_changes(disk: Disk) -> None:
    store = await SqliteStore.open(disk.database)
    first = [await store.create(f"/old/{n}", b"x" * 1000) for n in range(200)]
    disk.fill()
    await until_full(store)
    before = store.revision
    with pytest.raises(StoreFull, match=r"no space left on the disk of .*; objects can be deleted"):
        await store.create("/new", b"")
    with pytest.raises(StoreFull):
        await store.update("/old/0", b"x" * 100_000, revision=first[0])
    with pytest.raises(KeyExists):
        await store.create("/old/0", b"")
    with pytest.raises(KeyMissing):
        await store.update("/new", b"", revision=1)
    with pytest.raises(StaleRevision):
        await store.delete("/old/0", revision=1 << 40)
    assert store.revision == before
    changed = await store.update("/old/0", b"x" * 1000 + b"deletionTimestamp", revision=first[0])
    assert changed == before + 1
    for n in range(200):
        await store.delete(f"/old/{n}")
    assert store.revision == before + 201
    assert store.scan("/old/") == []
    await store.close()


async def test_no_watcher_sees_a_write_that_was_refused_and_revisions_have_no_gap(disk: Disk) -> None:
    store = await SqliteStore.open(disk.database)
    await store.create("/a", b"")
    async with store.watch("/", revision=0) as watch:
        disk.fill(leave=100_000)
        outcomes = await asyncio.gather(
            *(store.create(f"/big/{n}", b"x" * 300_000) for n in range(100)),
            store.delete("/a"),
            return_exceptions=True,
        )
        refused = [o for o in outcomes if isinstance(o, StoreFull)]
        assert refused
        assert all(isinstance(o, int | StoreEvent | StoreFull) for o in outcomes)
        seen: list[StoreEvent] = []
        async with asyncio.timeout(PATIENCE):
            while len(seen) < store.revision:
                seen += await anext(aiter(watch))
    assert isinstance(outcomes[-1], StoreEvent)  # of one batch, the delete is stored and the others are not
    assert [e.revision for e in seen] == list(range(1, store.revision + 1))
    assert len(seen) == 2 + sum(isinstance(o, int) for o in outcomes)
    await store.close()
    store = await _reopen(disk)
    assert store.revision == len(seen)
    assert store.peek("/a") is None
    await store.close()


async def _reopen(disk: Disk) -> SqliteStore:
    disk.empty()
    return await SqliteStore.open(disk.database)


async def test_it_goes_on_by_itself_when_there_is_space_and_makes_the_reserve_again(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOOK_EVERY", 0.02)
    store = await SqliteStore.open(disk.database)
    reserve = disk.path / "store.db.reserve"
    assert reserve.stat().st_blocks * 512 >= space.RESERVE
    for number in range(2):
        disk.fill()
        await until_full(store)
        assert not reserve.exists()
        with pytest.raises(StoreFull, match="no space left"):
            await store.check()
        disk.empty()
        before = store.revision
        assert await until_stored(store, f"/back/{number}") == before + 1
        await store.check()
        assert reserve.stat().st_blocks * 512 >= space.RESERVE
    await store.close()


GREEDY = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    try:
        os.write(file, bytes(65536))
    except OSError:
        pass
"""


@contextmanager
def writing_without_end(path: Path) -> Iterator[None]:
    other = subprocess.Popen([sys.executable, "-c", GREEDY, str(path)])
    try:
        yield
    finally:
        other.kill()
        other.wait()


async def test_somebody_who_never_stops_writing_does_not_get_the_reserve(disk: Disk) -> None:
    store = await SqliteStore.open(disk.database)
    await asyncio.gather(*(store.create(f"/old/{n}", b"x" * 1000) for n in range(300)))
    with writing_without_end(disk.path / "filler"):
        await until_full(store)
        for n in range(300):
            await store.delete(f"/old/{n}")
    assert store.scan("/old/") == []
    await store.close()


async def test_changes_and_deletes_go_on_for_long_from_the_reserve(disk: Disk) -> None:
    store = await SqliteStore.open(disk.database)
    revision = await store.create("/lease", b"x" * 600)
    disk.fill()
    await until_full(store)
    for n in range(2000):  # a heartbeat of three nodes for an hour and a half
        revision = await store.update("/lease", b"x" * 600, revision=revision)
        if n % 500 == 499:
            await store.compact(store.revision - 100)
    await store.delete("/lease")
    await store.close()
    store = await _reopen(disk)
    assert store.peek("/lease") is None
    await store.close()


async def test_a_store_is_not_opened_on_a_disk_with_too_little_space(disk: Disk) -> None:
    disk.fill(leave=2 << 20)
    with pytest.raises(
        StoreFull, match=rf"cannot open .*store\.db: \d(\.\d)? MiB are free in {disk.path}, at least 20 MiB"
    ):
        await SqliteStore.open(disk.database)
    assert sorted(p.name for p in disk.path.iterdir()) == ["filler", "lost+found"]
    disk.empty()
    await (await SqliteStore.open(disk.database)).close()


OPEN = """
import asyncio, sys
from volplane.store import StoreError
from volplane.store.sqlite import SqliteStore
from volplane.store.sqlite.space import SpaceReserve
from volplane.store.sqlite.writer import CHANGES

async def main():
    try:
        store = await SqliteStore.open(sys.argv[1])
        await store.create("/a", b"")
    except StoreError as error:
        sys.exit(str(error))

asyncio.run(main())
"""


def test_a_start_on_a_full_disk_ends_with_a_sentence_and_not_with_a_signal(disk: Disk) -> None:
    command = [sys.executable, "-c", OPEN, str(disk.database)]
    for left in (0, 8, 20, 30, 34):  # KiB; with 8 to 34, the log's index got only some of its blocks
        disk.fill(leave=left << 10)
        ran = subprocess.run(command, capture_output=True, text=True)
        disk.empty()
        assert ran.returncode != -signal.SIGBUS
        assert ran.returncode == 1
        assert "MiB are needed: free some space and start again" in ran.stderr


async def test_a_disk_that_fills_up_while_the_store_is_open_does_not_end_the_process(disk: Disk) -> None:
    """The log's index is mapped into memory: all its blocks are allocated in advance."""
    store = await SqliteStore.open(disk.database)
    index = os.stat(f"{disk.database}-shm")
    assert index.st_blocks * 512 >= index.st_size >= space.INDEX
    await store.close()


async def test_another_error_of_the_disk_is_not_taken_for_a_full_one(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open(disk.database)

    def fail(*_: object) -> list[str]:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(store._disk, "append", fail)
        with pytest.raises(StoreFailed, match="Input/output error") as refused:
            await store.create("/a", b"")
    assert not isinstance(refused.value, StoreFull)
    await store.close()


async def test_changes_of_large_objects_leave_the_rest_of_the_reserve_to_deletes(disk: Disk) -> None:
    store = await SqliteStore.open(disk.database)
    revision = await store.create("/large", b"x" * 60_000)
    for n in range(200):
        await store.create(f"/old/{n}", b"x" * 1000)
    disk.fill()
    await until_full(store)
    stored = 0
    with suppress(StoreFull):
        while stored <= writer.CHANGES:
            revision = await store.update("/large", b"y" * 60_000, revision=revision)
            stored += 60_000
    assert 0 < stored <= writer.CHANGES
    for n in range(200):
        await store.delete(f"/old/{n}")
    assert store.scan("/old/") == []
    await store.close()


async def test_an_error_while_the_reserve_is_spent_is_answered_and_nobody_waits(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open(disk.database)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(space.SpaceReserve, "spend", fail)
    disk.fill()
    with suppress(StoreFailed):
        for n in range(10_000):
            await store.create(f"/new/{n}", b"x" * 10_000)
    with pytest.raises(StoreFailed, match="the store stopped after a disk error"):
        await store.create("/new", b"")
    await store.close()


async def test_a_write_in_doubt_is_not_written_again_from_the_reserve(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open(disk.database)
    for n in range(3):
        await store.create(f"/old/{n}", b"")
    disk.fill()
    await until_full(store)
    calls = []

    def fail(rows: object) -> list[str]:
        calls.append(rows)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(store._disk, "append", fail)
    done = await asyncio.gather(*(store.delete(f"/old/{n}") for n in range(3)), return_exceptions=True)
    assert [type(error) for error in done] == [StoreFailed] * 3
    assert len(calls) == 1
    await store.close()
