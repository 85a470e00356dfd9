"""csi-resizer: claims that ask for more, or for another VolumeAttributesClass. Run it with `run(client,
settings)`.
"""

from __future__ import annotations

import asyncio

from volplane.api.names import sanitize_driver
from volplane.client.client import Client
from volplane.csi import v1
from volplane.csi.client import Caller
from volplane.csi.outcome import CallError
from volplane.loops.controller import Unsupported
from volplane.loops.events import Recorder
from volplane.loops.wait_reports import WaitRegistry
from volplane.sidecars import Driver, beside
from volplane.sidecars.resizer.expand.controller import Expansions
from volplane.sidecars.resizer.modify.controller import Modifications
from volplane.sidecars.resizer.rpc_base import COMPONENT
from volplane.sidecars.resizer.settings import Settings

__all__ = ["Settings", "run"]


async def run(
    client: Client,
    settings: Settings,
    *,
    caller: Caller | None = None,
    identity: str = "",
    namespace: str = "default",
    wait_registry: WaitRegistry | None = None,
) -> None:
    """Until cancelled. Raises Unsupported where the driver can neither grow nor modify volumes."""

    registry = wait_registry or WaitRegistry()

    async def work(driver: Driver) -> None:
        expands = await _expands(driver, settings)
        modifies = "MODIFY_VOLUME" in driver.controller
        if not expands and not modifies:
            raise Unsupported("CSI driver does not support resize nor modify")
        source = f"external-resizer {driver.name}"
        async with Recorder(client, source) as events, asyncio.TaskGroup() as group:
            if expands:
                group.create_task(registry.run(Expansions(client, driver, settings, events=events)))
            if modifies and settings.gate("VolumeAttributesClass", default=True):
                group.create_task(registry.run(Modifications(client, driver, settings, events=events)))

    await beside(
        client,
        settings,
        COMPONENT,
        lambda driver: f"external-resizer-{sanitize_driver(driver.name)}",
        work,
        caller=caller,
        identity=identity,
        namespace=namespace,
    )


async def _expands(driver: Driver, settings: Settings) -> bool:
    """In the control plane, or else on the node alone."""
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
