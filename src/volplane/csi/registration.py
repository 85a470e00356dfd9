"""Plugin registration v1: the kubelet's calls to a socket in `plugins_registry/`, and the server behind it.

Whether and when to register a plugin is decided elsewhere. The server gets the result with the kubelet's call
of NotifyRegistrationStatus.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.client import CsiChannel
from volplane.csi.proto.registration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from volplane.csi.unix_server import RpcHandler, UnixRpcServer

log = logging.getLogger(__name__)

CSI_PLUGIN = "CSIPlugin"
DIAL_TIMEOUT, INFO_TIMEOUT, NOTIFY_TIMEOUT = 10.0, 1.0, 5.0


class RegistrationInfo(Struct, frozen=True):
    type: str
    name: str
    endpoint: str  # the driver's socket; empty on the wire means the registration socket
    versions: tuple[str, ...]


async def get_registration_info(
    socket: str, *, interceptor: CallInterceptor | None = None
) -> RegistrationInfo:
    """Call GetInfo. Raises `CallError`, or TimeoutError if nothing listens for ten seconds."""
    async with CsiChannel(socket, component="kubelet", interceptor=interceptor) as channel:
        await channel.ready(DIAL_TIMEOUT)
        info = await channel.call("GetInfo", InfoRequest(), timeout=INFO_TIMEOUT)
    return RegistrationInfo(info.type, info.name, info.endpoint or socket, tuple(info.supported_versions))


async def notify_registration(
    socket: str, *, registered: bool, error: str = "", interceptor: CallInterceptor | None = None
) -> None:
    async with CsiChannel(socket, component="kubelet", interceptor=interceptor) as channel:
        await channel.ready(DIAL_TIMEOUT)
        status = RegistrationStatus(plugin_registered=registered, error=error)
        await channel.call("NotifyRegistrationStatus", status, timeout=NOTIFY_TIMEOUT)


class RegistrationNotice(Struct, frozen=True):
    registered: bool
    error: str = ""


class RegistrationServer:
    """Registers a driver: serves `<directory>/<name>-reg.sock` until closed."""

    def __init__(
        self,
        directory: str,
        name: str,
        endpoint: str,
        *,
        versions: Sequence[str] = ("1.0.0",),
        type: str = CSI_PLUGIN,
    ) -> None:
        self.path = os.path.join(directory, f"{name}-reg.sock")
        self._info = PluginInfo(type=type, name=name, endpoint=endpoint, supported_versions=versions)
        methods: dict[str, RpcHandler] = {
            "GetInfo": self._get_info,
            "NotifyRegistrationStatus": self._receive_notification,
        }
        self._listener = UnixRpcServer(self.path, methods)
        self._notices: asyncio.Queue[RegistrationNotice] = asyncio.Queue()

    async def start(self) -> None:
        await self._listener.start()

    async def next_notice(self) -> RegistrationNotice:
        """The kubelet's next notification; there is another one after each restart of the kubelet."""
        return await self._notices.get()

    async def close(self) -> None:
        await self._listener.close()

    async def _get_info(self, request: InfoRequest, context: Any) -> PluginInfo:
        log.info("Received GetInfo call")
        return self._info

    async def _receive_notification(
        self, request: RegistrationStatus, context: Any
    ) -> RegistrationStatusResponse:
        self._notices.put_nowait(RegistrationNotice(request.plugin_registered, request.error))
        return RegistrationStatusResponse()

    async def __aenter__(self) -> RegistrationServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
