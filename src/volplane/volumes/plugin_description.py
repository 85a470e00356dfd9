"""Volume plugins as people see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:  # they need inotify; `volplane plugins` runs on any operating system
    from volplane.volumes.flex.driver import FlexDriver
    from volplane.volumes.flex.prober import FailedDriver, FlexProber

BUILT_IN, FLEX_VOLUME, CSI = "built-in", "FlexVolume", "CSI"
_FLEX_CAPABILITIES = {  # by the names in the driver's answer to `init`
    "attach": "attach",
    "selinuxrelabel": "selinuxRelabel",
    "supportsmetrics": "supportsMetrics",
    "fsgroup": "fsGroup",
    "requiresfsresize": "requiresFSResize",
}


class PluginDescription(Struct, frozen=True):
    """A plugin as people see it."""

    name: str
    kind: str  # BUILT_IN, FLEX_VOLUME or CSI
    version: str
    capabilities: tuple[str, ...]
    healthy: bool
    message: str  # why it is not healthy, else ""
    since: float  # unix time at which it was loaded, registered, or failed to load
    origin: str  # its Python module, executable or socket


class PluginReport(Struct, frozen=True):
    """All plugins of a role."""

    role: str  # `node/worker-1` or `controller-manager`
    plugins: Sequence[PluginDescription] = ()


def describe_flex_drivers(prober: FlexProber) -> list[PluginDescription]:
    """The drivers that are loaded, and those that cannot be, by name."""
    loaded = [_describe_flex(driver) for driver in prober.drivers.values()]
    failed = [_describe_failed(name, driver) for name, driver in prober.failed_drivers.items()]
    return sorted(loaded + failed, key=lambda found: found.name)


def _describe_flex(driver: FlexDriver) -> PluginDescription:
    capabilities = tuple(
        name for field, name in _FLEX_CAPABILITIES.items() if getattr(driver.capabilities, field)
    )
    return PluginDescription(
        driver.name, FLEX_VOLUME, "", capabilities, True, "", driver.loaded_at, driver.executable
    )


def _describe_failed(name: str, driver: FailedDriver) -> PluginDescription:
    return PluginDescription(
        name, FLEX_VOLUME, "", (), False, str(driver.error), driver.since, driver.file.path
    )
