"""`python -m tests.support.static_driver ENDPOINT SHARED NODE [BUG]`: a driver without a controller.

A volume is a directory below SHARED; its context must have `tier`. BUG is one of

- `leaks`: an unpublished target stays mounted, and the answer is OK
- `once`: a volume that is staged is refused when it is staged again
- `forgets`: what is staged is known only to the process that staged it
- `writable`: `readonly` is ignored
- `logs`: requests are logged with their secrets
- `by-context` is none: volumes are found by their context, and ids do not matter
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

from tests.support.sample_driver import ROOT
from volplane import sdk
from volplane.csi import v1
from volplane.host import mounts
from volplane.sdk import errors


def command_line(bug: str = "", shared: str = "$SHARED_DIR") -> str:
    """For --driver-command."""
    python = f"PYTHONPATH={ROOT / 'src'}:{ROOT} {sys.executable} -m tests.support.static_driver"
    return f"{python} $CSI_ENDPOINT {shared} $NODE_ID {bug}".strip()


def check_mount(request: v1.NodePublishVolumeRequest) -> None:
    """Refuse what is not implemented, and a target that is published in another way."""
    if request.volume_capability.mount.mount_flags:
        raise errors.InvalidArgument("mount flags are not supported")
    if mounts.is_mount(request.target_path):
        is_readonly = bool(os.statvfs(request.target_path).f_flag & os.ST_RDONLY)
        if is_readonly != request.readonly:
            raise errors.AlreadyExists(f"{request.target_path} is published with another readonly")


class StaticDriver(sdk.Driver):
    name, version = "static.example.com", "1.0"

    def __init__(self, shared: str, node: str, bug: str = "") -> None:
        super().__init__()
        self.shared, self.node, self.bug = Path(shared), node, bug
        self.staged: set[str] = set()
        self.mounter = sdk.Mounter(sdk.Host())

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        return v1.NodeGetInfoResponse(node_id=self.node)

    async def node_stage_volume(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        if request.volume_context.get("tier") != "gold":
            raise errors.InvalidArgument("volume_context needs tier: gold")
        volume = self.shared / ("gold" if self.bug == "by-context" else request.volume_id)
        volume.mkdir(exist_ok=True)
        if not mounts.is_mount(request.staging_target_path):
            mounts.bind(str(volume), request.staging_target_path, readonly=False, recursive=False)
        elif self.bug == "once":
            raise errors.Internal(f"{request.volume_id} is staged")
        self.staged.add(request.volume_id)
        return v1.NodeStageVolumeResponse()

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        if self.bug == "logs":
            print(str(request).replace("\n", " "), file=sys.stderr, flush=True)
        if self.bug == "by-context":
            await self.node_stage_volume(
                v1.NodeStageVolumeRequest(
                    staging_target_path=request.staging_target_path, volume_context=request.volume_context
                )
            )
        if self.bug == "forgets" and request.volume_id not in self.staged:
            raise errors.FailedPrecondition(f"{request.volume_id} is not staged")
        if not mounts.is_mount(request.staging_target_path):
            raise errors.FailedPrecondition("the volume is not staged")
        check_mount(request)
        os.makedirs(request.target_path, exist_ok=True)
        if not mounts.is_mount(request.target_path):
            readonly = request.readonly and self.bug != "writable"
            mounts.bind(request.staging_target_path, request.target_path, readonly=readonly, recursive=False)
        return v1.NodePublishVolumeResponse()

    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        if self.bug != "leaks":
            mounts.unmount(request.target_path)
            with suppress(FileNotFoundError):
                os.rmdir(request.target_path)
        return v1.NodeUnpublishVolumeResponse()

    async def node_unstage_volume(self, request: v1.NodeUnstageVolumeRequest) -> v1.NodeUnstageVolumeResponse:
        mounts.unmount(request.staging_target_path)
        self.staged.discard(request.volume_id)
        return v1.NodeUnstageVolumeResponse()

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        return v1.NodeGetVolumeStatsResponse(usage=await self.mounter.usage(request.volume_path))


if __name__ == "__main__":
    endpoint, *rest = sys.argv[1:]
    asyncio.run(sdk.serve(StaticDriver(*rest), endpoint.removeprefix("unix://")))
