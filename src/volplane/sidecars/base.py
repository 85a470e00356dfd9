"""What all sidecars do at their start.

A sidecar waits until its driver is ready, asks for its name and capabilities, and runs, as leader if there
are several. A sidecar does not exit when its driver goes away: calls fail and are retried until it is back.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from google.protobuf.message import Message

from volplane.api import errors
from volplane.api.core import Secret, SecretReference
from volplane.base import metrics
from volplane.base.backoff import Backoff, Failures
from volplane.base.retry import retry
from volplane.base.settings import Duration, about
from volplane.client.client import Client
from volplane.csi import v1
from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.client import Caller, CsiChannel
from volplane.csi.outcome import CallError, Code
from volplane.csi.replies import known_names
from volplane.csi.services import METHODS
from volplane.loops.controller import RetryableError
from volplane.loops.health import alive as alive
from volplane.loops.health import health as health
from volplane.loops.leader import LeaderElectionOptions as LeaderElectionOptions
from volplane.loops.leader import lead as lead

log = logging.getLogger(__name__)

STARTUP_CALL_TIMEOUT = 1.0  # seconds for each call at the start
PROBE_RETRY = Backoff(0.02, 1.0)  # between two probes of a driver that is not ready

OPERATION_SECONDS = metrics.histogram(
    "csi_sidecar_operations_seconds",
    "Container Storage Interface operation duration with gRPC error code status total",
    ("driver_name", "method_name", "grpc_status_code", "migrated"),
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600),
)


class DriverClient:
    """A driver that is ready: its name, its capabilities, and calls to it, which are measured."""

    def __init__(
        self,
        caller: Caller,
        name: str,
        plugin: frozenset[str] = frozenset(),
        controller: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.plugin = plugin  # capabilities, by their names in the CSI specification
        self.controller = controller
        self._caller = caller
        # Called before each call; raises an APIError while this process must not act.
        self.check_call: Callable[[], None] | None = None

    async def call(
        self, method: str, request: Message, *, timeout: float, subject: str = "", migrated: bool = False
    ) -> Any:
        """`migrated`: for a volume or class of an in-tree plugin."""
        if self.check_call is not None:
            self.check_call()
        started = time.monotonic()
        code = "OK"
        try:
            return await self._caller.call(method, request, timeout=timeout, subject=subject)
        except CallError as error:
            code = error.code.go_name
            raise
        finally:
            elapsed = time.monotonic() - started
            labels = (self.name, METHODS[method].path, code, "true" if migrated else "false")
            OPERATION_SECONDS.labels(*labels).observe(elapsed)


async def discover_driver(caller: Caller) -> DriverClient:
    """Probe the driver until it is ready, then ask for its name and capabilities."""
    await caller.ready()
    await _probe_until_ready(caller)
    info = await _call_until_answered(caller, "GetPluginInfo", v1.GetPluginInfoRequest())
    answer = await _call_until_answered(caller, "GetPluginCapabilities", v1.GetPluginCapabilitiesRequest())
    services = v1.PluginCapability.Service.Type
    plugin = known_names(services, (c.service.type for c in answer.capabilities if c.HasField("service")))
    controller: frozenset[str] = frozenset()
    if "CONTROLLER_SERVICE" in plugin:
        answer = await _call_until_answered(
            caller, "ControllerGetCapabilities", v1.ControllerGetCapabilitiesRequest()
        )
        calls = v1.ControllerServiceCapability.RPC.Type
        controller = known_names(calls, (c.rpc.type for c in answer.capabilities if c.HasField("rpc")))
    log.info("CSI driver name", extra={"driver": info.name})
    return DriverClient(caller, info.name, plugin, controller)


async def _call_until_answered(caller: Caller, method: str, request: Message) -> Any:
    """Repeat a call until the driver answers: the machine may be busy, or the driver restarting."""

    def report(error: Exception) -> None:
        if isinstance(error, CallError) and error.code not in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED):
            raise error
        log.info("CSI driver does not answer %s yet: %s", method, error)

    async def call() -> Any:
        return await caller.call(method, request, timeout=STARTUP_CALL_TIMEOUT)

    return await retry(call, on=CallError, backoff=PROBE_RETRY, report=report)


async def _probe_until_ready(caller: Caller) -> None:
    failures = Failures(PROBE_RETRY)
    while True:
        try:
            answer = await caller.call("Probe", v1.ProbeRequest(), timeout=STARTUP_CALL_TIMEOUT)
            if not answer.HasField("ready") or answer.ready.value:
                return
            log.info("CSI driver is not ready yet")
        except CallError as error:
            log.info("CSI driver probe failed: %s", error)
        await asyncio.sleep(failures.next_delay())


@asynccontextmanager
async def connect_driver(
    address: str,
    component: str,
    caller: Caller | None = None,
    interceptor: CallInterceptor | None = None,
) -> AsyncIterator[DriverClient]:
    """The driver at an address, or behind a caller that is created and closed elsewhere."""
    if caller is not None:
        yield await discover_driver(caller)
        return
    async with CsiChannel(address, component=component, interceptor=interceptor) as channel:
        yield await discover_driver(channel)


class SidecarOptions(LeaderElectionOptions, frozen=True, kw_only=True):
    """The flags of all sidecars that use the API server, with upstream's names."""

    csi_address: Annotated[str, about("socket of the CSI driver")] = "/run/csi/socket"
    retry_interval_start: Annotated[Duration, about("first delay after a failure; it doubles each time")] = (
        1.0
    )
    retry_interval_max: Annotated[Duration, about("longest delay after a failure")] = 300.0
    kube_api_qps: Annotated[float, about("accepted and ignored: requests are not limited")] = 0.0
    kube_api_burst: Annotated[int, about("accepted and ignored: requests are not limited")] = 0
    http_endpoint: Annotated[str, about("address for metrics and health checks", value="HOST:PORT")] = ""
    metrics_address: Annotated[str, about("deprecated name of --http-endpoint", value="HOST:PORT")] = ""
    metrics_path: Annotated[str, about("HTTP path of the metrics")] = "/metrics"
    feature_gates: Annotated[Mapping[str, bool], about("feature gates to switch on or off")] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.http_endpoint and self.metrics_address:
            raise ValueError("only one of `--metrics-address` and `--http-endpoint` can be set.")


