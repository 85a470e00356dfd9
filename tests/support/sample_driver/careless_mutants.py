"""Variants of the sample driver that lose data, tell secrets, ignore arguments or leak, one bug each."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import threading
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from tests.support.sample_driver.driver import GIB, SampleDriver
from tests.support.sample_driver.full import FullDriver
from tests.support.sample_driver.full_mutants import ZONE, Zoned
from volplane.csi import convert, v1
from volplane.host import filesystems
from volplane.host.mounts import unmount
from volplane.sdk import errors


class UnpublishDeletesBusyTarget(SampleDriver):
    """Ignores that the target cannot be unmounted, and deletes its directory with everything in it."""

    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        try:
            await self.mounter.unpublish(request.target_path)
        except errors.Internal:
            await self.host.call(shutil.rmtree, request.target_path, True)
        return v1.NodeUnpublishVolumeResponse()


class LazyUnpublish(SampleDriver):
    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        await self.host.call(unmount, request.target_path, detach=True)
        return await super().node_unpublish_volume(request)


class LazyUnstage(SampleDriver):
    async def node_unstage_volume(self, request: v1.NodeUnstageVolumeRequest) -> v1.NodeUnstageVolumeResponse:
        await self.host.call(unmount, request.staging_target_path, detach=True)
        return v1.NodeUnstageVolumeResponse()


class SwapsStats(SampleDriver):
    """Reports used as available, and available as used."""

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        reply = await super().node_get_volume_stats(request)
        for usage in reply.usage:
            usage.used, usage.available = usage.available, usage.used
        return reply


class StatsInBlocks(SampleDriver):
    """Reports blocks of 4 KiB as bytes."""

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        reply = await super().node_get_volume_stats(request)
        for usage in reply.usage:
            if usage.unit == v1.VolumeUsage.BYTES:
                usage.used, usage.available = usage.used // 4096, usage.available // 4096
                usage.total //= 4096
        return reply


class SharesItsFileSystem(SampleDriver):
    """Not a bug: another program frees as many bytes as are written first."""

    def __init__(self, root: str, node: str) -> None:
        super().__init__(root, node)
        self.first: v1.VolumeUsage | None = None

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        reply = await super().node_get_volume_stats(request)
        files = [name for name in os.listdir(request.volume_path) if name.startswith("file-")]
        for usage in reply.usage:
            if usage.unit == v1.VolumeUsage.BYTES:
                self.first = self.first or usage
                if all(name.startswith("file-0-") for name in files):
                    usage.CopyFrom(self.first)
        return reply


class StatsOfTheParent(SampleDriver):
    """Looks at the path some time after it has checked it: by then another file system may be there."""

    seconds = 0.1

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        reply = await super().node_get_volume_stats(request)
        await asyncio.sleep(self.seconds)
        await self.host.call(os.makedirs, request.volume_path, exist_ok=True)
        found = await self.host.stats(request.volume_path)
        reply.usage[0].total, reply.usage[0].available = found.capacity, found.available
        return reply


class SlowStatsOfTheParent(StatsOfTheParent):
    seconds = 2.0


class SlowStats(SampleDriver):
    """Counts for seconds, as a driver that asks a slow storage system."""

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        await asyncio.sleep(3.2)
        return await super().node_get_volume_stats(request)


class StatsHoldTheNode(SampleDriver):
    """One lock for all calls of a node, also while it counts."""

    def __init__(self, root: str, node: str) -> None:
        super().__init__(root, node)
        self._lock = asyncio.Lock()

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        async with self._lock:
            await asyncio.sleep(1.0)
            return await super().node_get_volume_stats(request)

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        async with self._lock:
            return await super().node_publish_volume(request)


class StatsTakeASecond(SampleDriver):
    """Not a bug: slow, and nothing waits for it."""

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        await asyncio.sleep(1.0)
        return await super().node_get_volume_stats(request)


class LeaksDescriptors(SampleDriver):
    async def node_stage_volume(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        os.open(os.path.dirname(request.staging_target_path), os.O_RDONLY)
        return await super().node_stage_volume(request)


class LeaksThreads(SampleDriver):
    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        threading.Thread(target=threading.Event().wait, daemon=True).start()  # watches the volume, for ever
        return await super().node_publish_volume(request)


class LogsSecrets(SampleDriver):
    async def node_stage_volume(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        print(f"NodeStageVolume {_one_line(request)}", file=sys.stderr, flush=True)
        return await super().node_stage_volume(request)


class TellsSecrets(SampleDriver):
    """Repeats the whole request in an error."""

    async def create_snapshot(self, request: v1.CreateSnapshotRequest) -> v1.CreateSnapshotResponse:
        try:
            return await super().create_snapshot(request)
        except errors.NotFound as error:
            raise errors.NotFound(f"{error.message}: {_one_line(request)}") from None


def _one_line(request: Message) -> str:
    return " ".join(str(request).split())


class IgnoresLimit(SampleDriver):
    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        request.capacity_range.limit_bytes = 0
        return await super().create_volume(request)

    def choose_size(self, wanted: v1.CapacityRange) -> int:
        return wanted.required_bytes or 5 * GIB


class NamesCollide(SampleDriver):
    """Replaces characters of a name that its storage does not allow."""

    def id_for(self, name: str) -> str:
        return super().id_for(re.sub(r"[^A-Za-z0-9]", "-", name))


class ConfirmsAnything(SampleDriver):
    async def validate_volume_capabilities(
        self, request: v1.ValidateVolumeCapabilitiesRequest
    ) -> v1.ValidateVolumeCapabilitiesResponse:
        reply = await super().validate_volume_capabilities(request)
        reply.confirmed.volume_capabilities.extend(request.volume_capabilities)
        return reply


class IgnoresMountFlags(SampleDriver):
    async def format(self, device: str, request: v1.NodeStageVolumeRequest) -> None:
        del request.volume_capability.mount.mount_flags[:]
        await super().format(device, request)


class IgnoresFileSystem(SampleDriver):
    async def format(self, device: str, request: v1.NodeStageVolumeRequest) -> None:
        request.volume_capability.mount.fs_type = "ext4"
        await super().format(device, request)


class FormatsAfterPowerLoss(SampleDriver):
    """Takes a file system that was not unmounted for a broken one, and makes a new one."""

    async def format(self, device: str, request: v1.NodeStageVolumeRequest) -> None:
        if not await self.host.is_mount(request.staging_target_path):
            found = await self.host.run(["dumpe2fs", "-h", device], check=False)
            if b"needs_recovery" in found.stdout:
                await self.host.run(["wipefs", "-a", device])
                await self.host.call(filesystems.mkfs, device, "ext4")
        await super().format(device, request)


class IgnoresOtherReadonly(SampleDriver):
    """A target that is mounted is a target that is right."""

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        if await self.host.is_mount(request.target_path):
            return v1.NodePublishVolumeResponse()
        return await super().node_publish_volume(request)


class IgnoresOtherFileSystem(SampleDriver):
    """A path that is mounted is a path that is right."""

    async def format(self, device: str, request: v1.NodeStageVolumeRequest) -> None:
        if not await self.host.is_mount(request.staging_target_path):
            await super().format(device, request)


class MovesItsTopology(Zoned):
    """Reports a volume in the zone of the node to which it was attached last, with a wrong idea of zones."""

    async def list_volumes(self, request: v1.ListVolumesRequest) -> v1.ListVolumesResponse:
        reply = await super().list_volumes(request)
        for entry in reply.entries:
            at = (self.find_record(entry.volume.volume_id) or {}).get("nodes", [])
            zone = dict.fromkeys(ZONE, "a" if at in ([], ["node-1"]) else "b")
            entry.volume.accessible_topology.append(convert.topology(zone))
        return reply


class SnapshotUndoesExpansion(FullDriver):
    """Writes the volume's record as it was before the snapshot."""

    async def create_snapshot(self, request: v1.CreateSnapshotRequest) -> v1.CreateSnapshotResponse:
        record: dict[str, Any] | None = self.find_record(request.source_volume_id)
        reply = await super().create_snapshot(request)
        if record is not None and "snapshot" not in record:
            await asyncio.sleep(0.05)
            self.save_record(request.source_volume_id, {**record, "snapshot": reply.snapshot.snapshot_id})
        return reply


