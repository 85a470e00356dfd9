"""Variants of the sample driver that round sizes wrong, or lose them on the way to the node, one bug each."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tests.support.sample_driver.driver import GIB, SampleDriver
from volplane.csi import v1
from volplane.host import filesystems, mounts
from volplane.sdk import errors

MIB = 1 << 20


class RoundsUp(SampleDriver):
    """Whole gibibytes, whatever the limit is."""

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        wanted = request.capacity_range
        wanted.required_bytes, wanted.limit_bytes = -(-wanted.required_bytes // GIB) * GIB, 0
        return await super().create_volume(request)


class RoundsDown(SampleDriver):
    """Whole mebibytes."""

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        request.capacity_range.required_bytes &= -MIB
        return await super().create_volume(request)


class CutsOffSizes(SampleDriver):
    """Sizes of 32 bits."""

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        request.capacity_range.required_bytes &= 0xFFFFFFFF
        return await super().create_volume(request)


class ExpandsByGibibytes(SampleDriver):
    async def controller_expand_volume(
        self, request: v1.ControllerExpandVolumeRequest
    ) -> v1.ControllerExpandVolumeResponse:
        request.capacity_range.required_bytes = -(-request.capacity_range.required_bytes // GIB) * GIB
        return await super().controller_expand_volume(request)


class RestoresSmall(SampleDriver):
    """Mounts what is on the device, whatever its size is."""

    async def format(self, device: str, request: v1.NodeStageVolumeRequest) -> None:
        kind = await self.host.call(_file_system, device)
        target = request.staging_target_path
        if not kind or await self.host.is_mount(target):
            await super().format(device, request)
        else:
            await self.host.call(mounts.mount, device, target, kind, ["nouuid"] if kind == "xfs" else [])


class MountsOneUuid(SampleDriver):
    """Mounts xfs as it is: the kernel refuses a second file system with the same UUID."""

    async def format(self, device: str, request: v1.NodeStageVolumeRequest) -> None:
        target, kind = request.staging_target_path, request.volume_capability.mount.fs_type
        if kind != "xfs" or await self.host.is_mount(target):
            return await super().format(device, request)
        if not await self.host.call(_file_system, device):
            await self.host.call(filesystems.mkfs, device, kind)
        try:
            await self.host.call(mounts.mount, device, target, kind, [])
        except OSError as error:
            raise errors.Internal(f"{device} cannot be mounted: {error}") from error


class MeasuresTheDeviceFile(SampleDriver):
    """Reports the file system in which the device file is."""

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        reply = await super().node_get_volume_stats(request)
        if len(reply.usage) == 1:  # of a device
            found = await self.host.stats(os.path.dirname(request.volume_path))
            reply.usage[0].total = found.capacity
        return reply


class GrowsWhileStaging(SampleDriver):
    """Not a bug: expands the mounted file system when it stages a volume, as many drivers do."""

    async def format(self, device: str, request: v1.NodeStageVolumeRequest) -> None:
        target = request.staging_target_path
        kind = await self.host.call(_file_system, device)
        if not kind or await self.host.is_mount(target):
            return await super().format(device, request)
        await self.host.call(mounts.mount, device, target, kind, ["nouuid"] if kind == "xfs" else [])
        await self.mounter.grow(target)


def _file_system(device: str) -> str:
    """The type of the file system on a device; "" if there is none."""
    found = filesystems.probe(device)
    return found.type if found is not None else ""


SIZE_MUTANTS: Mapping[str, type[SampleDriver]] = {
    "rounds-up": RoundsUp,
    "rounds-down": RoundsDown,
    "cuts-off-sizes": CutsOffSizes,
    "expands-by-gibibytes": ExpandsByGibibytes,
    "restores-small": RestoresSmall,
    "mounts-one-uuid": MountsOneUuid,
    "measures-the-device-file": MeasuresTheDeviceFile,
    "grows-while-staging": GrowsWhileStaging,
}
