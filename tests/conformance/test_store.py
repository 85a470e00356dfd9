"""The store contract, on every keeper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest

from tests.support.etcd import Etcd, etcd
from volplane.store import (
    FutureRevision,
    KeyExists,
    KeyMissing,
    RevisionCompacted,
    StaleRevision,
    Store,
    StoreClosed,
    StoreEvent,
    StoreEvents,
    StoreWatch,
    WatchOverrun,
)
from volplane.store.etcd import EtcdStore
from volplane.store.memory import MemoryStore
from volplane.store.sqlite import SqliteStore


class Open(Protocol):
    def __call__(self, *, backlog: int = 1000) -> AbstractAsyncContextManager[Store]: ...


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", pytest.param("etcd", marks=pytest.mark.peer("etcd"))])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    # One server for all, a prefix for each: revisions go on counting, and tests start from where they are.
    server: Etcd | None = request.getfixturevalue("etcd_server") if request.param == "etcd" else None

    @asynccontextmanager
    async def open_it(*, backlog: int = 1000) -> AsyncIterator[Store]:
        store: Store
        if server is not None:
            store = await EtcdStore.open([server.url], prefix=f"/{uuid4()}", backlog=backlog)
        elif request.param == "memory":
            store = MemoryStore(backlog=backlog)
        else:
            store = await SqliteStore.open(tmp_path / "store.db", backlog=backlog)
        try:
            yield store
        finally:
            await store.close()

    return open_it


async def take(watch: StoreWatch, count: int) -> StoreEvents:
    """Exactly so many events, however they are batched."""
    got: StoreEvents = []
    async with asyncio.timeout(10):
        while len(got) < count:
            got += await watch.__anext__()
    assert len(got) == count
    return got


def describe_events(events: StoreEvents) -> list[tuple[int, str, bytes | None, bytes | None]]:
    return [
        (e.revision, e.key, e.record.value if e.record else None, e.previous.value if e.previous else None)
        for e in events
    ]


# Writing


async def test_revisions_count_every_write_without_gaps(opened: Open) -> None:
    async with opened() as store:
        start = store.revision
        assert await store.create("/a", b"1") == start + 1
        assert await store.create("/b", b"1") == start + 2
        assert await store.update("/a", b"2", revision=start + 1) == start + 3
        assert (await store.delete("/b")).revision == start + 4
        assert store.revision == start + 4


async def test_a_record_knows_its_last_write_and_its_creation(opened: Open) -> None:
    async with opened() as store:
        await store.create("/other", b"")
        created = await store.create("/a", b"1")
        updated = await store.update("/a", b"2", revision=created)
        record = await store.get("/a")
        assert record is not None
        assert (record.key, record.value, record.revision, record.created) == ("/a", b"2", updated, created)
        assert store.peek("/a") is record


async def test_a_key_created_again_is_a_new_record(opened: Open) -> None:
    async with opened() as store:
        await store.create("/a", b"1")
        await store.delete("/a")
        again = await store.create("/a", b"2")
        record = await store.get("/a")
        assert record is not None
        assert record.created == again


async def test_what_exists_is_not_created_again(opened: Open) -> None:
    async with opened() as store:
        created = await store.create("/a", b"1")
        with pytest.raises(KeyExists):
            await store.create("/a", b"2")
        assert store.revision == created


async def test_an_update_needs_the_revision_it_replaces(opened: Open) -> None:
    async with opened() as store:
        created = await store.create("/a", b"1")
        updated = await store.update("/a", b"2", revision=created)
        for wrong in (created, updated + 1, 0, -7, 1 << 70):
            with pytest.raises(StaleRevision) as stale:
                await store.update("/a", b"3", revision=wrong)
            assert stale.value.current.value == b"2"
        with pytest.raises(KeyMissing):
            await store.update("/none", b"", revision=created)
        assert store.revision == updated


async def test_a_delete_tells_what_it_removed(opened: Open) -> None:
    async with opened() as store:
        created = await store.create("/a", b"1")
        event = await store.delete("/a", revision=created)
        assert describe_events([event]) == [(created + 1, "/a", None, b"1")]
        assert await store.get("/a") is None
        with pytest.raises(KeyMissing):
            await store.delete("/a")


async def test_a_delete_of_another_revision_is_refused(opened: Open) -> None:
    async with opened() as store:
        created = await store.create("/a", b"1")
        for wrong in (created + 6, -7, 1 << 70):
            with pytest.raises(StaleRevision):
                await store.delete("/a", revision=wrong)
        assert (await store.delete("/a", revision=0)).revision == created + 1


async def test_of_many_writers_with_the_same_revision_one_wins(opened: Open) -> None:
    async with opened() as store:
        created = await store.create("/a", b"0")
        writes = [store.update("/a", str(n).encode(), revision=created) for n in range(50)]
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert [r for r in results if not isinstance(r, StaleRevision)] == [created + 1]
        creates = await asyncio.gather(*(store.create("/b", b"") for _ in range(50)), return_exceptions=True)
        assert [r for r in creates if not isinstance(r, KeyExists)] == [created + 2]


async def test_a_thousand_writers_give_one_event_each_in_order(opened: Open) -> None:
    async with opened(backlog=5000) as store, store.watch("/", revision=store.revision) as watch:
        start = store.revision
        revisions = await asyncio.gather(*(store.create(f"/k/{n}", b"x" * n) for n in range(1000)))
        events = await take(watch, 1000)
        assert [e.revision for e in events] == list(range(start + 1, start + 1001))
        assert {e.key: e.revision for e in events} == {f"/k/{n}": r for n, r in enumerate(revisions)}
        assert all(e.record and len(e.record.value) == int(e.key.removeprefix("/k/")) for e in events)


async def test_losers_among_winners_leave_no_gap(opened: Open) -> None:
    async with opened() as store:
        start = store.revision
        for n in range(0, 20, 2):
            await store.create(f"/k/{n:02}", b"old")
        results = await asyncio.gather(
            *(store.create(f"/k/{n:02}", b"new") for n in range(20)), return_exceptions=True
        )
        won = sorted(r for r in results if isinstance(r, int))
        assert won == list(range(start + 11, start + 21))
        assert sum(isinstance(r, KeyExists) for r in results) == 10
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
        start = store.revision
        for key in ("/p/b", "/p/a", "/pa/x", "/o/z", "/p/é", "/q/a"):
            await store.create(key, b"")
        listing = await store.list("/p/")
        assert [r.key for r in listing.records] == ["/p/a", "/p/b", "/p/é"]
        assert (listing.revision, listing.remaining) == (start + 6, 0)
        assert [r.key for r in store.scan("/p/")] == ["/p/a", "/p/b", "/p/é"]
        assert len((await store.list("")).records) == 6


async def test_pages_continue_on_the_first_pages_snapshot(opened: Open) -> None:
    async with opened() as store:
        start = store.revision
        for key in "abcde":
            await store.create(f"/p/{key}", b"old")
        first = await store.list("/p/", limit=2)
        assert [r.key for r in first.records] == ["/p/a", "/p/b"]
        assert (first.revision, first.remaining) == (start + 5, 3)
        await store.create("/p/bb", b"")
        await store.delete("/p/d")
        await store.update("/p/e", b"new", revision=start + 5)
        second = await store.list("/p/", after="/p/b", limit=2, revision=first.revision)
        third = await store.list("/p/", after="/p/d", limit=2, revision=first.revision)
        assert [r.key for r in second.records] == ["/p/c", "/p/d"]
        assert [(r.key, r.value) for r in third.records] == [("/p/e", b"old")]
        assert (second.remaining, third.remaining, third.revision) == (1, 0, start + 5)


async def test_every_revision_can_be_read_again(opened: Open) -> None:
    async with opened() as store:
        start = store.revision
        await store.create("/a", b"1")
        await store.create("/b", b"1")
        await store.update("/a", b"2", revision=start + 1)
        await store.delete("/b")
        await store.create("/b", b"2")
        seen = {
            n: {r.key: r.value for r in (await store.list("/", revision=start + n)).records}
            for n in range(1, 6)
        }
        assert seen == {
            1: {"/a": b"1"},
            2: {"/a": b"1", "/b": b"1"},
            3: {"/a": b"2", "/b": b"1"},
            4: {"/a": b"2"},
            5: {"/a": b"2", "/b": b"2"},
        }
        assert await store.get("/b", revision=start + 4) is None
        old = await store.get("/a", revision=start + 2)
        assert old is not None
        assert old.value == b"1"


async def test_the_future_is_not_read(opened: Open) -> None:
    async with opened() as store:
        newest = await store.create("/a", b"")
        with pytest.raises(FutureRevision) as future:
            await store.list("/", revision=newest + 1)
        assert future.value.current == newest
        with pytest.raises(FutureRevision):
            await store.get("/a", revision=newest + 1)


async def test_waiting_for_a_revision_ends_when_it_is_visible(opened: Open) -> None:
    async with opened() as store:
        await store.wait_for(store.revision)
        waiting = asyncio.ensure_future(store.wait_for(store.revision + 2))
        await store.create("/a", b"")
        assert not waiting.done()
        await store.create("/b", b"")
        async with asyncio.timeout(10):
            await waiting


# Watching


async def test_a_watch_tells_every_change_with_the_state_before(opened: Open) -> None:
    async with opened() as store, store.watch("/p/", revision=store.revision) as watch:
        first = await store.create("/p/a", b"1")
        await store.create("/q/a", b"")
        await store.update("/p/a", b"2", revision=first)
        await store.delete("/p/a")
        assert describe_events(await take(watch, 3)) == [
            (first, "/p/a", b"1", None),
            (first + 2, "/p/a", b"2", b"1"),
            (first + 3, "/p/a", None, b"2"),
        ]


async def test_a_watch_from_the_past_hands_over_without_loss_or_repetition(opened: Open) -> None:
    async with opened() as store:
        start = store.revision
        for n in range(20):
            await store.create(f"/p/{n}", b"")
        burst = asyncio.gather(*(store.create(f"/p/{n}", b"") for n in range(20, 60)))
        async with store.watch("/p/", revision=start + 5) as watch:
            await burst
            assert [e.revision for e in await take(watch, 55)] == list(range(start + 6, start + 61))


async def test_a_watch_of_the_future_skips_what_comes_before(opened: Open) -> None:
    async with opened() as store:
        start = store.revision
        async with store.watch("/", revision=start + 3) as watch:
            for n in range(5):
                await store.create(f"/{n}", b"")
            assert [e.revision for e in await take(watch, 2)] == [start + 4, start + 5]


async def test_progress_is_what_has_been_handed_out(opened: Open) -> None:
    async with opened() as store, store.watch("/p/", revision=store.revision) as watch:
        first = await store.create("/q/a", b"")
        assert watch.progress == first  # nothing of ours so far
        await store.create("/p/a", b"")
        await store.create("/q/b", b"")
        assert watch.progress == first
        await take(watch, 1)
        assert watch.progress == first + 2


async def test_a_slow_watcher_is_dropped_and_the_others_are_not(opened: Open) -> None:
    async with opened(backlog=10) as store, store.watch("/", revision=store.revision) as slow:
        async with store.watch("/", revision=store.revision) as quick:
            seen = 0
            for n in range(20):
                await store.create(f"/{n}", b"")
                seen += len(await take(quick, 1))
            assert seen == 20
        with pytest.raises(WatchOverrun):
            await anext(aiter(slow))


async def test_who_listens_is_told_at_once_and_reads_only_what_it_refused(opened: Open) -> None:
    async with opened() as store, store.watch("/p/", revision=store.revision) as watch:
        heard: list[str] = []

        def hear(batch: StoreEvents) -> bool:
            if len(heard) == 2:
                return False
            heard.extend(event.key for event in batch)
            return True

        watch.listen(hear)
        for name in ("a", "b", "c", "d"):
            await store.create(f"/p/{name}", b"")
        assert heard == ["/p/a", "/p/b"]
        heard.clear()
        await store.create("/p/e", b"")
        assert heard == []  # behind what it refused nothing goes ahead
        assert [e.key for e in await take(watch, 3)] == ["/p/c", "/p/d", "/p/e"]
        await store.create("/p/f", b"")
        assert heard == ["/p/f"]
        assert watch.progress == store.revision


async def test_a_nudge_makes_a_reader_look_around(opened: Open) -> None:
    async with opened() as store, store.watch("/p/", revision=store.revision) as watch:
        waiting = asyncio.ensure_future(anext(aiter(watch)))
        await asyncio.sleep(0)
        watch.nudge()
        async with asyncio.timeout(60):
            assert await waiting == []
        watch.nudge()
        await store.create("/p/a", b"")
        async with asyncio.timeout(60):
            found = await anext(aiter(watch)) or await anext(aiter(watch))
        assert [e.key for e in found] == ["/p/a"]


async def test_a_watcher_that_left_gets_nothing(opened: Open) -> None:
    async with opened(backlog=2) as store:
        async with store.watch("/", revision=store.revision):
            pass
        for n in range(5):
            await store.create(f"/{n}", b"")


async def test_a_reader_that_waits_is_woken_and_can_be_cancelled(opened: Open) -> None:
    async with opened() as store, store.watch("/", revision=store.revision) as watch:
        waiting = asyncio.ensure_future(take(watch, 1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await store.create("/a", b"")
        assert len(await take(watch, 1)) == 1


# Compaction


async def test_below_the_floor_everything_is_compacted(opened: Open) -> None:
    async with opened() as store:
        floor = store.revision + 3
        for n in range(5):
            await store.create(f"/{n}", b"")
        await store.compact(floor)
        assert store.floor == floor
        with pytest.raises(RevisionCompacted) as compacted:
            await store.list("/", revision=floor - 1)
        assert compacted.value.floor == floor
        with pytest.raises(RevisionCompacted):
            await store.get("/0", revision=floor - 1)
        with pytest.raises(RevisionCompacted):
            async with store.watch("/", revision=floor - 1):
                pass


async def test_at_the_floor_and_above_nothing_is_lost(opened: Open) -> None:
    async with opened() as store:
        created = await store.create("/a", b"1")
        updated = await store.update("/a", b"2", revision=created)
        floor = await store.create("/b", b"1")
        await store.delete("/b")
        await store.update("/a", b"3", revision=updated)
        await store.compact(floor)
        await store.compact(floor - 1)  # nothing
        assert [(r.key, r.value) for r in (await store.list("/", revision=floor)).records] == [
            ("/a", b"2"),
            ("/b", b"1"),
        ]
        async with store.watch("/", revision=floor) as watch:
            assert describe_events(await take(watch, 2)) == [
                (floor + 1, "/b", None, b"1"),
                (floor + 2, "/a", b"3", b"2"),
            ]
        assert await store.create("/b", b"2") == floor + 3


async def test_the_future_cannot_be_compacted(opened: Open) -> None:
    async with opened() as store:
        newest = await store.create("/a", b"")
        with pytest.raises(FutureRevision):
            await store.compact(newest + 1)


# Closing


async def test_a_closed_store_says_so_to_everybody(opened: Open) -> None:
    async with opened() as store, store.watch("/", revision=store.revision) as watch:
        reading = asyncio.ensure_future(anext(aiter(watch)))
        waiting = asyncio.ensure_future(store.wait_for(store.revision + 1))
        await asyncio.sleep(0)
        await store.close()
        for late in (reading, waiting, store.create("/a", b""), store.get("/a"), store.compact(0)):
            with pytest.raises(StoreClosed):
                await late
        with pytest.raises(StoreClosed):
            async with store.watch("/", revision=store.revision):
                pass
        await store.close()


async def test_writes_that_were_accepted_finish_before_the_store_is_closed(opened: Open) -> None:
    async with opened() as store:
        start = store.revision
        writes = [asyncio.ensure_future(store.create(f"/{n}", b"")) for n in range(100)]
        await asyncio.sleep(0)
        await store.close()
        assert sorted(await asyncio.gather(*writes)) == list(range(start + 1, start + 101))


@pytest.mark.virtual
async def test_the_store_works_in_virtual_time(opened: Open) -> None:
    async with opened() as store:
        async with asyncio.timeout(0.001):
            created = await store.create("/a", b"")
        async with store.watch("/", revision=created - 1) as watch:
            await take(watch, 1)


def test_an_event_knows_its_key() -> None:
    with pytest.raises(AssertionError):
        _ = StoreEvent(1, None, None).key
