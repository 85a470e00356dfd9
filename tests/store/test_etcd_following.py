"""The local copy of a store on etcd, and the watch that keeps it up to date."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.etcd import Etcd, etcd, version
from volplane.store import (
    RevisionCompacted,
    StoreEvent,
    StoreEvents,
    StoreFailed,
    StoreRecord,
    StoreWatch,
    WatchOverrun,
)
from volplane.store.etcd import EtcdStore, follower, local_copy, stream
from volplane.store.etcd.proto import rpc_pb2 as pb

pytestmark = pytest.mark.peer("etcd")

PREFIX = "/p"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Etcd]:
    with etcd(tmp_path) as running:
        yield running


@asynccontextmanager
async def open_store(server: Etcd, **more: Any) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open([server.url], prefix=PREFIX, **more)
    try:
        yield store
    finally:
        await store.close()


class Other:
    """Another program on the same etcd."""

    def __init__(self, server: Etcd) -> None:
        self._channel = grpc.insecure_channel(server.url.removeprefix("http://"))

    def write(self, **values: bytes) -> int:
        """Write in one transaction, with one revision; `_` in names stands for `/`."""
        puts = [pb.PutRequest(key=k.replace("_", "/").encode(), value=v) for k, v in values.items()]
        return self._call("KV/Txn", pb.TxnRequest(success=[pb.RequestOp(request_put=put) for put in puts]))

    def put(self, key: bytes, value: bytes) -> int:
        return self._call("KV/Put", pb.PutRequest(key=key, value=value))

    def delete_all(self, prefix: bytes) -> int:
        end = prefix[:-1] + bytes([prefix[-1] + 1])
        return self._call("KV/DeleteRange", pb.DeleteRangeRequest(key=prefix, range_end=end))

    def compact(self, revision: int) -> int:
        return self._call("KV/Compact", pb.CompactionRequest(revision=revision))

    def _call(self, method: str, request: Any) -> int:
        stub = self._channel.unary_unary(
            f"/etcdserverpb.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=pb.PutResponse.FromString,  # the header is what all have in common
        )
        revision: int = stub(request, timeout=10).header.revision
        return revision

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def other(server: Etcd) -> Iterator[Other]:
    program = Other(server)
    yield program
    program.close()


async def take(watch: StoreWatch, count: int) -> StoreEvents:
    got: StoreEvents = []
    async with asyncio.timeout(20):
        while len(got) < count:
            got += await watch.__anext__()
    assert len(got) == count
    return got


@pytest.fixture(params=["asked for progress", "watched as a whole"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an etcd whose progress responses are reliable, and with an older one."""
    believed = request.param == "asked for progress"
    if believed and not stream.has_ordered_progress(version()):
        pytest.skip(f"etcd {version()} answers progress requests before it has sent all events")
    for module in (stream, follower):
        monkeypatch.setattr(module, "has_ordered_progress", lambda version: believed)


@pytest.mark.usefixtures("either_way")
async def test_revisions_of_other_programs_are_reached_without_events_of_ours(
    server: Etcd, other: Other
) -> None:
    async with open_store(server) as store, store.watch("/", revision=store.revision) as watch:
        await store.create("/a", b"1")
        foreign = other.write(_other_x=b"1")
        async with asyncio.timeout(10):
            await store.wait_for(foreign)
        assert store.revision == foreign
        foreign = other.write(_other_x=b"2")
        listing = await store.list("/")
        assert ([r.key for r in listing.records], listing.revision) == (["/a"], foreign)
        await take(watch, 1)
        assert watch.progress == foreign  # what a bookmark tells
        assert await store.create("/b", b"") == foreign + 1


@pytest.mark.usefixtures("either_way")
async def test_what_comes_and_goes_at_once_is_told_all_the_same(server: Etcd, other: Other) -> None:
    async with open_store(server) as store, store.watch("/", revision=store.revision) as watch:
        for n in range(50):
            other.write(_p_brief=b"")
            gone = other.delete_all(b"/p/brief")
            foreign = other.write(_other=b"%d" % n)
            async with asyncio.timeout(10):
                await store.wait_for(foreign)
            events = await take(watch, 2)
            assert [(e.revision, e.record is None) for e in events] == [(gone - 1, False), (gone, True)]


async def test_many_events_of_one_revision_stay_together(server: Etcd, other: Other) -> None:
    async with open_store(server) as store, store.watch("/", revision=store.revision) as watch:
        before = await store.create("/a", b"old")
        once = other.write(_p_a=b"new", _p_b=b"new", _p_c=b"new", _pq_d=b"not ours")
        batch = await take(watch, 4)
        assert [(e.revision, e.key) for e in batch] == [
            (before, "/a"),
            (once, "/a"),
            (once, "/b"),
            (once, "/c"),
        ]
        assert {r.key: r.value for r in (await store.list("/", revision=before)).records} == {"/a": b"old"}
        assert len((await store.list("/", revision=once)).records) == 3
        gone = other.delete_all(b"/p/")
        assert (await store.list("/")).revision == gone
        assert [e.revision for e in await take(watch, 3)] == [gone] * 3
        async with store.watch("/", revision=once) as again:
            assert len(await take(again, 3)) == 3


