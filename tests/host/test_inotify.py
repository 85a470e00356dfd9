"""inotify: events instead of polling."""

from __future__ import annotations

import asyncio
from pathlib import Path

from volplane.host import inotify
from volplane.host.inotify import Inotify


async def test_new_and_removed_entries_are_told(tmp_path: Path) -> None:
    async with Inotify() as watch, asyncio.timeout(5):
        watch.add(str(tmp_path), inotify.ENTRIES)
        (tmp_path / "a").touch()
        (first, *_) = await watch.read()
        assert (first.directory, first.name) == (str(tmp_path), "a")
        assert first.mask & inotify.CREATE
        (tmp_path / "a").unlink()
        assert any(n.mask & inotify.DELETE for n in await watch.read())


async def test_a_reader_waits_for_the_next_event(tmp_path: Path) -> None:
    async with Inotify() as watch, asyncio.timeout(5):
        watch.add(str(tmp_path), inotify.ENTRIES)
        reading = asyncio.create_task(watch.read())
        await asyncio.sleep(0)
        (tmp_path / "b").mkdir()
        assert (await reading)[0].name == "b"