class LocalTime(SampleDriver):
    """Takes the local time for UTC."""

    async def create_snapshot(self, request: v1.CreateSnapshotRequest) -> v1.CreateSnapshotResponse:
        reply = await super().create_snapshot(request)
        reply.snapshot.creation_time.seconds += 2 * 3600
        return reply


CARELESS_MUTANTS: Mapping[str, type[SampleDriver]] = {
    "unpublish-deletes-busy-target": UnpublishDeletesBusyTarget,
    "lazy-unpublish": LazyUnpublish,
    "lazy-unstage": LazyUnstage,
    "swaps-stats": SwapsStats,
    "stats-in-blocks": StatsInBlocks,
    "stats-of-the-parent": StatsOfTheParent,
    "slow-stats-of-the-parent": SlowStatsOfTheParent,
    "slow-stats": SlowStats,
    "stats-hold-the-node": StatsHoldTheNode,
    "stats-take-a-second": StatsTakeASecond,
    "shares-its-file-system": SharesItsFileSystem,
    "leaks-descriptors": LeaksDescriptors,
    "leaks-threads": LeaksThreads,
    "logs-secrets": LogsSecrets,
    "tells-secrets": TellsSecrets,
    "ignores-limit": IgnoresLimit,
    "names-collide": NamesCollide,
    "confirms-anything": ConfirmsAnything,
    "ignores-mount-flags": IgnoresMountFlags,
    "ignores-file-system": IgnoresFileSystem,
    "formats-after-power-loss": FormatsAfterPowerLoss,
    "ignores-other-readonly": IgnoresOtherReadonly,
    "ignores-other-file-system": IgnoresOtherFileSystem,
    "moves-its-topology": MovesItsTopology,
    "snapshot-undoes-expansion": SnapshotUndoesExpansion,
    "local-time": LocalTime,
}
