"""`Mounter.usage` while the volume is being unpublished."""

from __future__ import annotations

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
