"""A CSI driver whose volumes are directories that all nodes share, like those of a file server."""

import asyncio
import hashlib
import os
import re
import shutil
import sys

from volplane import sdk
from volplane.sdk import errors, v1

GIB = 1 << 30
ID = re.compile("folder-[0-9a-f]{16}")


class Folders(sdk.Driver):
    name, version = "folders.example.com", "1.0"

    def __init__(self, root: str, node: str) -> None:
        super().__init__()
        self.root, self.node = root, node
        self.host = sdk.Host()
        self.mounter = sdk.Mounter(self.host)

    async def stop(self) -> None:
        await self.host.close()

    def path(self, volume: str) -> str:
        return os.path.join(self.root, volume)

    async def check(self, volume: str) -> None:
        # An id is any text, also "..": only those that this driver makes are used as paths.
        if not ID.fullmatch(volume) or not await self.host.call(os.path.isdir, self.path(volume)):
            raise errors.NotFound(f"there is no volume {volume}")

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        if any(capability.HasField("block") for capability in request.volume_capabilities):
            raise errors.InvalidArgument("a directory is not a block device")
        volume = f"folder-{hashlib.sha256(request.name.encode()).hexdigest()[:16]}"
        await self.host.call(os.makedirs, self.path(volume), 0o777, True)
        size = request.capacity_range.required_bytes or GIB
        return v1.CreateVolumeResponse(volume=v1.Volume(volume_id=volume, capacity_bytes=size))

    async def delete_volume(self, request: v1.DeleteVolumeRequest) -> v1.DeleteVolumeResponse:
        if ID.fullmatch(request.volume_id):
            await self.host.call(shutil.rmtree, self.path(request.volume_id), True)
        return v1.DeleteVolumeResponse()

    async def validate_volume_capabilities(
        self, request: v1.ValidateVolumeCapabilitiesRequest
    ) -> v1.ValidateVolumeCapabilitiesResponse:
        await self.check(request.volume_id)
        if any(capability.HasField("block") for capability in request.volume_capabilities):
            return v1.ValidateVolumeCapabilitiesResponse(message="a directory is not a block device")
        confirmed = v1.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_capabilities=request.volume_capabilities
        )
        return v1.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        return v1.NodeGetInfoResponse(node_id=self.node)

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        await self.check(request.volume_id)
        source = self.path(request.volume_id)
        await self.mounter.publish_directory(source, request.target_path, readonly=request.readonly)
        return v1.NodePublishVolumeResponse()

    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        await self.mounter.unpublish(request.target_path)
        return v1.NodeUnpublishVolumeResponse()


if __name__ == "__main__":
    endpoint, node, root = sys.argv[1:]
    asyncio.run(sdk.serve(Folders(root, node), endpoint.removeprefix("unix://")))