async def test_fragments_are_put_together(tmp_path: Path) -> None:
    """etcd splits responses larger than a request plus 512 KiB, also within a revision."""
    with etcd(tmp_path, "--max-request-bytes", "150000") as server:
        program = Other(server)
        async with open_store(server) as store:
            start = store.revision
        for n in range(20):
            program.write(**{f"_p_{n}_{m}": b"x" * 28_000 for m in range(5)})
        program.close()
        async with open_store(server) as store, store.watch("/", revision=start) as watch:
            assert len(store.scan("/")) == 100
            assert [e.revision for e in await take(watch, 100)] == [start + 1 + n // 5 for n in range(100)]


async def test_a_broken_watch_goes_on_without_loss_or_repetition(server: Etcd) -> None:
    async with open_store(server) as store, store.watch("/", revision=store.revision) as watch:
        start = store.revision
        for n in range(5):
            await store.create(f"/before/{n}", b"")
            assert store._follower._stream is not None
            store._follower._stream.cancel()
        server.kill()
        server.start()
        server.wait()
        for n in range(5):
            await store.create(f"/after/{n}", b"")
        assert [e.revision for e in await take(watch, 10)] == list(range(start + 1, start + 11))


async def test_a_store_away_for_longer_than_history_reaches_starts_over(
    server: Etcd, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(server) as store, store.watch("/", revision=store.revision) as watch:
        await store.create("/stays", b"")
        await store.create("/goes", b"")
        away = asyncio.Event()

        class Away(stream.EtcdWatchStream):
            async def __aenter__(self) -> stream.EtcdWatchStream:
                await away.wait()
                return await super().__aenter__()

        monkeypatch.setattr(follower, "EtcdWatchStream", Away)
        assert store._follower._stream is not None
        store._follower._stream.cancel()
        await asyncio.sleep(0)
        other.delete_all(b"/p/goes")
        other.compact(other.write(_p_new=b"1"))
        away.set()
        assert [r.key for r in (await store.list("/")).records] == ["/new", "/stays"]
        await take(watch, 2)
        with pytest.raises(WatchOverrun):
            await anext(aiter(watch))
        with pytest.raises(RevisionCompacted):
            async with store.watch("/", revision=watch.progress - 3):
                pass
        await store.create("/and/on", b"")


async def test_an_event_that_does_not_fit_makes_the_copy_anew(server: Etcd) -> None:
    async with open_store(server) as store, store.watch("/", revision=store.revision) as watch:
        revision = await store.create("/a", b"1")
        store._state.drop("/a", revision)  # as if the watch had kept something from us
        store._state.put("/ghost", b"", revision)
        await store.update("/a", b"2", revision=revision)
        await take(watch, 1)
        with pytest.raises(WatchOverrun):
            await anext(aiter(watch))
        assert [(r.key, r.value) for r in (await store.list("/")).records] == [("/a", b"2")]


async def test_keys_of_somebody_else_that_are_no_text_do_no_harm(server: Etcd, other: Other) -> None:
    async with open_store(server) as store, store.watch("/", revision=store.revision) as watch:
        await store.create("/a", b"")
        other.put(b"/p/\xff", b"odd")
        await store.create("/b", b"")
        assert [e.key for e in await take(watch, 3)] == ["/a", "/\udcff", "/b"]
        assert len((await store.list("/")).records) == 3


async def test_an_unforeseen_failure_does_not_end_the_following(
    server: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(server) as store:
        revision = await store.create("/a", b"1")
        with monkeypatch.context() as broken:
            broken.setattr(store._copy, "apply", lambda events: 1 / 0)
            writing = asyncio.ensure_future(store.update("/a", b"2", revision=revision))
            await asyncio.sleep(0.2)
        assert await writing == revision + 1
        record = await store.get("/a")
        assert record is not None
        assert record.value == b"2"


async def test_an_etcd_restored_from_an_older_backup_is_read_anew(
    server: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(server) as store:
        await store.create("/a", b"")
        store._copy.advance(store.revision + 1000)  # what etcd has never had
        with pytest.raises(StoreFailed, match="went back from"):
            await store.get("/a")
        for _ in range(200):
            await asyncio.sleep(0.01)
            if store.revision < 1000:
                break
        record = await store.get("/a")
        assert record is not None
        assert await store.update("/a", b"2", revision=record.revision) == record.revision + 1


# The past


@pytest.mark.parametrize("window", [{"WINDOW_EVENTS": 3}, {"WINDOW_BYTES": 300}])
async def test_what_memory_has_forgotten_is_read_from_etcd(
    server: Etcd, monkeypatch: pytest.MonkeyPatch, window: dict[str, int]
) -> None:
    for name, value in window.items():
        monkeypatch.setattr(local_copy, name, value)
    async with open_store(server) as store:
        start = store.revision
        for n in range(20):
            await store.create(f"/{n:02}", b"x" * 100)
        for n in (1, 10, 19, 20):
            assert len((await store.list("/", revision=start + n)).records) == n
        old = await store.list("/", after="/04", limit=2, revision=start + 10)
        assert ([r.key for r in old.records], old.remaining, old.revision) == (["/05", "/06"], 3, start + 10)
        assert (await store.list("/", after="/99", revision=start + 10)).records == []
        assert (await store.list("/0", after="/1", revision=start + 10)).records == []
        record = await store.get("/03", revision=start + 5)
        assert record == StoreRecord("/03", b"x" * 100, start + 4, start + 4)
        assert await store.get("/09", revision=start + 5) is None
        async with store.watch("/1", revision=start + 2) as watch:
            assert [e.revision for e in await take(watch, 10)] == list(range(start + 11, start + 21))


async def test_watchers_and_readers_go_back_beyond_a_restart(server: Etcd) -> None:
    async with open_store(server) as store:
        first = await store.create("/p/a", b"1")
        await store.update("/p/a", b"2", revision=first)
        await store.create("/q/b", b"1")
        await store.delete("/p/a")
    async with open_store(server) as store:
        assert store.revision == first + 3
        async with store.watch("/p/", revision=first) as watch:
            await store.create("/p/c", b"1")
            assert await take(watch, 3) == [
                StoreEvent(
                    first + 1,
                    StoreRecord("/p/a", b"2", first + 1, first),
                    StoreRecord("/p/a", b"1", first, first),
                ),
                StoreEvent(first + 3, None, StoreRecord("/p/a", b"2", first + 1, first)),
                StoreEvent(first + 4, StoreRecord("/p/c", b"1", first + 4, first + 4), None),
            ]
        old = await store.list("/", revision=first + 2, limit=1)
        assert [(r.key, r.value, r.created) for r in old.records] == [("/p/a", b"2", first)]
        assert old.remaining == 1


async def test_a_watch_older_than_memory_tells_the_state_before(
    server: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "HISTORY", 1)
    async with open_store(server) as store:
        first = await store.create("/a", b"1")
        second = await store.update("/a", b"2", revision=first)
        await store.delete("/a")
        await store.create("/b", b"")
    async with open_store(server) as store:
        assert store._state.horizon == first + 2
        async with store.watch("/", revision=first) as watch:
            events = await take(watch, 3)
    assert events[:2] == [
        StoreEvent(second, StoreRecord("/a", b"2", second, first), StoreRecord("/a", b"1", first, first)),
        StoreEvent(second + 1, None, StoreRecord("/a", b"2", second, first)),
    ]


async def test_the_floor_is_known_after_a_restart_and_learnt_from_others(
    server: Etcd, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_copy, "WINDOW_EVENTS", 1)
    async with open_store(server) as store:
        start = store.revision
        for n in range(10):
            await store.create(f"/{n}", b"")
        await store.compact(start + 3)
        assert store.floor == start + 3
    async with open_store(server) as store:
        assert store.floor == start + 3
        with pytest.raises(RevisionCompacted):
            await store.list("/", revision=start + 2)
        other.compact(start + 6)
        with pytest.raises(RevisionCompacted) as compacted:
            await store.get("/0", revision=start + 5)
        assert (compacted.value.floor, store.floor) == (start + 6, start + 6)
        other.compact(start + 8)
        with pytest.raises(RevisionCompacted):
            async with store.watch("/", revision=start + 6):
                pass
        await store.compact(start + 7)  # already compacted by another client: no effect
        assert store.floor == start + 8
        assert len((await store.list("/", revision=start + 8)).records) == 8


async def test_a_delete_at_the_compacted_revision_is_not_missed(
    server: Etcd, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(server) as store:
        await store.create("/a", b"")
        away = asyncio.Event()

        class Away(stream.EtcdWatchStream):
            async def __aenter__(self) -> stream.EtcdWatchStream:
                await away.wait()
                return await super().__aenter__()

        monkeypatch.setattr(follower, "EtcdWatchStream", Away)
        assert store._follower._stream is not None
        store._follower._stream.cancel()
        await asyncio.sleep(0)
        other.compact(other.delete_all(b"/p/a"))
        away.set()
        assert await store.get("/a") is None
