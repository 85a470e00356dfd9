"""Pure parts of the store on etcd: error classification, addresses, keys."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from volplane.store import StoreClosed, StoreFailed
from volplane.store.etcd.endpoints import EtcdTls, credentials, parse_endpoint
from volplane.store.etcd.freshness import SharedRevisionRead
from volplane.store.etcd.keys import EtcdKeys
from volplane.store.etcd.outcome import EtcdOutcome, classify_error
from volplane.store.etcd.stream import has_ordered_progress


@pytest.mark.parametrize(
    ("code", "text", "verdict"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: …", EtcdOutcome.ELSEWHERE),
        ("UNAVAILABLE", "etcdserver: no leader", EtcdOutcome.ELSEWHERE),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", EtcdOutcome.ELSEWHERE),
        ("UNAVAILABLE", "etcdserver: rpc not supported for learner", EtcdOutcome.ELSEWHERE),
        ("UNAVAILABLE", "Socket closed", EtcdOutcome.UNKNOWN),
        ("UNAVAILABLE", "etcdserver: request timed out", EtcdOutcome.UNKNOWN),
        ("UNAVAILABLE", "etcdserver: leader changed", EtcdOutcome.UNKNOWN),
        ("UNAVAILABLE", "etcdserver: server stopped", EtcdOutcome.UNKNOWN),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", EtcdOutcome.UNKNOWN),
        ("CANCELLED", "", EtcdOutcome.UNKNOWN),
        ("UNKNOWN", "panic", EtcdOutcome.UNKNOWN),
        ("INTERNAL", "Received RST_STREAM", EtcdOutcome.UNKNOWN),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", EtcdOutcome.FULL),
        ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (3 vs. 2)", EtcdOutcome.TOO_LARGE),
        ("RESOURCE_EXHAUSTED", "Bandwidth exhausted", EtcdOutcome.UNKNOWN),
        ("INVALID_ARGUMENT", "etcdserver: request is too large", EtcdOutcome.TOO_LARGE),
        ("PERMISSION_DENIED", "etcdserver: permission denied", EtcdOutcome.REFUSED),
        ("DATA_LOSS", "etcdserver: corrupt cluster", EtcdOutcome.REFUSED),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", EtcdOutcome.COMPACTED),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision is a future revision", EtcdOutcome.FUTURE),
    ],
)
def test_only_what_is_certain_is_called_not_done(code: str, text: str, verdict: EtcdOutcome) -> None:
    nothing = grpc.aio.Metadata()
    assert classify_error(grpc.aio.AioRpcError(grpc.StatusCode[code], nothing, nothing, text)) is verdict


@pytest.mark.parametrize(
    ("version", "ordered"),
    [
        ("3.3.27", False),
        ("3.4.23", False),
        ("3.4.30", False),
        ("3.4.31", True),
        ("3.5.12", False),
        ("3.5.13", True),
        ("3.6.0", True),
        ("3.6.0-rc.1", True),
        ("4.0.0", True),
        ("3.5", False),
        ("", False),
    ],
)
def test_progress_is_believed_from_the_versions_that_repaired_it(version: str, ordered: bool) -> None:
    assert has_ordered_progress(version) is ordered


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:2379", ("http://127.0.0.1:2379", "127.0.0.1:2379", False)),
        ("https://etcd-1.example:2380/", ("https://etcd-1.example:2380", "etcd-1.example:2380", True)),
        ("https://[::1]", ("https://[::1]:2379", "[::1]:2379", True)),
        ("localhost:2379", ("http://localhost:2379", "localhost:2379", False)),
    ],
)
def test_addresses(url: str, expected: tuple[str, str, bool]) -> None:
    endpoint = parse_endpoint(url)
    assert (endpoint.url, endpoint.target, endpoint.secure) == expected


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://x:port", "http://x/v3", "http://x:99999"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(StoreFailed, match="is not an address of an etcd server"):
        parse_endpoint(url)


def test_files_for_tls_are_checked() -> None:
    with pytest.raises(StoreFailed, match="needs a key"):
        credentials(EtcdTls(cert="/some.crt"))
    with pytest.raises(StoreFailed, match=r"cannot read /none/ca\.crt: No such file"):
        credentials(EtcdTls(ca="/none/ca.crt"))


def test_ranges_hold_exactly_what_has_the_prefix() -> None:
    keys = EtcdKeys("/p")
    assert keys.everything == (b"/p/", b"/p0")
    assert keys.under("/a/") == (b"/p/a/", b"/p/a0")
    assert keys.under("/a/", after="/a/x") == (b"/p/a/x\0", b"/p/a0")
    assert keys.under("/a/", after="/A") == (b"/p/a/", b"/p/a0")
    assert keys.under("/\u07ff") == ("/p/\u07ff".encode(), b"/p/\xdf\xc0")
    assert keys.inner("/p/é".encode()) == "/é"
    with pytest.raises(ValueError, match="needs a prefix"):
        EtcdKeys("/")


async def test_readers_of_one_moment_share_the_next_question() -> None:
    asked = 0
    answers: list[asyncio.Future[int]] = []

    async def ask() -> int:
        nonlocal asked
        asked += 1
        answers.append(asyncio.get_running_loop().create_future())
        return await answers[-1]

    freshness = SharedRevisionRead(ask)
    first = asyncio.ensure_future(freshness.revision())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    late = [asyncio.ensure_future(freshness.revision()) for _ in range(50)]
    await asyncio.sleep(0)
    late[0].cancel()  # one who leaves does not take the answer with him
    answers[0].set_result(1)
    assert await first == 1
    await asyncio.sleep(0)
    assert not any(task.done() for task in late[1:])  # what was asked before they came is not for them
    answers[1].set_result(2)
    assert set(await asyncio.gather(*late[1:])) == {2}
    assert asked == 2

    failing = asyncio.ensure_future(freshness.revision())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    answers[2].set_exception(StoreFailed("gone"))
    with pytest.raises(StoreFailed, match="gone"):
        await failing
    await freshness.close()


async def test_a_read_that_is_closed_before_its_first_step_ends() -> None:
    async def ask() -> int:
        raise AssertionError("never sent")

    freshness = SharedRevisionRead(ask)
    reading = asyncio.ensure_future(freshness.revision())
    await asyncio.sleep(0)  # the request is a task by now, and has not begun
    async with asyncio.timeout(5):
        await freshness.close()
    with pytest.raises(StoreClosed):
        await reading
