"""The volume plugins that a role knows, with what only the drivers themselves can tell.

CSI drivers are asked for their version only when a user wants to see it: a kubelet does not need it.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from volplane.csi import v1
from volplane.csi.outcome import CallError
from volplane.volumes.csi import RegisteredDriver
from volplane.volumes.plugin_description import CSI, PluginDescription
from volplane.volumes.registry import PluginRegistry

ANSWER_TIMEOUT = 1.0  # seconds for a driver to tell its version


async def describe_plugins(registry: PluginRegistry) -> list[PluginDescription]:
    """All plugins of a registry. Each CSI driver is called once."""
    return list(await asyncio.gather(*(_ask_driver(registry, found) for found in registry.describe())))


async def _ask_driver(registry: PluginRegistry, found: PluginDescription) -> PluginDescription:
    driver = registry.csi_drivers.get(found.name) if found.kind == CSI else None
    return found if driver is None else await _ask_version(driver, found)


async def _ask_version(driver: RegisteredDriver, found: PluginDescription) -> PluginDescription:
    """The description with the vendor's version; not healthy if the driver does not answer."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            reply = await driver.call("GetPluginInfo", v1.GetPluginInfoRequest())
    except CallError as error:
        return replace(found, version="", healthy=False, message=str(error))
    except TimeoutError:
        message = f"no answer to GetPluginInfo within {ANSWER_TIMEOUT:g}s"
        return replace(found, version="", healthy=False, message=message)
    return replace(found, version=reply.vendor_version, healthy=True, message="")
