"""Variants of the sample driver with one bug each, as found in real drivers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.sample_driver.bystander_mutants import BYSTANDER_MUTANTS
from tests.support.sample_driver.careless_mutants import CARELESS_MUTANTS
from tests.support.sample_driver.directory_mutants import DIRECTORY_MUTANTS
from tests.support.sample_driver.driver import SampleDriver, key_of
from tests.support.sample_driver.full import FullDriver
from tests.support.sample_driver.full_mutants import FULL_MUTANTS
from tests.support.sample_driver.sequence_mutants import SEQUENCE_MUTANTS
from tests.support.sample_driver.size_mutants import SIZE_MUTANTS
from volplane import sdk
from volplane.csi import v1
from volplane.host import filesystems
from volplane.sdk import errors


class NotIdempotent(SampleDriver):
    """Creates another volume each time."""

    def id_for(self, name: str) -> str:
        return super().id_for(f"{name}-{sum(1 for _ in self.list_records('vol'))}")


class LosesPublishContext(SampleDriver):
    """Returns an empty publish context for a repeated attach."""

    async def controller_publish_volume(
        self, request: v1.ControllerPublishVolumeRequest
    ) -> v1.ControllerPublishVolumeResponse:
        done = request.node_id in (self.find_record(request.volume_id) or {}).get("nodes", [])
        reply = await super().controller_publish_volume(request)
        return v1.ControllerPublishVolumeResponse() if done else reply


class FormatsTwice(SampleDriver):
    """Formats the device at every stage."""

    async def format(self, device: str, request: v1.NodeStageVolumeRequest) -> None:
        if not await self.host.is_mount(request.staging_target_path):
            await self.host.run(["wipefs", "-a", device])
            await self.host.call(filesystems.mkfs, device, "ext4")
        await super().format(device, request)


class LeaksAMount(SampleDriver):
    """Mounts the file system a second time and never unmounts it."""

    async def node_stage_volume(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        reply = await super().node_stage_volume(request)
        if not request.volume_capability.HasField("block"):
            own = os.path.join(os.path.dirname(request.staging_target_path), "own")
            if not await self.host.is_mount(own):
                await self.host.call(os.makedirs, own, exist_ok=True)
                await self.host.bind(request.staging_target_path, own)
        return reply

    async def release(self, id: str) -> None:
        """Do nothing: the device is busy."""


class WrongCode(SampleDriver):
    """Returns another code than NOT_FOUND for an unknown volume."""

    def get_record(self, id: str) -> dict[str, Any]:
        try:
            return super().get_record(id)
        except errors.NotFound as error:
            raise errors.Internal(error.message) from None


class Deadlocks(SampleDriver):
    """Deadlocks with two concurrent calls."""

    def __init__(self, root: str, node: str) -> None:
        super().__init__(root, node)
        self._under_way = 0

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        self._under_way += 1
        try:
            await asyncio.sleep(0.02)
            if self._under_way > 1:  # the other call waits for this one, too
                await asyncio.get_running_loop().create_future()
            return await super().create_volume(request)
        finally:
            self._under_way -= 1


class ForgetsSecrets(SampleDriver):
    """Stores keys in memory instead of reading them from each request."""

    def __init__(self, root: str, node: str) -> None:
        super().__init__(root, node)
        self._keys: dict[str, str] = {}

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        reply = await super().create_volume(request)
        self._keys[reply.volume.volume_id] = key_of(request.secrets)
        return reply

    async def node_stage_volume(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        if self.get_record(request.volume_id)["key"] and not self._keys.get(request.volume_id):
            raise errors.PermissionDenied(f"no key is known for {request.volume_id}")
        return await super().node_stage_volume(request)


class IgnoresReadOnly(SampleDriver):
    def is_readonly(self, request: v1.NodePublishVolumeRequest) -> bool:
        return False


class WrongCapacity(SampleDriver):
    """Reports a wrong size."""

    def reported_size(self, size: int) -> int:
        return size - 4096


class UnstageRemovesData(SampleDriver):
    async def node_unstage_volume(self, request: v1.NodeUnstageVolumeRequest) -> v1.NodeUnstageVolumeResponse:
        if await self.host.is_mount(request.staging_target_path):
            for name in os.listdir(request.staging_target_path):
                if name != "lost+found":
                    os.unlink(os.path.join(request.staging_target_path, name))
        return await super().node_unstage_volume(request)


class SnapshotIsLate(SampleDriver):
    """Copies the volume when the snapshot is restored, not when it is taken."""

    async def copy_snapshot(self, volume: str, snapshot: str) -> None:
        os.symlink(self.image(volume), self.image(snapshot))


class DoubleAttach(SampleDriver):
    def check_nodes(self, nodes: list[str], request: v1.ControllerPublishVolumeRequest) -> None:
        """Allow every node."""


class ForgetsAttachments(SampleDriver):
    """Forgets attachments when it restarts."""

    async def start(self) -> None:
        await super().start()
        for id, note in self.list_records("vol"):
            self.save_record(id, {**note, "nodes": []})

    async def node_stage_volume(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        if self.node not in self.get_record(request.volume_id).get("nodes", []):
            raise errors.FailedPrecondition(f"{request.volume_id} is not attached")
        return await super().node_stage_volume(request)


class RefusesWhatIsPublished(SampleDriver):
    """Refuses to publish a volume that is already published."""

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        if await self.host.is_mount(request.target_path):
            raise errors.Internal(f"{request.target_path} is in the way")
        return await super().node_publish_volume(request)


class KeepsTheDevice(SampleDriver):
    """Deletes the image, and leaves its loop device."""

    async def release(self, id: str) -> None:
        return None


class PublishesUnstaged(SampleDriver):
    """Bind-mounts the staging directory even if nothing is staged."""

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        if request.volume_capability.HasField("block"):
            return await super().node_publish_volume(request)
        await self.mounter.publish_directory(request.staging_target_path, request.target_path)
        return v1.NodePublishVolumeResponse()


class SharesNothing(SampleDriver):
    """Accepts several nodes, and gives each its own directory."""

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        for capability in request.volume_capabilities:
            capability.access_mode.mode = v1.VolumeCapability.AccessMode.SINGLE_NODE_WRITER
        return await super().create_volume(request)

    def check_nodes(self, nodes: list[str], request: v1.ControllerPublishVolumeRequest) -> None:
        """Allow every node."""

    async def node_stage_volume(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        return v1.NodeStageVolumeResponse()

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        own = str(self.root / f"{request.volume_id}.{self.node}")
        await self.host.call(os.makedirs, own, exist_ok=True)
        await self.mounter.publish_directory(own, request.target_path)
        return v1.NodePublishVolumeResponse()


MUTANTS: Mapping[str, Callable[[str, str], sdk.Driver]] = {
    "none": FullDriver,
    "not-idempotent": NotIdempotent,
    "loses-publish-context": LosesPublishContext,
    "formats-twice": FormatsTwice,
    "leaks-a-mount": LeaksAMount,
    "wrong-error-code": WrongCode,
    "deadlocks": Deadlocks,
    "forgets-secrets": ForgetsSecrets,
    "ignores-read-only": IgnoresReadOnly,
    "wrong-capacity": WrongCapacity,
    "unstage-removes-data": UnstageRemovesData,
    "snapshot-not-consistent": SnapshotIsLate,
    "double-attach": DoubleAttach,
    "forgets-attachments": ForgetsAttachments,
    "refuses-what-is-published": RefusesWhatIsPublished,
    "keeps-the-device": KeepsTheDevice,
    "publishes-unstaged": PublishesUnstaged,
    "shares-nothing": SharesNothing,
    **FULL_MUTANTS,
    **CARELESS_MUTANTS,
    **BYSTANDER_MUTANTS,
    **SIZE_MUTANTS,
    **DIRECTORY_MUTANTS,
    **SEQUENCE_MUTANTS,
}
