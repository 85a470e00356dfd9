"""Calls to a driver over one reused gRPC connection.

Failpoints, trace, interceptor and log lines are in `CallerBase.call` only.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, Protocol

from google.protobuf.message import Message

from volplane.base import failpoint, trace
from volplane.csi import redact
from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.connection import LARGEST_MESSAGE, GrpcConnection, SocketOpener, socket_path
from volplane.csi.outcome import CallError
from volplane.csi.services import METHODS, Method

__all__ = [
    "LARGEST_MESSAGE",
    "Caller",
    "CallerBase",
    "CsiChannel",
    "SocketOpener",
    "socket_path",
    "subject_of",
]

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 15.0
LONGEST_TEXT = 4096  # characters of a request or reply in a span


class Caller(Protocol):
    """Makes CSI calls: `CsiChannel` over a socket, `sdk.Local` in memory."""

    async def call(
        self, method: str, request: Message, *, timeout: float = DEFAULT_TIMEOUT, subject: str = ""
    ) -> Any: ...

    async def ready(self, timeout: float | None = None) -> None: ...

    async def close(self) -> None: ...


class CallerBase(ABC):
    """What all callers have in common: failpoints, trace, log lines. `component` names the caller."""

    where = "memory"  # the address, by which an interceptor tells drivers and nodes apart

    def __init__(self, component: str, interceptor: CallInterceptor | None = None) -> None:
        self.component, self._interceptor = component, interceptor

    async def call(
        self, method: str, request: Message, *, timeout: float = DEFAULT_TIMEOUT, subject: str = ""
    ) -> Any:
        """The reply. Raises `CallError`. `subject` is the object in the trace."""
        spec = METHODS[method]
        if failpoint.is_armed:
            failpoint.hit(f"rpc:{method}:before")
        with trace.span(self.component, method, subject or subject_of(request)) as span:
            if span.is_open:
                _record_request(span, request)
            if self._interceptor is None:
                reply = await self._send_logged(spec, request, timeout)
            else:
                reply = await self._interceptor.intercept(
                    method,
                    self.component,
                    self.where,
                    request,
                    lambda: self._send_logged(spec, request, timeout),
                )
            if span.is_open and span.traces:
                span.attrs["reply"] = _shorten(redact.text(reply))
        if failpoint.is_armed:
            failpoint.hit(f"rpc:{method}:after")
        return reply

    async def _send_logged(self, method: Method, request: Message, timeout: float) -> Any:
        if not log.isEnabledFor(logging.DEBUG):
            return await self._send(method, request, timeout)
        log.debug("GRPC call method=%s request=%s", method.path, redact.text(request))
        try:
            reply = await self._send(method, request, timeout)
        except CallError as error:
            log.debug("GRPC error method=%s error=%s", method.path, error)
            raise
        log.debug("GRPC response method=%s response=%s", method.path, redact.text(reply))
        return reply

    @abstractmethod
    async def _send(self, method: Method, request: Message, timeout: float) -> Any: ...


class CsiChannel(CallerBase):
    """A `GrpcConnection` to a driver; `address` and `open_socket` are those of the connection."""

    def __init__(
        self,
        address: str,
        *,
        component: str = "csi",
        open_socket: SocketOpener | None = None,
        interceptor: CallInterceptor | None = None,
    ) -> None:
        super().__init__(component, interceptor)
        self.address = self.where = address
        self._connection = GrpcConnection(address, open_socket)

    def stream(
        self, method: str, request: Message, *, timeout: float = DEFAULT_TIMEOUT
    ) -> AsyncIterator[Any]:
        """The replies of a streaming call as they arrive."""
        return self._connection.stream(METHODS[method], request, timeout=timeout)

    async def _send(self, method: Method, request: Message, timeout: float) -> Any:
        return await self._connection.send(method, request, timeout)

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until the driver accepts connections. Raises TimeoutError."""
        await self._connection.ready(timeout)

    async def close(self) -> None:
        await self._connection.close()

    async def __aenter__(self) -> CsiChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _record_request(span: trace.span, request: Message) -> None:
    """The request without secrets; calls that belong to no volume are frequent and are not recorded."""
    if span.traces:
        span.attrs["request"] = _shorten(redact.text(request))
        span.announce()


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def subject_of(request: Message) -> str:
    for field in ("volume_id", "name", "snapshot_id", "source_volume_id"):
        value = getattr(request, field, "")
        if value:
            return f"volume/{value}"
    return ""
