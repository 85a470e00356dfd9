"""Serves the registration socket in the kubelet's `plugins_registry/` directory.

A kubelet that rejects the driver does not ask again until the socket is created again. So the program exits
when it is rejected, and its restart creates the socket again.
"""

from __future__ import annotations

import logging
import os

from volplane.base.backoff import Backoff
from volplane.base.retry import retry
from volplane.csi import registration, v1
from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.client import Caller, CsiChannel
from volplane.csi.outcome import CallError
from volplane.csi.registration import RegistrationServer
from volplane.sidecars.base import health
from volplane.sidecars.registrar.settings import RegistrarOptions

log = logging.getLogger(__name__)

COMPONENT = "node-driver-registrar"
RETRY = Backoff(0.05, 1.0)


class RegistrationFailed(Exception):
    """The kubelet rejected the driver."""


async def run(
    settings: RegistrarOptions, *, caller: Caller | None = None, interceptor: CallInterceptor | None = None
) -> None:
    """Run until cancelled. Raises RegistrationFailed when the kubelet rejects the driver."""
    name = await _read_driver_name(settings, caller, interceptor)
    log.info("CSI driver name", extra={"csiDriverName": name})
    directory, endpoint = settings.plugin_registration_path, settings.kubelet_registration_path
    async with RegistrationServer(directory, name, endpoint) as registrar:
        log.info("Registration Server started", extra={"socketPath": registrar.path})

        async def check() -> tuple[int, str]:
            return await check_registration(name, registrar.path)

        async with health(settings.endpoint, {"/healthz": check}):
            await _watch_registration(registrar)


async def _read_driver_name(
    settings: RegistrarOptions, caller: Caller | None, interceptor: CallInterceptor | None
) -> str:
    if caller is not None:
        return await _ask_driver_name(caller, settings.timeout)
    async with CsiChannel(settings.csi_address, component=COMPONENT, interceptor=interceptor) as channel:
        return await _ask_driver_name(channel, settings.timeout)


async def _ask_driver_name(caller: Caller, timeout: float) -> str:
    await caller.ready()

    async def ask() -> str:
        info = await caller.call("GetPluginInfo", v1.GetPluginInfoRequest(), timeout=timeout)
        return str(info.name)

    return await retry(
        ask,
        on=CallError,  # it listens, but is not ready yet
        backoff=RETRY,
        report=lambda error: log.warning("the driver does not answer GetPluginInfo yet: %s", error),
    )


async def _watch_registration(registrar: RegistrationServer) -> None:
    while True:
        notice = await registrar.next_notice()
        log.info("Received NotifyRegistrationStatus call", extra={"pluginRegistered": notice.registered})
        if not notice.registered:
            raise RegistrationFailed(f"registration process failed with error: {notice.error}")


async def check_registration(name: str, socket: str) -> tuple[int, str]:
    """Ask the registration socket as the kubelet does: HTTP status and text for a health check."""
    if not _exists(socket):
        return 404, "registration socket does not exist"
    try:
        info = await registration.get_registration_info(socket)
    except (CallError, TimeoutError) as error:
        return 500, f"the registration socket does not answer: {error}"
    if info.name != name:
        return 500, f"the registration socket answers for {info.name}, not for {name}"
    return 200, "ok"


def _exists(path: str) -> bool:
    return os.path.exists(path)  # a stat in a local directory is too short for a thread
