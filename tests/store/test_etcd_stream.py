"""One watch stream with a scripted server that behaves like old and new etcd versions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from volplane.store import RevisionCompacted
from volplane.store.etcd.endpoints import parse_endpoint
from volplane.store.etcd.keys import EtcdKeys
from volplane.store.etcd.members import EtcdMember
from volplane.store.etcd.proto import kv_pb2
from volplane.store.etcd.proto import rpc_pb2 as pb
from volplane.store.etcd.stream import EVERYBODY, EtcdWatchStream, StreamBatch, WatchStreamEnded

HONEST, OLD = "3.6.5", "3.4.23"


def header(revision: int) -> pb.ResponseHeader:
    return pb.ResponseHeader(revision=revision)


def event(revision: int) -> kv_pb2.Event:
    return kv_pb2.Event(kv=kv_pb2.KeyValue(key=b"/p/a", mod_revision=revision, create_revision=revision))


def watch_response(*revisions: int, fragment: bool = False) -> pb.WatchResponse:
    events = [event(revision) for revision in revisions]
    return pb.WatchResponse(header=header(revisions[-1]), events=events, fragment=fragment)


class Script:
    """Creates the watch, sends its responses, and answers progress requests with revision 99."""

    def __init__(self, lines: Sequence[pb.WatchResponse]) -> None:
        self.lines = lines
        self.asked: list[pb.WatchRequest] = []

    async def watch(
        self, requests: AsyncIterator[pb.WatchRequest], context: object
    ) -> AsyncIterator[pb.WatchResponse]:
        self.asked.append(await anext(requests))
        yield pb.WatchResponse(header=header(9), created=True)
        for line in self.lines:
            yield line
        async for request in requests:
            self.asked.append(request)
            yield pb.WatchResponse(header=header(99), watch_id=EVERYBODY)


@asynccontextmanager
async def play_script(
    version: str, *lines: pb.WatchResponse
) -> AsyncIterator[tuple[Script, EtcdWatchStream]]:
    script = Script(lines)
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(
        script.watch,
        request_deserializer=pb.WatchRequest.FromString,
        response_serializer=pb.WatchResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("etcdserverpb.Watch", {"Watch": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    member = EtcdMember(parse_endpoint(f"http://127.0.0.1:{port}"), None)
    member.version = version
    try:
        async with EtcdWatchStream(member, EtcdKeys("/p").everything, 5) as stream:
            yield script, stream
    finally:
        await member.close()
        await server.stop(0)


def revisions(batch: StreamBatch) -> list[int]:
    return [e.kv.mod_revision for e in batch.events]


async def test_a_watch_starts_at_what_is_known_and_leaves_that_out() -> None:
    async with play_script(OLD, watch_response(5, 6), watch_response(7)) as (script, stream):
        assert revisions(await stream.next()) == [6]
        assert revisions(await stream.next()) == [7]
    create = script.asked[0].create_request
    assert (create.start_revision, create.fragment, create.progress_notify) == (5, True, True)
    assert (create.key, create.range_end) == (b"/p/", b"/p0")


async def test_fragments_are_one_answer() -> None:
    lines = (
        watch_response(6, 7, fragment=True),
        watch_response(7, fragment=True),
        watch_response(7, 8),
        watch_response(9),
    )
    async with play_script(OLD, *lines) as (_, stream):
        assert revisions(await stream.next()) == [6, 7, 7, 7, 8]
        assert revisions(await stream.next()) == [9]


@pytest.mark.parametrize(("version", "believed"), [(HONEST, 99), (OLD, 0)])
async def test_an_answer_about_progress_is_believed_if_it_comes_in_order(version: str, believed: int) -> None:
    async with play_script(version) as (script, stream):
        await stream.request_progress()
        assert await stream.next() == StreamBatch([], believed)
        assert stream.supports_progress_requests is bool(believed)
    assert script.asked[1].HasField("progress_request")


@pytest.mark.parametrize("version", [HONEST, OLD])
async def test_progress_that_etcd_tells_by_itself_is_in_order(version: str) -> None:
    async with play_script(version, pb.WatchResponse(header=header(50), watch_id=0)) as (_, stream):
        assert await stream.next() == StreamBatch([], 50)


async def test_a_compacted_start_is_told_with_the_floor() -> None:
    async with play_script(OLD, pb.WatchResponse(canceled=True, compact_revision=40)) as (_, stream):
        with pytest.raises(RevisionCompacted) as compacted:
            await stream.next()
    assert compacted.value.floor == 40


async def test_a_cancelled_watch_says_why() -> None:
    line = pb.WatchResponse(canceled=True, cancel_reason="permission denied")
    async with play_script(OLD, line) as (_, stream):
        with pytest.raises(WatchStreamEnded, match="permission denied"):
            await stream.next()


async def test_a_stream_that_is_given_up_breaks_for_its_reader() -> None:
    async with play_script(HONEST) as (_, stream):
        stream.cancel()
        with pytest.raises(WatchStreamEnded):
            await stream.next()
        with pytest.raises(WatchStreamEnded):
            await stream.request_progress()
