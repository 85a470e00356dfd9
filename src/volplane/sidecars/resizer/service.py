"""csi-resizer: expands and modifies the volumes of claims. Run it with `run(client, settings)`."""

from __future__ import annotations

import asyncio

from volplane.api.names import sanitize_driver
from volplane.client.client import Client
from volplane.csi import v1
from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.client import Caller
from volplane.csi.outcome import CallError
from volplane.loops.controller import Unsupported
from volplane.loops.events import EventRecorder
from volplane.loops.wait_reports import WaitRegistry
from volplane.sidecars.base import DriverClient, run_sidecar
from volplane.sidecars.resizer.expand.controller import VolumeExpander
from volplane.sidecars.resizer.modify.controller import VolumeModifier
from volplane.sidecars.resizer.rpc_base import COMPONENT
from volplane.sidecars.resizer.settings import ResizerOptions

__all__ = ["ResizerOptions", "run"]


async def run(
    client: Client,
    settings: ResizerOptions,
    *,
    caller: Caller | None = None,
    interceptor: CallInterceptor | None = None,
    identity: str = "",
    namespace: str = "default",
    wait_registry: WaitRegistry | None = None,
) -> None:
    """Run until cancelled. Raises Unsupported if the driver can neither expand nor modify volumes."""

    registry = wait_registry or WaitRegistry()

    async def work(driver: DriverClient) -> None:
        expands = await _supports_expansion(driver, settings)
        modifies = "MODIFY_VOLUME" in driver.controller
        if not expands and not modifies:
            raise Unsupported("CSI driver does not support resize nor modify")
        source = f"external-resizer {driver.name}"
        async with EventRecorder(client, source) as events, asyncio.TaskGroup() as group:
            if expands:
                group.create_task(registry.run(VolumeExpander(client, driver, settings, events=events)))
            if modifies and settings.is_feature_enabled("VolumeAttributesClass", default=True):
                group.create_task(registry.run(VolumeModifier(client, driver, settings, events=events)))

    await run_sidecar(
        client,
        settings,
        COMPONENT,
        lambda driver: f"external-resizer-{sanitize_driver(driver.name)}",
        work,
        caller=caller,
        interceptor=interceptor,
        identity=identity,
        namespace=namespace,
    )


async def _supports_expansion(driver: DriverClient, settings: ResizerOptions) -> bool:
    """The driver expands volumes in the controller service, or on the node alone."""
    if "EXPAND_VOLUME" in driver.controller:
        return True
    try:
        answer = await driver.call(
            "NodeGetCapabilities", v1.NodeGetCapabilitiesRequest(), timeout=settings.timeout
        )
    except CallError:
        return False
    kinds = v1.NodeServiceCapability.RPC
    return any(c.HasField("rpc") and c.rpc.type == kinds.EXPAND_VOLUME for c in answer.capabilities)
