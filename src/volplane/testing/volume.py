"""A volume under test: its calls, and where it is attached, staged and published.

Paths are those of a kubelet, below the node's directory. As the specification says, the caller creates the
staging directory and the target's parent, and the driver creates the target.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from volplane.csi import v1
from volplane.csi.outcome import CallError, Code
from volplane.testing.case import NotSupported, require

if TYPE_CHECKING:
    from volplane.testing.socket_env import DriverSocket, SocketEnv

BLOCK_OFFSET = 1 << 20  # position of the data on a raw device
DATA_FILE = "data"


class VolumeUnderTest:
    def __init__(
        self, env: SocketEnv, request: v1.CreateVolumeRequest, capability: v1.VolumeCapability
    ) -> None:
        self.env, self.request, self.capability = env, request, capability
        self.made = v1.Volume()
        self.attached: dict[str, tuple[DriverSocket, dict[str, str]]] = {}
        self.staged: dict[str, DriverSocket] = {}  # by path
        self.targets: dict[str, DriverSocket] = {}
        self.deleted = False

    @property
    def id(self) -> str:
        return self.made.volume_id

    @property
    def block(self) -> bool:
        return self.capability.HasField("block")

    # --- requests

    def publish_request(
        self, node: DriverSocket, *, readonly: bool = False
    ) -> v1.ControllerPublishVolumeRequest:
        return v1.ControllerPublishVolumeRequest(
            volume_id=self.id,
            node_id=node.id,
            volume_capability=self.capability,
            readonly=readonly,
            secrets=self.env.secrets,
            volume_context=self.made.volume_context,
        )

    def stage_request(self, node: DriverSocket) -> v1.NodeStageVolumeRequest:
        return v1.NodeStageVolumeRequest(
            volume_id=self.id,
            publish_context=self.context(node),
            staging_target_path=self.staging(node),
            volume_capability=self.capability,
            secrets=self.env.secrets,
            volume_context=self.made.volume_context,
        )

    def mount_request(
        self, node: DriverSocket, target: str, *, readonly: bool = False
    ) -> v1.NodePublishVolumeRequest:
        return v1.NodePublishVolumeRequest(
            volume_id=self.id,
            publish_context=self.context(node),
            staging_target_path=self.staging(node) if self.env.capabilities.has("stage") else "",
            target_path=target,
            volume_capability=self.capability,
            readonly=readonly,
            secrets=self.env.secrets,
            volume_context=self.made.volume_context,
        )

    def context(self, node: DriverSocket) -> dict[str, str]:
        return self.attached[node.id][1] if node.id in self.attached else {}

    def staging(self, node: DriverSocket) -> str:
        """The kubelet's staging path, which exists; raw devices have another one with the same purpose."""
        path = self.staging_path(node)
        os.makedirs(path, exist_ok=True)
        return path

    def staging_path(self, node: DriverSocket) -> str:
        name = hashlib.sha256((self.id or self.request.name).encode()).hexdigest()
        return f"{node.root}/plugins/kubernetes.io/csi/{self.env.capabilities.name}/{name}/globalmount"

    def target(self, node: DriverSocket, pod: str = "a") -> str:
        """The kubelet's target path, whose parent exists."""
        path = self.target_path(node, pod)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def target_path(self, node: DriverSocket, pod: str) -> str:
        name = "dev" if self.block else "mount"
        return f"{node.root}/pods/{pod}/volumes/kubernetes.io~csi/{self.request.name}/{name}"

    # --- create, attach, stage, publish

    async def create(self) -> v1.Volume:
        reply = await self.env.controller.call("CreateVolume", self.request)
        self.made = reply.volume
        return self.made

    async def attach(self, node: DriverSocket, *, readonly: bool = False) -> dict[str, str]:
        if not self.env.capabilities.has("attach"):
            return {}
        request = self.publish_request(node, readonly=readonly)
        self.attached.setdefault(node.id, (node, {}))
        reply = await self.env.controller.call("ControllerPublishVolume", request)
        self.attached[node.id] = (node, dict(reply.publish_context))
        return dict(reply.publish_context)

    async def stage(self, node: DriverSocket) -> None:
        if self.env.capabilities.has("stage"):
            request = self.stage_request(node)
            self.staged[request.staging_target_path] = node
            await node.call("NodeStageVolume", request)

    async def publish(self, node: DriverSocket, pod: str = "a", *, readonly: bool = False) -> str:
        """Publish the volume; returns the target path."""
        target = self.target(node, pod)
        self.targets[target] = node
        await node.call("NodePublishVolume", self.mount_request(node, target, readonly=readonly))
        return target

    async def attach_stage_publish(self, node: DriverSocket) -> str:
        await self.attach(node)
        await self.stage(node)
        return await self.publish(node)

    # --- unpublish, unstage, detach, delete

    async def unpublish(self, node: DriverSocket, pod: str = "a") -> None:
        await self._unpublish(node, self.target(node, pod))

    async def _unpublish(self, node: DriverSocket, target: str) -> None:
        request = v1.NodeUnpublishVolumeRequest(volume_id=self.id, target_path=target)
        await node.call("NodeUnpublishVolume", request)
        self.targets.pop(target, None)

    async def unstage(self, node: DriverSocket) -> None:
        await self._unstage(node, self.staging(node))

    async def _unstage(self, node: DriverSocket, path: str) -> None:
        if self.env.capabilities.has("stage"):
            request = v1.NodeUnstageVolumeRequest(volume_id=self.id, staging_target_path=path)
            await node.call("NodeUnstageVolume", request)
            self.staged.pop(path, None)

    async def detach(self, node: DriverSocket) -> None:
        if self.env.capabilities.has("attach"):
            request = v1.ControllerUnpublishVolumeRequest(
                volume_id=self.id, node_id=node.id, secrets=self.env.secrets
            )
            await self.env.controller.call("ControllerUnpublishVolume", request)
            self.attached.pop(node.id, None)

    async def delete(self) -> None:
        request = v1.DeleteVolumeRequest(volume_id=self.id, secrets=self.env.secrets)
        await self.env.controller.call("DeleteVolume", request)
        self.made, self.deleted = v1.Volume(), True

    async def unpublish_unstage_detach(self, node: DriverSocket) -> None:
        await self.unpublish(node)
        await self.unstage(node)
        await self.detach(node)

    async def take_down_and_delete(self, node: DriverSocket) -> None:
        await self.unpublish_unstage_detach(node)
        await self.delete()

    async def remove(self) -> list[str]:
        """Remove the volume in any state; returns what failed."""
        problems: list[str] = []
        if not self.id:
            return await self._remove_unknown()
        for target, node in list(self.targets.items()):
            request = v1.NodeUnpublishVolumeRequest(volume_id=self.id, target_path=target)
            problems += await _try_call(node, "NodeUnpublishVolume", request)
        for path, node in list(self.staged.items()):
            stage = v1.NodeUnstageVolumeRequest(volume_id=self.id, staging_target_path=path)
            problems += await _try_call(node, "NodeUnstageVolume", stage)
        for node, _ in list(self.attached.values()):
            detach = v1.ControllerUnpublishVolumeRequest(
                volume_id=self.id, node_id=node.id, secrets=self.env.secrets
            )
            problems += await _try_call(self.env.controller, "ControllerUnpublishVolume", detach)
        return problems + await self._delete_by_force()

    async def _delete_by_force(self) -> list[str]:
        delete = v1.DeleteVolumeRequest(volume_id=self.id, secrets=self.env.secrets)
        return await _try_call(self.env.controller, "DeleteVolume", delete)

    async def _remove_unknown(self) -> list[str]:
        """Repeat a disturbed CreateVolume to learn the volume's id, and delete it."""
        if self.deleted:
            return []
        try:
            reply = await self.env.controller.call_until_settled("CreateVolume", self.request)
        except (CallError, NotSupported):
            return []  # the volume was never created
        delete = v1.DeleteVolumeRequest(volume_id=reply.volume.volume_id, secrets=self.env.secrets)
        return await _try_call(self.env.controller, "DeleteVolume", delete)

    # --- data

    async def write(self, path: str, data: bytes, name: str = DATA_FILE) -> None:
        """Write and sync."""
        await self.env.host.call(_write, path, data, "" if self.block else name)

    async def read(self, path: str, size: int = 1 << 20, name: str = DATA_FILE) -> bytes:
        return await self.env.host.call(read_data, path, size, "" if self.block else name)

    async def expect_data(self, path: str, data: bytes, when: str, *, section: str = "") -> None:
        """Raise CaseFailure unless the volume has the data."""
        found = await self.read(path, len(data))
        require(
            checksum(found) == checksum(data),
            f"the data is not what was written, {when}: {len(found)} bytes, sha256 {checksum(found)[:16]};"
            f" written were {len(data)}, sha256 {checksum(data)[:16]}",
            section=section,
        )


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(path: str, data: bytes, name: str) -> None:
    """Write a file of the volume; without a name, the device itself."""
    flags = os.O_WRONLY | (os.O_CREAT | os.O_TRUNC if name else 0)
    descriptor = os.open(os.path.join(path, name) if name else path, flags, 0o644)
    try:
        os.pwrite(descriptor, data, 0 if name else BLOCK_OFFSET)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_data(path: str, size: int, name: str) -> bytes:
    """Read a file of the volume; without a name, the device itself."""
    if name:
        try:
            return Path(path, name).read_bytes()
        except FileNotFoundError:
            return b""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, size, BLOCK_OFFSET)
    finally:
        os.close(descriptor)


async def _try_call(remote: DriverSocket, method: str, request: Any) -> list[str]:
    try:
        await remote.call_until_settled(method, request)
    except CallError as error:
        return [] if error.code is Code.NOT_FOUND else [f"{method}: {error}"]
    return []
