"""Several members: one may die, hang or lose its leader; acknowledged writes stay, and watches continue."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.etcd import Etcd, cluster, etcd
from volplane.apiserver.auth.certificates import CertificateAuthority
from volplane.store import StaleRevision, StoreEvents, StoreFailed, StoreRecord, WriteUncertain
from volplane.store.etcd import EtcdStore, EtcdTls, follower, members

pytestmark = pytest.mark.peer("etcd")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Etcd]]:
    with cluster(tmp_path) as running:
        yield running


@asynccontextmanager
async def open_store(*servers: Etcd, tls: EtcdTls | None = None) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open([server.url for server in servers], prefix="/p", tls=tls, backlog=100_000)
    try:
        yield store
    finally:
        await store.close()


async def until(test: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not test():  # noqa: ASYNC110 - the test's own waiting
            await asyncio.sleep(0.01)


class Load:
    """Writers that record acknowledged writes, and a watcher that records its events."""

    def __init__(self, store: EtcdStore) -> None:
        self.store = store
        self.acknowledged: list[StoreRecord] = []
        self.uncertain = 0
        self.events: StoreEvents = []
        self.stop = False

    async def write(self, name: str) -> None:
        key, record = f"/k/{name}", None
        for n in itertools.count():
            if self.stop:
                return
            value = f"{name}:{n}".encode()
            try:
                if record is None:
                    revision = await self.store.create(key, value)
                else:
                    revision = await self.store.update(key, value, revision=record.revision)
            except WriteUncertain:
                self.uncertain += 1
                record = await self.store.get(key)
            except StaleRevision as stale:  # an uncertain one was on its way
                assert self.uncertain
                record = stale.current
            else:
                record = StoreRecord(key, value, revision, record.created if record else revision)
                self.acknowledged.append(record)

    async def watch(self, revision: int) -> None:
        async with self.store.watch("/", revision=revision) as watch:
            async for batch in watch:
                self.events += batch

    async def until_more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= wanted)


@asynccontextmanager
async def load(store: EtcdStore, writers: int = 16) -> AsyncIterator[Load]:
    """Runs while the block does; afterwards every acknowledged write has to be found."""
    start = store.revision
    work = Load(store)
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(work.watch(start))
        writing = [group.create_task(work.write(str(n))) for n in range(writers)]
        yield work
        work.stop = True
        await asyncio.gather(*writing)
        newest = (await store.list("/")).revision
        await until(lambda: bool(work.events) and work.events[-1].revision == newest)
        watching.cancel()
    revisions = [event.revision for event in work.events]
    assert revisions == list(range(start + 1, newest + 1))  # no gap, nothing twice
    by_revision = {event.revision: event.record for event in work.events}
    for record in work.acknowledged:
        assert by_revision[record.revision] == record


async def current(store: EtcdStore, servers: list[Etcd]) -> Etcd:
    return next(server for server in servers if server.url == store._members.current.url)


async def test_a_cluster_loses_a_member_under_load(three: list[Etcd]) -> None:
    async with open_store(*three) as store:
        async with load(store) as work:
            for _ in range(3):  # each of them once, so that the leader is among them
                await work.until_more(100)
                lost = await current(store, three)
                lost.kill()
                await work.until_more(100)
                lost.start()
                lost.wait()
        assert work.acknowledged
        state = {record.key: record for record in store.scan("/")}
    async with open_store(*three) as fresh:  # what the members agree on, not what we remember
        assert {record.key: record for record in fresh.scan("/")} == state


@pytest.mark.slow
async def test_a_member_that_hangs_is_left(three: list[Etcd], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "WAIT_TIMEOUT", 4.0)
    monkeypatch.setattr(members, "READ_PATIENCE", 0.5)
    monkeypatch.setattr(follower, "STALL", 0.5)
    async with open_store(*three) as store, load(store, writers=4) as work:
        await work.until_more(20)
        hung = await current(store, three)
        hung.freeze()
        await work.until_more(50)
        assert (await current(store, three)) is not hung
        hung.thaw()
        await work.until_more(50)


async def test_without_a_majority_nothing_is_written_and_everything_goes_on_after(
    three: list[Etcd], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(*three) as store:
        revision = await store.create("/a", b"1")
        monkeypatch.setattr(members, "WAIT_TIMEOUT", 2.0)
        for server in three[1:]:
            server.kill()
        with pytest.raises((StoreFailed, WriteUncertain)):
            await store.update("/a", b"2", revision=revision)
        with pytest.raises(StoreFailed, match="no etcd server answers"):
            await store.get("/a")
        found = store.peek("/a")
        assert found is not None  # at once, from memory, however old
        monkeypatch.setattr(members, "WAIT_TIMEOUT", 20.0)
        for server in three[1:]:
            server.start()
        record = await store.get("/a")
        assert record is not None
        await store.update("/a", b"3", revision=record.revision)


async def test_a_write_that_was_not_answered_is_uncertain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with etcd(tmp_path) as server:
        async with open_store(server) as store:
            await store.create("/a", b"")
            monkeypatch.setattr(members, "WAIT_TIMEOUT", 0.5)
            server.freeze()
            with pytest.raises(WriteUncertain, match="did not say whether the write was stored"):
                await store.create("/b", b"")
            monkeypatch.setattr(members, "WAIT_TIMEOUT", 20.0)
            server.thaw()
            assert (await store.list("/")).records[0].key == "/a"
            keys = {record.key for record in (await store.list("/")).records}
            assert keys in ({"/a"}, {"/a", "/b"})  # that is what uncertain means


async def test_a_write_that_was_not_sent_is_sent_again(tmp_path: Path) -> None:
    with etcd(tmp_path) as server:
        async with open_store(server) as store:
            await store.create("/a", b"")
            server.kill()
            await asyncio.sleep(0.1)  # until the connection is known to be gone
            writing = asyncio.ensure_future(store.create("/b", b""))
            await asyncio.sleep(0.3)
            server.start()
            assert await writing == store.revision


async def test_members_of_two_clusters_are_refused(tmp_path: Path) -> None:
    with (
        etcd(tmp_path / "one") as one,
        etcd(tmp_path / "two", "--initial-cluster-token", "two") as two,
        pytest.raises(StoreFailed, match="do not belong to one cluster"),
    ):
        async with open_store(one, two):
            pass


async def test_nobody_there_is_said_with_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "WAIT_TIMEOUT", 0.3)
    with pytest.raises(StoreFailed, match=r"no etcd server answers \(http://127\.0\.0\.1:1\): .*[Rr]efused"):
        await EtcdStore.open(["http://127.0.0.1:1"])


# TLS


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "pki")


@pytest.fixture
def secure(tmp_path: Path, authority: CertificateAuthority) -> Iterator[Etcd]:
    pair = authority.server("etcd", ("127.0.0.1",))
    server = Etcd(tmp_path)
    server.scheme = "https"
    server.arguments = [
        *("--cert-file", str(pair.cert_path), "--key-file", str(pair.key_path)),
        *("--client-cert-auth", "--trusted-ca-file", str(authority.pair.cert_path)),
    ]
    server.start()
    try:
        server.wait()
        yield server
    finally:
        server.kill()


async def test_both_sides_show_a_certificate(secure: Etcd, authority: CertificateAuthority) -> None:
    mine = authority.client("store", "store", ())
    tls = EtcdTls(ca=str(authority.pair.cert_path), cert=str(mine.cert_path), key=str(mine.key_path))
    async with open_store(secure, tls=tls) as store, store.watch("/", revision=store.revision) as watch:
        await store.create("/a", b"")
        assert len(await anext(aiter(watch))) == 1


async def test_a_server_of_another_authority_is_not_trusted(
    secure: Etcd, authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "WAIT_TIMEOUT", 0.5)
    stranger = CertificateAuthority(tmp_path / "stranger")
    mine = authority.client("store", "store", ())
    tls = EtcdTls(ca=str(stranger.pair.cert_path), cert=str(mine.cert_path), key=str(mine.key_path))
    with pytest.raises(StoreFailed, match="CERTIFICATE_VERIFY_FAILED"):
        async with open_store(secure, tls=tls):
            pass


async def test_without_a_client_certificate_there_is_no_way_in(
    secure: Etcd, authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "WAIT_TIMEOUT", 0.5)
    with pytest.raises(StoreFailed, match="no etcd server answers"):
        async with open_store(secure, tls=EtcdTls(ca=str(authority.pair.cert_path))):
            pass
