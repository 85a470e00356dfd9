"""All volume plugins of a node behind one interface: built-in ones, FlexVolume drivers and CSI drivers.

    prober = FlexProber("/usr/libexec/…/exec", host)  # its owner runs it; nodes may share it
    registry = PluginRegistry(context, built_in_plugins, registered_csi_drivers, prober)
    registry.on_changed(lambda driver: …)        # a driver has appeared, changed or gone
    plugin = registry.find(pod_volume, persistent_volume)  # raises NoPluginMatched
    registry["kubernetes.io/csi"], registry["example.com/disks"]
    registry.describe()                          # what `volplane plugins` shows
    await registry.close()

A FlexVolume driver is a plugin of its own, named after the driver, as upstream. Its plugin stays when the
driver is replaced or removed: mounted volumes keep their plugin, and calls go to the driver that is loaded
then. CSI drivers are not plugins but registered with the built-in plugin `kubernetes.io/csi`; they appear in
`describe` and among the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from volplane.api.core import PersistentVolume, Volume
from volplane.base import clock
from volplane.base.tasks import TaskSet
from volplane.base.version import package_version
from volplane.volumes.base import NodeContext, VolumePlugin
from volplane.volumes.csi import RegisteredDriver, RegisteredDrivers
from volplane.volumes.flex.options import find_flex_volume
from volplane.volumes.flex.plugin import FAMILY, FlexVolumePlugin, find_drivers_on_disk
from volplane.volumes.flex.prober import FlexProber
from volplane.volumes.plugin_description import BUILT_IN, CSI, PluginDescription, describe_flex_drivers


class NoPluginMatched(Exception):
    """No plugin is for this volume. The text begins as upstream's, and names the plugins that were asked."""


class PluginRegistry:
    def __init__(
        self,
        context: NodeContext,
        built_in: Sequence[VolumePlugin],
        csi_drivers: RegisteredDrivers,
        flex: FlexProber,
    ) -> None:
        self.flex, self.csi_drivers = flex, csi_drivers
        self._context = context
        self._built_in = {plugin.name: plugin for plugin in built_in}
        self._flex_plugins: dict[str, FlexVolumePlugin] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._retries = TaskSet()
        self._started = clock.wall().timestamp()
        csi_drivers.on_changed(self._notify)
        self._unsubscribe = flex.subscribe(self._flex_changed)

    async def close(self) -> None:
        """Tell of no more changes."""
        self._unsubscribe()
        await self._retries.close()

    # --- changes

    def on_changed(self, listener: Callable[[str], None]) -> None:
        """Call the listener with the name of each driver that appears, is replaced, or goes."""
        self._listeners.append(listener)

    def _flex_changed(self, driver: str) -> None:
        # A failed `init` changes nothing for volumes; and who asks again then would have it called again.
        if driver not in self.flex.failed_drivers:
            self._notify(driver)

    def _notify(self, driver: str) -> None:
        for listener in self._listeners:
            listener(driver)

    # --- find

    def find(self, source: Volume, volume: PersistentVolume | None) -> VolumePlugin:
        """The plugin for a volume of a pod, or for the PersistentVolume behind its claim.

        Raises NoPluginMatched. A FlexVolume driver whose `init` has failed is tried again then, in the
        background; if that succeeds, the listeners are called.
        """
        flex = find_flex_volume(source, volume)
        asked = [*self._built_in.values(), *map(self._flex_plugin, self.flex.drivers)]
        for plugin in asked:
            if plugin.supports(source, volume):
                return plugin
        names = ", ".join(plugin.name for plugin in asked)
        text = f'no volume plugin matched for volume "{source.name}": asked {names}'
        if flex is None:
            raise NoPluginMatched(text)
        if flex.driver in self.flex.drivers:
            raise NoPluginMatched(f"{text}; FlexVolume has no block volumes")
        missing = self.flex.describe_missing(flex.driver)
        if flex.driver in self.flex.failed_drivers:
            self._retries.start(self.flex.retry(flex.driver), f"flexvolume {flex.driver}")
        raise NoPluginMatched(f"{text}; {missing}")

    def __getitem__(self, name: str) -> VolumePlugin:
        """A plugin by its name. A name that is not built in is that of a FlexVolume driver, loaded or not."""
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str) -> VolumePlugin | None:
        """None for a name of kubernetes.io that neither a built-in plugin nor a FlexVolume driver has."""
        if name in self._built_in:
            return self._built_in[name]
        if name.startswith("kubernetes.io/") and not self._is_known_flex(name):
            return None
        return self._flex_plugin(name)

    def _is_known_flex(self, name: str) -> bool:
        return name in self._flex_plugins or name in self.flex.drivers or name in self.flex.failed_drivers

    def __iter__(self) -> Iterator[VolumePlugin]:
        """Every plugin that a volume may have."""
        return iter([*self._built_in.values(), *self._flex_plugins.values()])

    async def find_plugins_on_disk(self) -> list[VolumePlugin]:
        """Every plugin that may have volumes of before a restart, whether its driver is loaded or not."""
        paths = self._context.paths
        directory = paths.real(f"{paths.plugins}/{FAMILY}")
        drivers = await self._context.host.call(find_drivers_on_disk, directory)
        return [*self._built_in.values(), *map(self._flex_plugin, drivers)]

    def _flex_plugin(self, name: str) -> FlexVolumePlugin:
        if name not in self._flex_plugins:
            self._flex_plugins[name] = FlexVolumePlugin(self._context, name, self.flex.drivers)
        return self._flex_plugins[name]

    # --- describe

    def describe(self) -> list[PluginDescription]:
        """All plugins and drivers: built-in ones first, each kind by name. Calls no driver."""
        built_in = (self._describe_built_in(plugin) for plugin in self._built_in.values())
        registered = map(_describe_csi, self.csi_drivers)
        return [
            *sorted(built_in, key=_name),
            *describe_flex_drivers(self.flex),
            *sorted(registered, key=_name),
        ]

    def _describe_built_in(self, plugin: VolumePlugin) -> PluginDescription:
        capabilities = ("mountOptions",) if plugin.supports_mount_options else ()
        origin = type(plugin).__module__
        return PluginDescription(
            plugin.name, BUILT_IN, package_version(), capabilities, True, "", self._started, origin
        )


def _name(description: PluginDescription) -> str:
    return description.name


def _describe_csi(driver: RegisteredDriver) -> PluginDescription:
    return PluginDescription(
        driver.name,
        CSI,
        driver.version,
        driver.capability_names,
        not driver.failure,
        driver.failure,
        driver.registered_at,
        driver.endpoint,
    )
