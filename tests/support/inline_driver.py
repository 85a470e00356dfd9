"""`python -m tests.support.inline_driver ENDPOINT NODE [keeps]`: inline volumes, each a tmpfs.

With `keeps` it refuses to unmount. With `needs=KEY` it refuses volumes without this attribute.
"""

from __future__ import annotations

import asyncio
import os
import sys

from tests.support.sample_driver import ROOT
from tests.support.static_driver import check_mount
from volplane import sdk
from volplane.csi import v1
from volplane.host import mounts
from volplane.sdk import errors


def command_line(word: str = "") -> str:
    """For --driver-command."""
    python = f"PYTHONPATH={ROOT / 'src'}:{ROOT} {sys.executable} -m tests.support.inline_driver"
    return f"{python} $CSI_ENDPOINT $NODE_ID {word}".strip()


class InlineDriver(sdk.Driver):
    name, version = "inline.example.com", "1.0"

    def __init__(self, node: str, keeps: str = "") -> None:
        super().__init__()
        self.node, self.keeps = node, keeps == "keeps"
        self.needs = keeps.removeprefix("needs=") if keeps.startswith("needs=") else ""

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        return v1.NodeGetInfoResponse(node_id=self.node)

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        if self.needs and self.needs not in request.volume_context:
            raise errors.InvalidArgument(f"volume_context has no {self.needs}")
        check_mount(request)
        os.makedirs(request.target_path, exist_ok=True)
        if not mounts.is_mount(request.target_path):
            options = ["size=8m", *(["ro"] if request.readonly else [])]
            mounts.mount("tmpfs", request.target_path, "tmpfs", options)
        return v1.NodePublishVolumeResponse()

    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        if self.keeps:
            raise errors.Internal("it stays mounted")
        if mounts.unmount(request.target_path):
            os.rmdir(request.target_path)
        return v1.NodeUnpublishVolumeResponse()


if __name__ == "__main__":
    endpoint, *rest = sys.argv[1:]
    asyncio.run(sdk.serve(InlineDriver(*rest), endpoint.removeprefix("unix://")))
