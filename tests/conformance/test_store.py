"""The store contract, on every keeper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from volplane.store import (
    Closed,
    Compacted,
    Event,
    Events,
    Exists,
    Future,
    Missing,
    Overrun,
    Stale,
    Store,
    Watch,
)
from volplane.store.compaction import keep_compacted
from volplane.store.memory import MemoryStore
from volplane.store.sqlite import SqliteStore


class Open(Protocol):
    def __call__(self, *, backlog: int = 1000) -> AbstractAsyncContextManager[Store]: ...


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    @asynccontextmanager
    async def open_it(*, backlog: int = 1000) -> AsyncIterator[Store]:
        store: Store
        if request.param == "memory":
            store = MemoryStore(backlog=backlog)
        else:
            store = await SqliteStore.open(tmp_path / "store.db", backlog=backlog)
        try:
            yield store
        finally:
            await store.close()

    return open_it


async def take(watch: Watch, count: int) -> Events:
    """Exactly so many events, however they are batched."""
    got: Events = []
    async with asyncio.timeout(10):
        while len(got) < count:
            got += await watch.__anext__()
    assert len(got) == count
    return got


def told(events: Events) -> list[tuple[int, str, bytes | None, bytes | None]]:
    return [
        (e.revision, e.key, e.record.value if e.record else None, e.previous.value if e.previous else None)
        for e in events
    ]


# Writing


async def test_revisions_count_every_write_without_gaps(opened: Open) -> None:
    async with opened() as store:
        assert store.revision == 0
        assert await store.create("/a", b"1") == 1
        assert await store.create("/b", b"1") == 2
        assert await store.update("/a", b"2", revision=1) == 3
        assert (await store.delete("/b")).revision == 4
        assert store.revision == 4


async def test_a_record_knows_its_last_write_and_its_creation(opened: Open) -> None:
    async with opened() as store:
        await store.create("/other", b"")
        await store.create("/a", b"1")
        await store.update("/a", b"2", revision=2)
        record = await store.get("/a")
        assert record is not None
        assert (record.key, record.value, record.revision, record.created) == ("/a", b"2", 3, 2)
        assert store.peek("/a") is record


async def test_a_key_created_again_is_a_new_record(opened: Open) -> None:
    async with opened() as store:
        await store.create("/a", b"1")
        await store.delete("/a")
        assert await store.create("/a", b"2") == 3
        record = await store.get("/a")
        assert record is not None
        assert record.created == 3


async def test_what_exists_is_not_created_again(opened: Open) -> None:
    async with opened() as store:
        await store.create("/a", b"1")
        with pytest.raises(Exists):
            await store.create("/a", b"2")
        assert store.revision == 1


async def test_an_update_needs_the_revision_it_replaces(opened: Open) -> None:
    async with opened() as store:
        await store.create("/a", b"1")
        await store.update("/a", b"2", revision=1)
        for wrong in (1, 3, 0):
            with pytest.raises(Stale) as stale:
                await store.update("/a", b"3", revision=wrong)
            assert stale.value.current.value == b"2"
        with pytest.raises(Missing):
            await store.update("/none", b"", revision=1)
        assert store.revision == 2


async def test_a_delete_tells_what_it_removed(opened: Open) -> None:
    async with opened() as store:
        await store.create("/a", b"1")
        event = await store.delete("/a", revision=1)
        assert told([event]) == [(2, "/a", None, b"1")]
        assert await store.get("/a") is None
        with pytest.raises(Missing):
            await store.delete("/a")


async def test_a_delete_of_another_revision_is_refused(opened: Open) -> None:
    async with opened() as store:
        await store.create("/a", b"1")
        with pytest.raises(Stale):
            await store.delete("/a", revision=7)
        assert (await store.delete("/a", revision=0)).revision == 2


async def test_of_many_writers_with_the_same_revision_one_wins(opened: Open) -> None:
    async with opened() as store:
        await store.create("/a", b"0")
        writes = [store.update("/a", str(n).encode(), revision=1) for n in range(50)]
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert [r for r in results if not isinstance(r, Stale)] == [2]
        creates = await asyncio.gather(*(store.create("/b", b"") for _ in range(50)), return_exceptions=True)
        assert [r for r in creates if not isinstance(r, Exists)] == [3]


async def test_a_thousand_writers_give_one_event_each_in_order(opened: Open) -> None:
    async with opened(backlog=5000) as store, store.watch("/", revision=0) as watch:
        revisions = await asyncio.gather(*(store.create(f"/k/{n}", b"x" * n) for n in range(1000)))
        events = await take(watch, 1000)
        assert [e.revision for e in events] == list(range(1, 1001))
        assert {e.key: e.revision for e in events} == {f"/k/{n}": r for n, r in enumerate(revisions)}
        assert all(e.record and len(e.record.value) == int(e.key.removeprefix("/k/")) for e in events)


async def test_losers_among_winners_leave_no_gap(opened: Open) -> None:
    async with opened() as store:
        for n in range(0, 20, 2):
            await store.create(f"/k/{n:02}", b"old")
        results = await asyncio.gather(
            *(store.create(f"/k/{n:02}", b"new") for n in range(20)), return_exceptions=True
        )
        won = sorted(r for r in results if isinstance(r, int))
        assert won == list(range(11, 21))
        assert sum(isinstance(r, Exists) for r in results) == 10
        for n in range(1, 20, 2):
            record = store.peek(f"/k/{n:02}")
            assert record is not None
            assert record.revision == results[n]


async def test_a_cancelled_write_does_not_stop_the_others(opened: Open) -> None:
    async with opened() as store:
        first = asyncio.ensure_future(store.create("/a", b""))
        await asyncio.sleep(0)
        first.cancel()
        await store.create("/b", b"")
        assert [r.key for r in store.scan("/b")] == ["/b"]
        await asyncio.gather(first, return_exceptions=True)


# Reading


async def test_a_list_is_ordered_by_key_and_ends_with_the_prefix(opened: Open) -> None:
    async with opened() as store:
        for key in ("/p/b", "/p/a", "/pa/x", "/o/z", "/p/é", "/q/a"):
            await store.create(key, b"")
        listing = await store.list("/p/")
        assert [r.key for r in listing.records] == ["/p/a", "/p/b", "/p/é"]
        assert (listing.revision, listing.remaining) == (6, 0)
        assert [r.key for r in store.scan("/p/")] == ["/p/a", "/p/b", "/p/é"]
        assert len((await store.list("")).records) == 6


async def test_pages_continue_on_the_first_pages_snapshot(opened: Open) -> None:
    async with opened() as store:
        for key in "abcde":
            await store.create(f"/p/{key}", b"old")
        first = await store.list("/p/", limit=2)
        assert [r.key for r in first.records] == ["/p/a", "/p/b"]
        assert (first.revision, first.remaining) == (5, 3)
        await store.create("/p/bb", b"")
        await store.delete("/p/d")
        await store.update("/p/e", b"new", revision=5)
        second = await store.list("/p/", after="/p/b", limit=2, revision=first.revision)
        third = await store.list("/p/", after="/p/d", limit=2, revision=first.revision)
        assert [r.key for r in second.records] == ["/p/c", "/p/d"]
        assert [(r.key, r.value) for r in third.records] == [("/p/e", b"old")]
        assert (second.remaining, third.remaining, third.revision) == (1, 0, 5)


async def test_every_revision_can_be_read_again(opened: Open) -> None:
    async with opened() as store:
        await store.create("/a", b"1")
        await store.create("/b", b"1")
        await store.update("/a", b"2", revision=1)
        await store.delete("/b")
        await store.create("/b", b"2")
        seen = {
            revision: {r.key: r.value for r in (await store.list("/", revision=revision)).records}
            for revision in range(1, 6)
        }
        assert seen == {
            1: {"/a": b"1"},
            2: {"/a": b"1", "/b": b"1"},
            3: {"/a": b"2", "/b": b"1"},
            4: {"/a": b"2"},
            5: {"/a": b"2", "/b": b"2"},
        }
        assert await store.get("/b", revision=4) is None
        old = await store.get("/a", revision=2)
        assert old is not None
        assert old.value == b"1"


async def test_the_future_is_not_read(opened: Open) -> None:
    async with opened() as store:
        await store.create("/a", b"")
        with pytest.raises(Future) as future:
            await store.list("/", revision=2)
        assert future.value.current == 1
        with pytest.raises(Future):
            await store.get("/a", revision=2)


async def test_waiting_for_a_revision_ends_when_it_is_visible(opened: Open) -> None:
    async with opened() as store:
        await store.wait_for(0)
        waiting = asyncio.ensure_future(store.wait_for(2))
        await store.create("/a", b"")
        assert not waiting.done()
        await store.create("/b", b"")
        async with asyncio.timeout(10):
            await waiting


# Watching


async def test_a_watch_tells_every_change_with_the_state_before(opened: Open) -> None:
    async with opened() as store, store.watch("/p/", revision=0) as watch:
        await store.create("/p/a", b"1")
        await store.create("/q/a", b"")
        await store.update("/p/a", b"2", revision=1)
        await store.delete("/p/a")
        assert told(await take(watch, 3)) == [
            (1, "/p/a", b"1", None),
            (3, "/p/a", b"2", b"1"),
            (4, "/p/a", None, b"2"),
        ]


async def test_a_watch_from_the_past_hands_over_without_loss_or_repetition(opened: Open) -> None:
    async with opened() as store:
        for n in range(20):
            await store.create(f"/p/{n}", b"")
        burst = asyncio.gather(*(store.create(f"/p/{n}", b"") for n in range(20, 60)))
        async with store.watch("/p/", revision=5) as watch:
            await burst
            assert [e.revision for e in await take(watch, 55)] == list(range(6, 61))


async def test_a_watch_of_the_future_skips_what_comes_before(opened: Open) -> None:
    async with opened() as store, store.watch("/", revision=3) as watch:
        for n in range(5):
            await store.create(f"/{n}", b"")
        assert [e.revision for e in await take(watch, 2)] == [4, 5]


async def test_progress_is_what_has_been_handed_out(opened: Open) -> None:
    async with opened() as store, store.watch("/p/", revision=0) as watch:
        await store.create("/q/a", b"")
        assert watch.progress == 1  # nothing of ours so far
        await store.create("/p/a", b"")
        await store.create("/q/b", b"")
        assert watch.progress == 1
        await take(watch, 1)
        assert watch.progress == 3


async def test_a_slow_watcher_is_dropped_and_the_others_are_not(opened: Open) -> None:
    async with opened(backlog=10) as store, store.watch("/", revision=0) as slow:
        async with store.watch("/", revision=0) as quick:
            seen = 0
            for n in range(20):
                await store.create(f"/{n}", b"")
                seen += len(await take(quick, 1))
            assert seen == 20
        with pytest.raises(Overrun):
            await anext(aiter(slow))


async def test_a_watcher_that_left_gets_nothing(opened: Open) -> None:
    async with opened(backlog=2) as store:
        async with store.watch("/", revision=0):
            pass
        for n in range(5):
            await store.create(f"/{n}", b"")


async def test_a_reader_that_waits_is_woken_and_can_be_cancelled(opened: Open) -> None:
    async with opened() as store, store.watch("/", revision=0) as watch:
        waiting = asyncio.ensure_future(take(watch, 1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await store.create("/a", b"")
        assert len(await take(watch, 1)) == 1


# Compaction


async def test_below_the_floor_everything_is_compacted(opened: Open) -> None:
    async with opened() as store:
        for n in range(5):
            await store.create(f"/{n}", b"")
        await store.compact(3)
        assert store.floor == 3
        with pytest.raises(Compacted) as compacted:
            await store.list("/", revision=2)
        assert compacted.value.floor == 3
        with pytest.raises(Compacted):
            await store.get("/0", revision=2)
        with pytest.raises(Compacted):
            async with store.watch("/", revision=2):
                pass


async def test_at_the_floor_and_above_nothing_is_lost(opened: Open) -> None:
    async with opened() as store:
        await store.create("/a", b"1")
        await store.update("/a", b"2", revision=1)
        await store.create("/b", b"1")
        await store.delete("/b")
        await store.update("/a", b"3", revision=2)
        await store.compact(3)
        await store.compact(2)  # nothing
        assert [(r.key, r.value) for r in (await store.list("/", revision=3)).records] == [
            ("/a", b"2"),
            ("/b", b"1"),
        ]
        async with store.watch("/", revision=3) as watch:
            assert told(await take(watch, 2)) == [(4, "/b", None, b"1"), (5, "/a", b"3", b"2")]
        assert await store.create("/b", b"2") == 6


async def test_the_future_cannot_be_compacted(opened: Open) -> None:
    async with opened() as store:
        await store.create("/a", b"")
        with pytest.raises(Future):
            await store.compact(2)


@pytest.mark.virtual
async def test_history_is_kept_by_age_and_by_count(opened: Open) -> None:
    async with opened(backlog=5000) as store:
        housekeeping = asyncio.ensure_future(keep_compacted(store, age=300, keep=10))
        await asyncio.sleep(1)
        for n in range(30):
            await store.create(f"/{n}", b"")
        await asyncio.sleep(300)
        assert store.floor == 0  # not old enough
        await asyncio.sleep(300)
        assert store.floor == 20  # old enough, but ten are kept
        housekeeping.cancel()
        await asyncio.gather(housekeeping, return_exceptions=True)


# Closing


async def test_a_closed_store_says_so_to_everybody(opened: Open) -> None:
    async with opened() as store, store.watch("/", revision=0) as watch:
        reading = asyncio.ensure_future(anext(aiter(watch)))
        waiting = asyncio.ensure_future(store.wait_for(1))
        await asyncio.sleep(0)
        await store.close()
        for late in (reading, waiting, store.create("/a", b""), store.get("/a"), store.compact(0)):
            with pytest.raises(Closed):
                await late
        with pytest.raises(Closed):
            async with store.watch("/", revision=0):
                pass
        await store.close()


async def test_writes_that_were_accepted_finish_before_the_store_is_closed(opened: Open) -> None:
    async with opened() as store:
        writes = [asyncio.ensure_future(store.create(f"/{n}", b"")) for n in range(100)]
        await asyncio.sleep(0)
        await store.close()
        assert sorted(await asyncio.gather(*writes)) == list(range(1, 101))


@pytest.mark.virtual
async def test_the_store_works_in_virtual_time(opened: Open) -> None:
    async with opened() as store:
        async with asyncio.timeout(0.001):
            await store.create("/a", b"")
        async with store.watch("/", revision=0) as watch:
            await take(watch, 1)


def test_an_event_knows_its_key() -> None:
    with pytest.raises(AssertionError):
        _ = Event(1, None, None).key
