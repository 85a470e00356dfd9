"""`Mounter.usage` while the volume is being unpublished, and the other way round."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from volplane.host import FilesystemStats, Host
from volplane.host.mounts import unmount
from volplane.sdk.errors import NotFound
from volplane.sdk.mounting import Mounter

pytestmark = pytest.mark.root


class UnpublishingHost(Host):
    """Another call unmounts the target just before it is measured."""

    async def stats(self, path: str) -> FilesystemStats:
        await self.call(unmount, path)
        return await super().stats(path)


async def test_an_unpublished_volume_has_no_usage_of_its_parent(tmp_path: Path) -> None:
    source, target = tmp_path / "source", str(tmp_path / "target")
    source.mkdir()
    host = UnpublishingHost()
    mounter = Mounter(host)
    await mounter.publish_directory(str(source), target)
    with pytest.raises(NotFound, match="any more"):
        await mounter.usage(target)
    await mounter.unpublish(target)
    await host.close()


class BusyHost(Host):
    """Reading the numbers takes a while, with the target open."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open, self.may_close = asyncio.Event(), asyncio.Event()

    async def stats(self, path: str) -> FilesystemStats:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self.is_open.set()
        await self.may_close.wait()
        os.close(descriptor)
        return await super().stats(path)


async def test_an_unpublish_waits_while_the_usage_is_read(tmp_path: Path) -> None:
    source, target = tmp_path / "source", str(tmp_path / "target")
    source.mkdir()
    host = BusyHost()
    mounter = Mounter(host)
    await mounter.publish_directory(str(source), target)
    measured = asyncio.ensure_future(mounter.usage(target))
    await host.is_open.wait()
    unpublished = asyncio.ensure_future(mounter.unpublish(target))
    asyncio.get_running_loop().call_later(0.1, host.may_close.set)
    assert await measured
    await unpublished
    assert not (tmp_path / "target").exists()
    await host.close()
