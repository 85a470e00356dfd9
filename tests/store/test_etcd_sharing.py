"""Two stores on one etcd, like those of two API servers, and other clients of the same etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from tests.support.etcd import Etcd, etcd
from volplane.store import KeyExists, KeyMissing, StaleRevision, StoreFailed, WriteUncertain
from volplane.store.etcd import EtcdStore
from volplane.store.etcd.proto import rpc_pb2 as pb

pytestmark = pytest.mark.peer("etcd")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Etcd]:
    with etcd(tmp_path) as running:
        yield running


@asynccontextmanager
async def open_store(server: Etcd, prefix: str = "/p", root: str = "") -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open([server.url], prefix=prefix, root=root)
    try:
        yield store
    finally:
        await store.close()


def put(server: Etcd, key: bytes, value: bytes = b"") -> None:
    with grpc.insecure_channel(server.url.removeprefix("http://")) as channel:
        stub = channel.unary_unary(
            "/etcdserverpb.KV/Put",
            request_serializer=pb.PutRequest.SerializeToString,
            response_deserializer=pb.PutResponse.FromString,
        )
        stub(pb.PutRequest(key=key, value=value), timeout=10)


async def test_what_one_has_acknowledged_the_other_reads_at_once(server: Etcd) -> None:
    async with open_store(server) as one, open_store(server) as two:
        revision = await one.create("/a", b"0")
        for n in range(1, 100):
            revision = await one.update("/a", str(n).encode(), revision=revision)
            record = await two.get("/a")
            assert record is not None
            assert record.value == str(n).encode()
        await one.delete("/a")
        assert await two.get("/a") is None
        assert (await two.list("/")).records == []


async def test_of_writers_on_both_sides_one_wins(server: Etcd) -> None:
    async with open_store(server) as one, open_store(server) as two:
        made = await asyncio.gather(
            *(store.create("/a", b"") for store in (one, two) * 20), return_exceptions=True
        )
        assert sum(isinstance(r, int) for r in made) == 1
        assert sum(isinstance(r, KeyExists) for r in made) == 39
        revision = next(r for r in made if isinstance(r, int))
        written = await asyncio.gather(
            *(store.update("/a", b"", revision=revision) for store in (one, two) * 20), return_exceptions=True
        )
        assert sum(isinstance(r, int) for r in written) == 1
        assert sum(isinstance(r, StaleRevision) for r in written) == 39
        gone = await asyncio.gather(
            *(store.delete("/a") for store in (one, two) * 20), return_exceptions=True
        )
        assert sum(isinstance(r, KeyMissing) for r in gone) == 39


async def test_a_counter_raised_from_both_sides_loses_nothing(server: Etcd) -> None:
    async with open_store(server) as one, open_store(server) as two:
        await one.create("/n", b"0")

        async def raise_it(store: EtcdStore) -> None:
            for _ in range(25):
                while True:
                    record = await store.get("/n")
                    assert record is not None
                    try:
                        await store.update("/n", b"%d" % (int(record.value) + 1), revision=record.revision)
                    except StaleRevision:
                        continue
                    break

        await asyncio.gather(*(raise_it(store) for store in (one, two) * 2))
        record = await two.get("/n")
        assert record is not None
        assert record.value == b"100"


async def test_pages_and_watches_go_on_at_the_other_one(server: Etcd) -> None:
    async with open_store(server) as one, open_store(server) as two:
        for key in "abc":
            await one.create(f"/{key}", b"")
        first = await one.list("/", limit=2)
        second = await two.list("/", after="/b", limit=2, revision=first.revision)
        assert [r.key for r in second.records] == ["/c"]
        async with two.watch("/", revision=first.revision) as watch:
            await one.create("/d", b"")
            assert [e.key for e in await anext(aiter(watch))] == ["/d"]
        await two.compact(first.revision)
        await one.compact(first.revision - 1)  # already compacted by another client: no effect
        await one.compact(first.revision)


async def test_prefixes_keep_stores_apart(server: Etcd) -> None:
    async with (
        open_store(server, "/p") as one,
        open_store(server, "p/deeper/") as two,
        open_store(server, "/p2") as three,
    ):
        await one.create("/a", b"1")
        await two.create("/a", b"2")
        await three.create("/a", b"3")
        assert [r.value for r in (await two.list("")).records] == [b"2"]
        assert [r.value for r in (await three.list("/a")).records] == [b"3"]


async def test_the_root_of_the_keys_is_not_stored_twice(server: Etcd) -> None:
    async with open_store(server, "/elsewhere", root="/registry") as store:
        await store.create("/registry/pods/x", b"")
        assert [r.key for r in (await store.list("/registry/pods/")).records] == ["/registry/pods/x"]
        assert [r.key for r in store.scan("")] == ["/registry/pods/x"]
        with pytest.raises(ValueError, match="does not begin with /registry/"):
            await store.create("/pods/y", b"")
    async with open_store(server, "/elsewhere") as store:
        assert [r.key for r in store.scan("/")] == ["/pods/x"]


async def test_what_belongs_to_somebody_else_is_left_alone(server: Etcd) -> None:
    put(server, b"/registry/pods/default/x", b"k8s\0")
    with pytest.raises(StoreFailed, match="has keys of another program, such as /registry/pods/default/x"):
        async with open_store(server, "/registry"):
            pass
    put(server, b"/newer", b"volplane 99")
    with pytest.raises(StoreFailed, match="of another format: 'volplane 99'"):
        async with open_store(server, "/newer"):
            pass


async def test_what_is_too_large_is_refused(server: Etcd) -> None:
    async with open_store(server) as store:
        for size in (1_600_000, 3_000_000):  # refused by etcd, and by its gRPC
            with pytest.raises(StoreFailed, match=r"too large|larger than max"):
                await store.create("/a", b"x" * size)
        assert await store.get("/a") is None
        with pytest.raises(UnicodeEncodeError):
            await store.create("/\ud800", b"")


async def test_a_full_database_leaves_doubt_and_can_be_read(tmp_path: Path) -> None:
    """etcd applies the write that fills it, and still answers with an error."""
    with etcd(tmp_path, "--quota-backend-bytes", str(4 << 20)) as server:
        async with open_store(server) as store:
            stored: list[int] = []

            async def fill() -> None:
                while len(stored) < 100:
                    stored.append(await store.create(f"/{len(stored)}", b"x" * 1_000_000))

            with pytest.raises(WriteUncertain, match="database space exceeded"):
                await fill()
            there = {r.revision for r in (await store.list("/")).records}
            assert set(stored) <= there
            assert len(there) <= len(stored) + 1
