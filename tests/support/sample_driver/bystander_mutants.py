"""Variants of the sample driver that change what a call does not name, or leave something, one bug each."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.sample_driver.driver import SampleDriver, grow_file
from tests.support.sample_driver.full import FullDriver
from volplane.csi import v1
from volplane.host import copies
from volplane.host.mounts import read_table, unmount


class OpensItsRoot(SampleDriver):
    """Lets everybody write to the volume whenever it is published."""

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        reply = await super().node_publish_volume(request)
        if not request.readonly and request.volume_capability.HasField("mount"):
            os.chmod(request.target_path, 0o777)
        return reply


class RemovesHiddenFiles(SampleDriver):
    """Removes its own hidden files before it unmounts, and those of others."""

    async def node_unstage_volume(self, request: v1.NodeUnstageVolumeRequest) -> v1.NodeUnstageVolumeResponse:
        if await self.host.is_mount(request.staging_target_path):
            await self.host.call(_remove_hidden_files, request.staging_target_path)
        return await super().node_unstage_volume(request)


def _remove_hidden_files(root: str) -> None:
    for path in Path(root).glob(".*"):
        path.unlink()


class DeletesSimilarNames(SampleDriver):
    """Names its files like the volumes, and deletes all that begin with a name."""

    def id_for(self, name: str) -> str:
        return f"vol-{name}"

    def delete_files(self, id: str) -> None:
        for path in self.root.glob(f"{os.path.basename(id)}*"):
            path.unlink()


class UnpublishesSimilarTargets(SampleDriver):
    """Looks for the mounts of a pod by the beginning of their paths."""

    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        pods, _, path = request.target_path.partition("/pods/")
        pod = f"{pods}/pods/{path.split('/')[0]}"
        for entry in read_table():
            if entry.target.startswith(pod):
                await self.host.call(unmount, entry.target)
        return await super().node_unpublish_volume(request)


class RemovesTheParent(SampleDriver):
    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        reply = await super().node_unpublish_volume(request)
        await self.host.call(shutil.rmtree, os.path.dirname(request.target_path), True)
        return reply


class RemountsTheVolume(SampleDriver):
    """Makes the whole file system read-only for one target."""

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        reply = await super().node_publish_volume(request)
        if request.readonly:
            await self.host.run(["mount", "-o", "remount,ro", request.staging_target_path])
        return reply


class RemountsTheTarget(SampleDriver):
    """Not a bug: binds the target, and makes it read-only afterwards, as the mount program does."""

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        readonly, request.readonly = request.readonly, False
        reply = await super().node_publish_volume(request)
        if readonly:
            await self.host.run(["mount", "-o", "remount,bind,ro", request.target_path])
        return reply


class TrustsItsRecords(SampleDriver):
    """Stores that a volume is staged, and believes it after the node has started again."""

    async def node_stage_volume(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        record = self._record(request.volume_id)
        if record.exists():
            return v1.NodeStageVolumeResponse()
        reply = await super().node_stage_volume(request)
        record.touch()
        return reply

    async def node_unstage_volume(self, request: v1.NodeUnstageVolumeRequest) -> v1.NodeUnstageVolumeResponse:
        reply = await super().node_unstage_volume(request)
        self._record(request.volume_id).unlink(missing_ok=True)
        return reply

    def _record(self, id: str) -> Path:
        return self.root / f".{id}.{self.node}.staged"


class NeverStartsAgain(SampleDriver):
    """Ends if it was killed while a volume was staged, as with a state file that is only written in part."""

    async def start(self) -> None:
        await super().start()
        if self._marks():
            raise SystemExit("the state file is incomplete")

    def _marks(self) -> list[Path]:
        return list(self.root.glob(f".*.{self.node}.staging"))

    async def node_stage_volume(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        reply = await super().node_stage_volume(request)
        (self.root / f".{request.volume_id}.{self.node}.staging").touch()
        return reply

    async def node_unstage_volume(self, request: v1.NodeUnstageVolumeRequest) -> v1.NodeUnstageVolumeResponse:
        for mark in self._marks():
            mark.unlink()
        return await super().node_unstage_volume(request)


class BreaksCopies(SampleDriver):
    """Copies share blocks with their source, and lose them with it."""

    def delete_files(self, id: str) -> None:
        if self.find_record(id) is not None:
            for copy, record in self.list_records("vol"):
                if id in record.get("source", ()):
                    self._erase(copy, record)
        super().delete_files(id)

    def _erase(self, id: str, record: dict[str, Any]) -> None:
        os.truncate(self.image(id), 0)
        grow_file(self.image(id), record["size"])


class StaysFrozen(SampleDriver):
    """Freezes the file system for a snapshot, and thaws it only if that succeeds."""

    async def create_snapshot(self, request: v1.CreateSnapshotRequest) -> v1.CreateSnapshotResponse:
        devices = await self.devices(request.source_volume_id)
        mounts = [entry.target for entry in read_table() if entry.source in devices]
        if not mounts:
            return await super().create_snapshot(request)
        await self.host.run(["fsfreeze", "--freeze", mounts[0]])
        reply = await super().create_snapshot(request)
        await self.host.call(copies.thaw, mounts[0])
        return reply


class LeavesData(SampleDriver):
    """Deletes the record of a volume, and not its data."""

    def delete_files(self, id: str) -> None:
        with suppress(FileNotFoundError):
            (self.root / f"{os.path.basename(id)}.json").unlink()


class PublishesSecrets(SampleDriver):
    """Gives the node the secret by way of the volume's context, which the cluster stores."""

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        reply = await super().create_volume(request)
        reply.volume.volume_context.update({f"login/{key}": value for key, value in request.secrets.items()})
        return reply


class LeavesZombies(SampleDriver):
    """Starts a program, and does not wait for its end."""

    def __init__(self, root: str, node: str) -> None:
        super().__init__(root, node)
        self._programs: list[subprocess.Popen[bytes]] = []  # Python waits for those that nobody refers to

    async def node_stage_volume(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        self._programs.append(await self.host.call(subprocess.Popen, ["true"]))
        return await super().node_stage_volume(request)


class IgnoresTheSource(FullDriver):
    """Lists all snapshots, whatever their volume is."""

    async def list_snapshots(self, request: v1.ListSnapshotsRequest) -> v1.ListSnapshotsResponse:
        request.source_volume_id = ""
        return await super().list_snapshots(request)


BYSTANDER_MUTANTS: Mapping[str, type[SampleDriver]] = {
    "opens-its-root": OpensItsRoot,
    "removes-hidden-files": RemovesHiddenFiles,
    "deletes-similar-names": DeletesSimilarNames,
    "unpublishes-similar-targets": UnpublishesSimilarTargets,
    "removes-the-parent": RemovesTheParent,
    "remounts-the-volume": RemountsTheVolume,
    "remounts-the-target": RemountsTheTarget,
    "trusts-its-records": TrustsItsRecords,
    "never-starts-again": NeverStartsAgain,
    "restored-needs-snapshot": BreaksCopies,
    "clone-needs-source": BreaksCopies,
    "stays-frozen": StaysFrozen,
    "leaves-data": LeavesData,
    "publishes-secrets": PublishesSecrets,
    "leaves-zombies": LeavesZombies,
    "ignores-the-source": IgnoresTheSource,
}
