"""One reused gRPC connection to a program at a Unix socket: a CSI driver or a container runtime.

While gRPC waits for its reconnect backoff it fails all calls, so when the program restarts, a link with a
broken connection is replaced at once and closed after its last call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from volplane.base import trace
from volplane.base.sockets import short_path
from volplane.base.trace_context import HEADER
from volplane.csi import replies
from volplane.csi.outcome import BadReply, CallError, Code
from volplane.csi.replies import LARGEST_LIST
from volplane.csi.services import Method

log = logging.getLogger(__name__)

REPORT_AFTER = 5.0  # seconds of waiting for a driver until it is reported

LARGEST_MESSAGE = LARGEST_LIST
DEADLINE_SLACK = 1.0  # seconds after the deadline before we stop waiting for gRPC

_OPTIONS = (
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
    ("grpc.default_authority", "localhost"),  # by default the escaped path, which Go's HTTP/2 rejects
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # callers retry: they know which outcomes are uncertain
    ("grpc.use_local_subchannel_pool", 1),  # otherwise a new link inherits the backoff of the broken one
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


# Opens the driver's socket: yields a path that leads to it for as long as the context lasts. Raises OSError.
SocketOpener = Callable[[], AbstractContextManager[str]]

_TOO_LARGE = ("Received message larger than max", "Decompressed message larger than max")


class _Link:
    """One gRPC channel and the number of calls in progress on it."""

    def __init__(self, address: str, open_socket: SocketOpener | None) -> None:
        self._stack = ExitStack()
        # What the opener has opened must live as long as gRPC may reconnect.
        target = address if open_socket is None else "unix:" + self._stack.enter_context(open_socket())
        self.has_connected = False
        self.channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        self._stubs: dict[str, Callable[..., Any]] = {}
        self._calls = 0
        self._retired = asyncio.Event()

    def stub(self, method: Method) -> Callable[..., Any]:
        found = self._stubs.get(method.name)
        if found is None:
            make = self.channel.unary_stream if method.streams else self.channel.unary_unary
            found = self._stubs[method.name] = make(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=None,  # gRPC returns None for a reply that it cannot decode
            )
        return found

    def __enter__(self) -> None:
        """Count a call in progress."""
        self._calls += 1

    def __exit__(self, *_: object) -> None:
        self._calls -= 1
        if not self._calls:
            self._retired.set()

    @property
    def is_connected(self) -> bool:
        return self.channel.get_state() is grpc.ChannelConnectivity.READY

    async def retire(self) -> None:
        """Close when the last call has ended."""
        while self._calls:
            self._retired.clear()
            await self._retired.wait()
        await self.close()

    async def close(self) -> None:
        await self.channel.close()
        self._stack.close()


class GrpcConnection:
    """`address` is the path of a socket, `unix://…`, or any other address of gRPC.

    `open_socket` opens the socket for each new connection, where a path alone cannot be trusted.
    """

    def __init__(self, address: str, open_socket: SocketOpener | None = None) -> None:
        self.address = address
        path = socket_path(address)
        if open_socket is None and path is not None:
            open_socket = partial(short_path, path)
        self._open_socket = open_socket
        self._link: _Link | None = None
        self._retiring: dict[asyncio.Task[None], _Link] = {}

    async def stream(self, method: Method, request: Message, *, timeout: float | None) -> AsyncIterator[Any]:
        """The replies of a streaming call as they arrive. Raises CallError."""
        link = self._connect()
        with link:
            try:
                async for data in link.stub(method)(request, timeout=timeout):
                    yield replies.decode(method, data)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    self._replace(link)
                raise _to_call_error(error) from None

    async def send(self, method: Method, request: Message, timeout: float) -> Any:
        """The reply. Raises CallError."""
        link = self._connect()
        with link:
            try:
                async with asyncio.timeout(timeout + DEADLINE_SLACK):
                    data = await link.stub(method)(request, timeout=timeout, metadata=_metadata())
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    self._replace(link)
                raise _to_call_error(error) from None
            except TimeoutError:
                raise CallError(Code.DEADLINE_EXCEEDED, "the call did not end at its deadline") from None
        link.has_connected = True
        return replies.decode(method, data)

    def _connect(self) -> _Link:
        if self._link is not None and self._link.has_connected and not self._link.is_connected:
            self._retire(self._link)  # the driver may be back on another socket of the same name
        if self._link is None:
            try:
                self._link = _Link(self.address, self._open_socket)
            except OSError as error:  # nothing is there yet, or not what may be opened
                raise CallError(Code.UNAVAILABLE, f"{self.address}: {error.strerror or error}") from None
        return self._link

    def _replace(self, link: _Link) -> None:
        # The channel's state does not tell a broken connection from a driver that answers UNAVAILABLE: gRPC
        # may still call a connection ready after it has failed the calls on it. A new one costs little.
        if self._link is link:
            self._retire(link)

    def _retire(self, link: _Link) -> None:
        self._link = None
        task = asyncio.ensure_future(link.retire())
        self._retiring[task] = link
        task.add_done_callback(lambda done: self._retiring.pop(done, None))

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until the driver accepts connections. Raises TimeoutError."""
        if self._link is not None and self._link.is_connected:
            return
        report = asyncio.get_running_loop().call_later(
            REPORT_AFTER, log.warning, "nothing listens at %s: waiting for the driver", self.address
        )
        try:
            await self._wait_until_accepted(timeout)
        finally:
            report.cancel()

    async def _wait_until_accepted(self, timeout: float | None) -> None:
        async with asyncio.timeout(timeout):
            if self._open_socket is None:
                await self._connect().channel.channel_ready()
                return
            delay = 0.005
            while not await _accepts(self._open_socket):
                await asyncio.sleep(delay)
                delay = min(delay * 2, 1.0)

    async def close(self) -> None:
        retiring = dict(self._retiring)
        for task in retiring:
            task.cancel()
        await asyncio.gather(*retiring, return_exceptions=True)
        link, self._link = self._link, None
        for each in (*retiring.values(), *([link] if link else [])):
            await each.close()


def socket_path(address: str) -> str | None:
    """The path of a Unix address, None for any other address."""
    if address.startswith("unix:"):
        return address.removeprefix("unix:").removeprefix("//")
    return address if "/" in address and "://" not in address else None


def _to_call_error(error: grpc.aio.AioRpcError) -> CallError:
    code, details = Code(error.code().value[0]), error.details() or ""
    # This is gRPC's error for a reply that is too large, not the driver's.
    if code is Code.RESOURCE_EXHAUSTED and any(words in details for words in _TOO_LARGE):
        return BadReply(f"the reply is too large: {details}")
    return CallError(code, details)


async def _accepts(open_socket: SocketOpener) -> bool:
    try:
        with open_socket() as path:
            _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True


def _metadata() -> tuple[tuple[str, str], ...] | None:
    """The trace context of a call, for drivers that record spans, too."""
    parent = trace.traceparent()
    return ((HEADER, parent),) if parent else None