async def run_sidecar(
    client: Client,
    settings: SidecarOptions,
    component: str,
    lease: Callable[[DriverClient], str],
    work: Callable[[DriverClient], Awaitable[None]],
    *,
    caller: Caller | None = None,
    interceptor: CallInterceptor | None = None,
    identity: str = "",
    namespace: str = "default",
) -> None:
    """Run a sidecar until cancelled: serve health checks, connect to the driver, become leader, work.

    `identity` (the pod's name) and `namespace` are for leader election.
    """
    endpoint = settings.http_endpoint or settings.metrics_address
    async with (
        health(endpoint, {"/healthz/leader-election": alive}, settings.metrics_path),
        connect_driver(settings.csi_address, component, caller, interceptor) as driver,
    ):
        driver.check_call = client.require_write  # a process that has lost its Lease must not act
        candidate = identity or socket.gethostname()
        await lead(
            client, settings, lease(driver), lambda: work(driver), identity=candidate, namespace=namespace
        )


async def read_secrets(client: Client, reference: SecretReference | None) -> dict[str, str]:
    """The data of the Secret that a call to the driver needs; empty without a reference."""
    if reference is None:
        return {}
    try:
        found = await client.get(Secret, reference.name, reference.namespace)
    except errors.APIError as error:
        raise RetryableError(
            f'failed to load secret "{reference.namespace}/{reference.name}": {error}'
        ) from error
    return {key: value.decode(errors="replace") for key, value in found.data.items()}
