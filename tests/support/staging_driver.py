"""`python -m tests.support.staging_driver ENDPOINT DIRECTORY NODE [SECONDS]`: shared directories, staged.

It attaches nothing, all nodes may use a volume, and every mount of a volume has the same superblock, as with
a network file system. A node knows a volume by its volume_context alone. `SECONDS`: how
long NodeUnstageVolume takes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

from tests.support.sample_driver import ROOT
from volplane import sdk
from volplane.csi import v1
from volplane.sdk import errors


def command_line(seconds: float = 0.0) -> str:
    """For --driver-command."""
    python = f"PYTHONPATH={ROOT / 'src'}:{ROOT} {sys.executable} -m tests.support.staging_driver"
    return f"{python} $CSI_ENDPOINT $SHARED_DIR $NODE_ID {seconds}"


class StagingDriver(sdk.Driver):
    name, version = "staging.example.com", "1.0"

    def __init__(self, root: str, node: str, seconds: float) -> None:
        super().__init__()
        self.root, self.node, self.seconds = Path(root), node, seconds
        self.host = sdk.Host()
        self.mounter = sdk.Mounter(self.host)

    async def stop(self) -> None:
        await self.host.close()

    def path(self, volume: str) -> str:
        return str(self.root / os.path.basename(volume))

    def check(self, volume: str) -> str:
        if not os.path.isdir(self.path(volume)):
            raise errors.NotFound(f"there is no volume {volume}")
        return self.path(volume)

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        if any(capability.HasField("block") for capability in request.volume_capabilities):
            raise errors.InvalidArgument("a directory is not a block device")
        os.makedirs(self.path(request.name), exist_ok=True)
        size = request.capacity_range.required_bytes
        volume = v1.Volume(
            volume_id=request.name, capacity_bytes=size, volume_context={"share": request.name}
        )
        return v1.CreateVolumeResponse(volume=volume)

    async def delete_volume(self, request: v1.DeleteVolumeRequest) -> v1.DeleteVolumeResponse:
        shutil.rmtree(self.path(request.volume_id), ignore_errors=True)
        return v1.DeleteVolumeResponse()

    async def validate_volume_capabilities(
        self, request: v1.ValidateVolumeCapabilitiesRequest
    ) -> v1.ValidateVolumeCapabilitiesResponse:
        self.check(request.volume_id)
        confirmed = v1.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_capabilities=request.volume_capabilities
        )
        return v1.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        return v1.NodeGetInfoResponse(node_id=self.node)

    async def node_stage_volume(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        if not request.volume_context:
            raise errors.InvalidArgument("volume_context.share is missing")
        source = self.check(request.volume_context["share"])
        await self.mounter.publish_directory(source, request.staging_target_path)
        return v1.NodeStageVolumeResponse()

    async def node_unstage_volume(self, request: v1.NodeUnstageVolumeRequest) -> v1.NodeUnstageVolumeResponse:
        await asyncio.sleep(self.seconds)
        await self.mounter.unstage(request.staging_target_path)
        return v1.NodeUnstageVolumeResponse()

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        if not request.volume_context:
            raise errors.InvalidArgument("volume_context.share is missing")
        self.check(request.volume_context["share"])
        await self.mounter.publish(
            request.staging_target_path, request.target_path, readonly=request.readonly
        )
        return v1.NodePublishVolumeResponse()

    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        await self.mounter.unpublish(request.target_path)
        return v1.NodeUnpublishVolumeResponse()


if __name__ == "__main__":
    endpoint, root, node, *seconds = sys.argv[1:]
    driver = StagingDriver(root, node, float(seconds[0]) if seconds else 0.0)
    asyncio.run(sdk.serve(driver, endpoint.removeprefix("unix://")))
