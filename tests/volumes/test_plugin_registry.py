"""The registry of a node's volume plugins: what it finds, what it tells, and how it describes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.loops.inprocess import world
from tests.support.flex_script import DRIVER, FlexScript
from volplane.api.core import (
    EmptyDirVolumeSource,
    FlexPersistentVolumeSource,
    FlexVolumeSource,
    PersistentVolume,
    PersistentVolumeSpec,
    Volume,
)
from volplane.api.meta import ObjectMeta
from volplane.client.client import Client
from volplane.csi.outcome import CallError, Code
from volplane.host import Host, NodePaths
from volplane.sdk import Driver, Local
from volplane.volumes.base import NodeContext
from volplane.volumes.csi import RegisteredDriver, RegisteredDrivers
from volplane.volumes.emptydir import EmptyDirPlugin
from volplane.volumes.flex.prober import FlexProber
from volplane.volumes.hostpath import HostPathPlugin
from volplane.volumes.registry import NoPluginMatched, PluginRegistry

FLEX = Volume(name="data", flex_volume=FlexVolumeSource(driver=DRIVER))


class Registry:
    """A registry at work, its FlexVolume driver, and what its listener was told."""

    def __init__(self, directory: Path, client: Client) -> None:
        self.host, self.csi = Host(), RegisteredDrivers()
        self.script = FlexScript(directory / "exec", directory / "home")
        context = NodeContext("worker-1", self.host, NodePaths(str(directory / "node")), client)
        built_in = (EmptyDirPlugin(context), HostPathPlugin(context))
        self.prober = FlexProber(str(directory / "exec"), self.host)
        self.registry = PluginRegistry(context, built_in, self.csi, self.prober)
        self.told: list[str] = []
        self._changed = asyncio.Event()
        self.registry.on_changed(self._listen)

    def _listen(self, driver: str) -> None:
        self.told.append(driver)
        self._changed.set()

    async def until_told(self, *drivers: str) -> None:
        async with asyncio.timeout(30):
            while self.told != list(drivers):
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Registry]:
    async with world() as around:
        made = Registry(directory, around.client)
        task = asyncio.create_task(made.prober.run())
        try:
            await made.registry.flex.wait_loaded()
            yield made
        finally:
            await made.registry.close()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await made.host.close()


async def test_a_built_in_plugin_is_found_by_its_source_and_its_name(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        found = here.registry.find(Volume(name="tmp", empty_dir=EmptyDirVolumeSource()), None)
        assert found is here.registry["kubernetes.io/empty-dir"]
        assert here.registry.get("kubernetes.io/other") is None
        with pytest.raises(KeyError):
            here.registry["kubernetes.io/other"]


async def test_a_flexvolume_driver_is_a_plugin_that_outlives_its_executable(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        plugin = here.registry[DRIVER]  # as a volume from before a restart has it
        with pytest.raises(NoPluginMatched):
            here.registry.find(FLEX, None)
        here.script.install()
        await here.until_told(DRIVER)
        assert here.registry.find(FLEX, None) is plugin
        here.script.remove()
        await here.until_told(DRIVER, DRIVER)
        assert here.registry[DRIVER] is plugin
        assert plugin in here.registry


async def test_a_volume_without_plugin_names_those_that_were_asked(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        asked = "asked kubernetes.io/empty-dir, kubernetes.io/host-path"
        with pytest.raises(NoPluginMatched) as error:
            here.registry.find(Volume(name="x"), None)
        assert str(error.value) == f'no volume plugin matched for volume "x": {asked}'
        with pytest.raises(NoPluginMatched) as error:
            here.registry.find(FLEX, None)
        where = f"{tmp_path}/exec/example.com~disks/disks"
        missing = f"FlexVolume driver {DRIVER} was not found at {where}"
        assert str(error.value) == f'no volume plugin matched for volume "data": {asked}; {missing}'


async def test_a_driver_whose_init_failed_is_tried_again_when_a_volume_needs_it(tmp_path: Path) -> None:
    home = FlexScript(tmp_path / "exec", tmp_path / "home")
    home.fail("init", "no licence")
    home.install()
    async with running(tmp_path) as here:
        (description,) = [d for d in here.registry.describe() if d.kind == "FlexVolume"]
        assert not description.healthy
        assert description.message == "init command failed, status: Failure, reason: no licence"
        here.script.work("init")
        with pytest.raises(NoPluginMatched, match="no licence"):
            here.registry.find(FLEX, None)
        await here.until_told(DRIVER)
        assert here.registry.find(FLEX, None).name == DRIVER


async def test_block_volumes_are_not_for_flexvolume(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        here.script.install()
        await here.until_told(DRIVER)
        source = FlexPersistentVolumeSource(driver=DRIVER)
        spec = PersistentVolumeSpec(flex_volume=source, volume_mode="Block")
        volume = PersistentVolume(metadata=ObjectMeta(name="pv"), spec=spec)
        with pytest.raises(NoPluginMatched, match="no block volumes"):
            here.registry.find(Volume(name="data"), volume)


async def test_describe_lists_every_kind_with_its_health(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        here.script.install(attach=False, supportsMetrics=True)
        await here.until_told(DRIVER)
        csi = RegisteredDriver("csi.example.com", Local(Driver(), component="test"), endpoint="/csi.sock")
        here.csi.add(csi)
        assert here.told[-1] == "csi.example.com"
        built_in, _, flex, registered = here.registry.describe()
        assert (built_in.name, built_in.kind) == ("kubernetes.io/empty-dir", "built-in")
        assert built_in.origin == "volplane.volumes.emptydir"
        assert flex.origin == str(here.script.path)
        assert flex.capabilities == ("selinuxRelabel", "supportsMetrics", "fsGroup", "requiresFSResize")
        assert (registered.name, registered.kind, registered.origin) == (
            "csi.example.com",
            "CSI",
            "/csi.sock",
        )
        assert all(d.healthy and d.since > 1.7e9 for d in here.registry.describe())
        csi.failure = str(CallError(Code.UNAVAILABLE, "connection refused"))
        assert "connection refused" in here.registry.describe()[-1].message
        assert not here.registry.describe()[-1].healthy
        here.csi.remove("csi.example.com")
        assert here.told[-2:] == ["csi.example.com", "csi.example.com"]


async def test_volumes_on_disk_have_their_plugins_before_any_driver_is_loaded(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        family = tmp_path / "node/plugins/kubernetes.io/flexvolume"
        for path in ("plain/mounts/pv-1", "example.com/disks/attached", "example.com/other"):
            (family / path).mkdir(parents=True)
        (family / "example.com/disks/attached/pv-2.json").write_text("{}")
        plugins = {plugin.name: plugin for plugin in await here.registry.find_plugins_on_disk()}
        assert {"plain", DRIVER} < set(plugins)
        assert "example.com/other" not in plugins
        assert [v.unique_name for v in await plugins["plain"].find_staged_volumes()] == ["plain/pv-1"]
        assert plugins["plain"].may_be_attached("plain/pv-1")
        assert [v.name for v in await plugins[DRIVER].find_attached_volumes()] == ["pv-2"]


async def test_a_directory_that_cannot_be_made_is_reported_and_nothing_else_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "exec").write_text("not a directory")
    async with running(tmp_path) as here:
        found = here.registry.find(Volume(name="tmp", empty_dir=EmptyDirVolumeSource()), None)
        assert found.name == "kubernetes.io/empty-dir"
    reported = [r.getMessage() for r in caplog.records]
    assert len(reported) == 1
    assert reported[0].startswith(f"no FlexVolume drivers are used: {tmp_path}/exec cannot be watched")


async def test_a_flex_driver_may_have_a_name_of_kubernetes(tmp_path: Path) -> None:
    FlexScript(tmp_path / "exec", tmp_path / "lvm", "kubernetes.io/lvm").install()
    async with running(tmp_path) as here:
        found = here.registry.find(
            Volume(name="v", flex_volume=FlexVolumeSource(driver="kubernetes.io/lvm")), None
        )
        assert here.registry["kubernetes.io/lvm"] is found
        assert here.registry.get("kubernetes.io/other") is None
