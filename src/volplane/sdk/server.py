"""Serves a driver on a socket, or in memory.

The main function of a driver awaits `serve`, which ends when it is cancelled, after the calls in progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import Message

from volplane.base import trace
from volplane.base.trace_context import HEADER
from volplane.csi import replies as wire
from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.client import DEFAULT_TIMEOUT, CallerBase
from volplane.csi.outcome import CallError, Code
from volplane.csi.services import METHODS, Method
from volplane.csi.unix_server import RpcHandler, UnixRpcServer
from volplane.sdk.dispatch import Dispatcher
from volplane.sdk.driver import Driver

GRACE = 10.0  # seconds for calls in progress at shutdown

_STATUS = {status.value[0]: status for status in grpc.StatusCode}


class DriverServer:
    """Serves between `start` and `close`; also an async context manager."""

    def __init__(self, driver: Driver, socket: str, *, grace: float = GRACE) -> None:
        self.driver, self.grace = driver, grace
        self._dispatcher = Dispatcher(driver)
        self._listener = UnixRpcServer(socket, {m: self._serve(METHODS[m]) for m in self._dispatcher.methods})

    async def start(self) -> None:
        await self.driver.start()
        try:
            await self._listener.start()
        except BaseException:
            await self.driver.stop()
            raise

    async def close(self) -> None:
        await self._dispatcher.close(self.grace)
        await self._listener.close()
        await self.driver.stop()

    async def __aenter__(self) -> DriverServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _serve(self, method: Method) -> RpcHandler:
        dispatcher = self._dispatcher

        async def unary(request: Message, context: Any) -> Message:
            try:
                with trace.continue_trace(_traceparent(context)):
                    return await dispatcher.unary(method.name, request)
            except CallError as error:
                await _abort(context, error)
                raise  # not reached: abort() raises

        async def stream(request: Message, context: Any) -> AsyncIterator[Message]:
            try:
                async with aclosing(dispatcher.stream(method.name, request)) as replies:
                    async for reply in replies:
                        yield reply
            except CallError as error:
                await _abort(context, error)

        return stream if method.streams else unary


def _traceparent(context: Any) -> str:
    if trace.recording() is None:
        return ""
    return next((str(value) for key, value in context.invocation_metadata() if key == HEADER), "")


async def _abort(context: Any, error: CallError) -> None:
    await context.abort(_STATUS[error.code], error.message)


async def serve(driver: Driver, socket: str, *, grace: float = GRACE) -> None:
    """Serve the driver until cancelled."""
    async with DriverServer(driver, socket, grace=grace):
        await asyncio.get_running_loop().create_future()


class Local(CallerBase):
    """Calls a driver without a socket: same checks, same errors, works in virtual time."""

    def __init__(
        self, driver: Driver, *, component: str = "csi", interceptor: CallInterceptor | None = None
    ) -> None:
        super().__init__(component, interceptor)
        self._driver = driver
        self._dispatcher = Dispatcher(driver)

    async def ready(self, timeout: float | None = None) -> None:
        return None

    async def close(self) -> None:
        await self._dispatcher.close(0.0)

    async def stream(
        self, method: str, request: Message, *, timeout: float = DEFAULT_TIMEOUT
    ) -> AsyncGenerator[Any]:
        """The replies of a streaming call as they arrive."""
        spec = METHODS[method]
        if method not in self._dispatcher.methods:
            raise CallError(Code.UNIMPLEMENTED, f"{spec.path} is not offered")
        copy = spec.request.FromString(request.SerializeToString())
        try:
            async with asyncio.timeout(timeout), aclosing(self._dispatcher.stream(method, copy)) as replies:
                async for reply in replies:
                    yield wire.decode(spec, reply.SerializeToString())
        except TimeoutError:
            raise CallError(Code.DEADLINE_EXCEEDED, "Deadline Exceeded") from None

    async def _send(self, method: Method, request: Message, timeout: float) -> Any:
        if method.name not in self._dispatcher.methods:
            raise CallError(Code.UNIMPLEMENTED, f"{method.path} is not offered")
        # Encoded and decoded, so that neither side can change the other's message.
        copy = method.request.FromString(request.SerializeToString())
        try:
            async with asyncio.timeout(timeout):
                reply = await self._dispatcher.unary(method.name, copy)
        except TimeoutError:
            raise CallError(Code.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
        return wire.decode(method, reply.SerializeToString())
