"""Views of several databases as of one moment, while they are written."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from volplane.store import StoreFailed
from volplane.store.sqlite import SqliteStore
from volplane.store.sqlite.backup import view_at_one_moment

# Each number goes into the first store, and then into the second one: at any moment the first one has as
# many, or one more.
WRITER = """
import asyncio, sys
from volplane.store.sqlite import SqliteStore

async def main():
    first, second = [await SqliteStore.open(path) for path in sys.argv[1:]]
    number = 0
    while True:
        number += 1
        await first.create(f"/n/{number}", b"x" * 200)
        await second.create(f"/n/{number}", b"x" * 200)
        if number == 20:
            print("runs", flush=True)
        if number % 500 == 0:
            await first.compact(number - 10)

asyncio.run(main())
"""


@contextmanager
def writer(*paths: Path) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, *map(str, paths)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


async def read_keys(path: Path) -> tuple[int, int]:
    """The number of the newest key, and the revision."""
    store = await SqliteStore.open(path)
    numbers = [int(record.key.rpartition("/")[2]) for record in store.scan("/n/")]
    revision = store.revision
    await store.close()
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    return len(numbers), revision


def test_copies_are_of_one_moment_although_writes_go_on(tmp_path: Path) -> None:
    paths = [tmp_path / "a.db", tmp_path / "b.db"]
    seen = []
    with writer(*paths):
        for turn in range(20):
            copies = [tmp_path / f"{turn}-{path.name}" for path in paths]
            with view_at_one_moment(paths, lambda: time.sleep(0.002)) as views:
                time.sleep(0.02 * (turn % 3))  # writes between the moment and the copy
                for view, copy in zip(views, copies, strict=True):
                    with view.copy_into(tmp_path) as descriptor:
                        copy.write_bytes(os.pread(descriptor, 1 << 30, 0))
            (first, revision), (second, _) = [asyncio.run(read_keys(copy)) for copy in copies]
            assert second <= first <= second + 1
            assert revision == first
            seen.append(first)
    assert seen == sorted(set(seen)), "the writer was kept out all the time"
    assert not list(tmp_path.glob(".volplane-*"))


def test_nothing_is_written_at_the_moment(tmp_path: Path) -> None:
    paths = [tmp_path / "a.db", tmp_path / "b.db"]

    def count() -> int:
        with sqlite3.connect(f"file:{paths[0]}?mode=ro", uri=True) as connection:
            (found,) = connection.execute("SELECT count(*) FROM log").fetchone()
        connection.close()
        return int(found)

    counts: list[int] = []

    def look() -> None:
        counts.append(count())
        time.sleep(0.1)
        counts.append(count())

    with writer(*paths), view_at_one_moment(paths, look):
        pass
    assert counts[0] == counts[1]


async def fill(path: Path) -> None:
    store = await SqliteStore.open(path)
    for number in range(200):
        await store.create(f"/n/{number}", os.urandom(500))
    await store.close()


def test_a_damaged_database_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    asyncio.run(fill(path))
    content = bytearray(path.read_bytes())
    content[20_000:24_000] = os.urandom(4000)
    path.write_bytes(content)
    with (
        view_at_one_moment([path], lambda: None) as (view,),
        pytest.raises(StoreFailed, match="is damaged"),
        view.copy_into(tmp_path),
    ):
        pass
    assert not list(tmp_path.glob(".volplane-*"))


def test_a_missing_database_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreFailed, match=r"cannot read .*gone\.db: unable to open"),
        view_at_one_moment([tmp_path / "gone.db"], lambda: None),
    ):
        pass
