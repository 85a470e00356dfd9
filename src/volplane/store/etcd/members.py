"""The members of one etcd cluster: calls go to one member, and to the next one when it fails.

A read is repeated on other members until it is answered or its time is up. A write is repeated only if it was
certainly not done; in doubt, `WriteUncertain` is raised. Before the first call, a member must report its
cluster id, because members of two clusters would have different data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from volplane.base import clock
from volplane.base.backoff import Backoff
from volplane.store.contract import RecordTooLarge, StoreFailed, WriteUncertain
from volplane.store.etcd.endpoints import EtcdEndpoint
from volplane.store.etcd.outcome import EtcdOutcome, classify_error, error_text
from volplane.store.etcd.proto import rpc_pb2 as pb

log = logging.getLogger(__name__)

WAIT_TIMEOUT = 10.0  # seconds for one operation, over all members; etcd itself gives up a proposal after 7
READ_PATIENCE = 3.0  # seconds for one member to answer a read that another can answer as well
CONNECT_PATIENCE = 2.0
SLACK = 1.0  # seconds past the deadline, in case gRPC does not keep it
RETRY = Backoff(0.02, 0.5)  # after every member has failed

# A member without a leader fails at once, instead of delaying calls and watches.
LEADER = (("hasleader", "true"),)

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # a page of a thousand records; etcd limits the size of writes
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # retries are decided here, where writes are known
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_PATIENCE * 1000)),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Only during calls, and not more often: etcd disconnects clients that ping more than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_PATHS: dict[str, tuple[str, type[Message]]] = {
    "Range": ("/etcdserverpb.KV/Range", pb.RangeResponse),
    "Txn": ("/etcdserverpb.KV/Txn", pb.TxnResponse),
    "Compact": ("/etcdserverpb.KV/Compact", pb.CompactionResponse),
    "Status": ("/etcdserverpb.Maintenance/Status", pb.StatusResponse),
}
_UNSETTLED = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)


class EtcdCompacted(Exception):
    """The requested revision has been compacted."""


class EtcdFutureRevision(Exception):
    """The requested revision does not exist yet."""


class MemberUnreachable(Exception):
    """No connection to the member; nothing was sent."""


_REFUSALS: dict[EtcdOutcome, type[Exception]] = {
    EtcdOutcome.REFUSED: StoreFailed,
    EtcdOutcome.TOO_LARGE: RecordTooLarge,
    EtcdOutcome.COMPACTED: EtcdCompacted,
    EtcdOutcome.FUTURE: EtcdFutureRevision,
}


class EtcdMember:
    """One etcd server."""

    def __init__(self, endpoint: EtcdEndpoint, credentials: grpc.ChannelCredentials | None) -> None:
        self.url = endpoint.url
        self.version = ""
        self.cluster = 0  # 0: unknown
        if endpoint.secure:
            assert credentials is not None
            self._channel = grpc.aio.secure_channel(endpoint.target, credentials, options=_OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(endpoint.target, options=_OPTIONS)
        self._stubs = {
            name: self._channel.unary_unary(
                path, request_serializer=_serialize, response_deserializer=reply.FromString
            )
            for name, (path, reply) in _PATHS.items()
        }
        self.watch = self._channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=_serialize,
            response_deserializer=pb.WatchResponse.FromString,
        )

    async def read_status(self) -> None:
        """Read version and cluster id, once. Raises MemberUnreachable, AioRpcError."""
        if self.cluster:
            return
        status = await self.call("Status", pb.StatusRequest(), READ_PATIENCE)
        if status.isLearner:
            raise MemberUnreachable("it is a learner and cannot answer yet")
        self.version, self.cluster = status.version, status.header.cluster_id

    async def call(self, method: str, request: Message, timeout: float) -> Any:
        """Raises MemberUnreachable, AioRpcError."""
        if not self.cluster:
            await self._wait_until_connected()
        async with asyncio.timeout(timeout + SLACK):
            return await self._stubs[method](request, timeout=timeout, metadata=LEADER)

    async def _wait_until_connected(self) -> None:
        """Wait for the connection: if a first call fails on a channel that never connected, it is unknown
        whether it was sent.
        """
        try:
            async with asyncio.timeout(CONNECT_PATIENCE):
                while (state := self._channel.get_state(try_to_connect=True)) in _UNSETTLED:
                    await self._channel.wait_for_state_change(state)
        except TimeoutError:
            raise MemberUnreachable(f"no connection within {CONNECT_PATIENCE:.0f} s") from None

    async def close(self) -> None:
        await self._channel.close()


class EtcdMembers:
    def __init__(self, members: Sequence[EtcdMember]) -> None:
        self._members = members
        self._at = 0
        self._cluster = 0

    @property
    def current(self) -> EtcdMember:
        return self._members[self._at]

    async def check_cluster(self) -> None:
        """Check that all reachable members belong to one cluster. Raises StoreFailed."""
        met = [member.read_status() for member in self._members]
        await asyncio.gather(*met, return_exceptions=True)  # unreachable ones are checked when they are used
        if len({member.cluster for member in self._members if member.cluster}) > 1:
            message = ", ".join(f"{m.url} of {m.cluster:x}" for m in self._members if m.cluster)
            raise StoreFailed(f"these etcd servers do not belong to one cluster: {message}")

    async def select_member(self) -> EtcdMember:
        """The member for the next call. Raises MemberUnreachable, AioRpcError."""
        member = self.current
        await member.read_status()
        self._cluster = self._cluster or member.cluster
        if member.cluster not in (0, self._cluster):
            raise MemberUnreachable("it belongs to another cluster")
        return member

    def switch_member(self, member: EtcdMember, why: str) -> None:
        """Use the next member from now on, because this one failed."""
        level = logging.WARNING if member.cluster else logging.DEBUG  # log each failure once
        member.cluster = 0  # a member that returns at this address reports its cluster again
        if member is self.current and len(self._members) > 1:
            self._at = (self._at + 1) % len(self._members)
            log.log(level, "leaving etcd at %s for %s: %s", member.url, self.current.url, why)

    async def read(self, method: str, request: Message) -> Any:
        """Make a call that may be repeated. Raises StoreFailed, EtcdCompacted, EtcdFutureRevision."""
        return await self._call(method, request, READ_PATIENCE, repeatable=True)

    async def write(self, method: str, request: Message) -> Any:
        """Make a call that must not be repeated. Raises StoreFailed if it was not done, WriteUncertain."""
        return await self._call(method, request, WAIT_TIMEOUT, repeatable=False)

    async def _call(self, method: str, request: Message, patience: float, *, repeatable: bool) -> Any:
        deadline, failures = clock.now() + WAIT_TIMEOUT, 0
        while True:
            member, sent = self.current, False
            try:
                await self.select_member()
                sent = True
                return await member.call(method, request, min(patience, max(deadline - clock.now(), 0.1)))
            except (grpc.aio.AioRpcError, MemberUnreachable, TimeoutError) as error:
                self._check_retryable(member, error, repeatable=repeatable or not sent)
                failures += 1
                await self._pause(failures, deadline, error)

    def _check_retryable(self, member: EtcdMember, error: Exception, *, repeatable: bool) -> None:
        """Return if the call may be repeated; else raise."""
        verdict = EtcdOutcome.UNKNOWN
        if isinstance(error, grpc.aio.AioRpcError):
            verdict = classify_error(error)
        elif isinstance(error, MemberUnreachable):
            verdict = EtcdOutcome.ELSEWHERE
        if refusal := _REFUSALS.get(verdict):
            raise refusal(f"etcd at {member.url}: {_why(error)}") from error
        if verdict is not EtcdOutcome.FULL:
            self.switch_member(member, _why(error))
        if verdict in (EtcdOutcome.UNKNOWN, EtcdOutcome.FULL) and not repeatable:
            message = f"etcd at {member.url} did not say whether the write was stored: {_why(error)}"
            raise WriteUncertain(message) from error

    async def _pause(self, failures: int, deadline: float, error: Exception) -> None:
        """Try the next member at once; wait only after all have failed."""
        rounds, rest = divmod(failures, len(self._members))
        pause = 0.0 if rest else RETRY.delay(rounds)
        if clock.now() + pause >= deadline:
            urls = ", ".join(member.url for member in self._members)
            raise StoreFailed(f"no etcd server answers ({urls}): {_why(error)}") from error
        await asyncio.sleep(pause)

    async def close(self) -> None:
        for member in self._members:
            await member.close()


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _why(error: Exception) -> str:
    return error_text(error) if isinstance(error, grpc.aio.AioRpcError) else str(error) or "timed out"
