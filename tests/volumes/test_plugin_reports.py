"""What CSI drivers tell about themselves when a user lists the plugins."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.volumes.test_plugin_registry import running
from volplane.csi.client import CsiChannel
from volplane.sdk import Driver, Local
from volplane.volumes import plugin_reports
from volplane.volumes.csi import RegisteredDriver
from volplane.volumes.plugin_description import PluginDescription
from volplane.volumes.plugin_reports import describe_plugins
from volplane.volumes.registry import PluginRegistry


class Disks(Driver):
    name, version = "disks.example.com", "2.3"


async def describe_driver(registry: PluginRegistry) -> PluginDescription:
    (found,) = [each for each in await describe_plugins(registry) if each.kind == "CSI"]
    return found


async def test_the_version_is_the_drivers_own_and_not_that_of_the_registration(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        channel = Local(Disks(), component="test")
        here.csi.add(RegisteredDriver(Disks.name, channel, version="1.0.0", endpoint="/csi.sock"))
        found = await describe_driver(here.registry)
        assert (found.name, found.version, found.origin) == ("disks.example.com", "2.3", "/csi.sock")
        assert found.healthy
        names = [each.name for each in await describe_plugins(here.registry)]
        assert names == [each.name for each in here.registry.describe()]


async def test_a_driver_that_is_gone_is_not_healthy_until_it_answers_again(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        gone = CsiChannel(str(tmp_path / "csi.sock"), component="test")
        driver = RegisteredDriver(Disks.name, gone, version="1.0.0")
        here.csi.add(driver)
        found = await describe_driver(here.registry)
        assert (found.version, found.healthy) == ("", False)
        assert "Unavailable" in found.message
        assert not here.registry.describe()[-1].healthy
        driver.channel = Local(Disks(), component="test")
        found = await describe_driver(here.registry)
        assert (found.version, found.healthy, found.message) == ("2.3", True, "")
        await gone.close()


async def test_a_driver_that_hangs_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_reports, "ANSWER_TIMEOUT", 0.05)

    class Hanging(Local):
        async def call(self, *_: object, **__: object) -> None:
            await asyncio.Event().wait()

    async with running(tmp_path) as here:
        here.csi.add(RegisteredDriver(Disks.name, Hanging(Disks(), component="test")))
        here.csi.add(RegisteredDriver("other.example.com", Local(Disks(), component="test")))
        hanging, other = [each for each in await describe_plugins(here.registry) if each.kind == "CSI"]
        assert hanging.message == "no answer to GetPluginInfo within 0.05s"
        assert (hanging.healthy, other.healthy) == (False, True)
