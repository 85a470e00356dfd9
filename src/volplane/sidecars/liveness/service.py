"""Calls Probe for each request to `/healthz`, over a new connection.

A driver whose reply does not set `ready` is ready.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from volplane.csi import v1
from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.client import CsiChannel
from volplane.csi.outcome import CallError
from volplane.sidecars.base import health
from volplane.sidecars.liveness.settings import LivenessOptions

log = logging.getLogger(__name__)

COMPONENT = "liveness-probe"


async def run(
    settings: LivenessOptions,
    *,
    started: Callable[[int], None] | None = None,
    connect: Callable[[], CsiChannel] | None = None,
    interceptor: CallInterceptor | None = None,
) -> None:
    """Run until cancelled. `started` is called with the port, which may have been chosen by the system.

    `connect`: opens a connection to the driver; without it, the address of the settings is used.
    """
    connect = connect or partial(
        CsiChannel, settings.csi_address, component=COMPONENT, interceptor=interceptor
    )
    async with connect() as channel:
        await channel.ready()
        info = await channel.call("GetPluginInfo", v1.GetPluginInfoRequest(), timeout=settings.probe_timeout)
    log.info("CSI driver name", extra={"driver": info.name})

    async def check() -> tuple[int, str]:
        return await probe_driver(settings, connect)

    async with health(settings.endpoint, {"/healthz": check}, settings.metrics_path) as port:
        log.info("ServeMux listening", extra={"address": settings.endpoint, "port": port})
        if started is not None:
            started(port)
        await asyncio.get_running_loop().create_future()


async def probe_driver(settings: LivenessOptions, connect: Callable[[], CsiChannel]) -> tuple[int, str]:
    try:
        async with connect() as channel:
            answer = await channel.call("Probe", v1.ProbeRequest(), timeout=settings.probe_timeout)
    except CallError as error:
        log.error("health check failed: %s", error)
        return 500, str(error)
    if answer.HasField("ready") and not answer.ready.value:
        log.error("driver probed but not ready")
        return 500, "driver responded but is not ready"
    return 200, "ok"
