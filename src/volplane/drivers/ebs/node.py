"""The node service: formats and mounts attached disks, and publishes them to pods.

The disk is found by the link with the volume's id. The device name in the publish context is used only
without such a link, because names are reused.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import ClassVar

from msgspec import Struct

from volplane.base import clock
from volplane.csi import v1
from volplane.drivers.ebs import format_options, parameters
from volplane.drivers.ebs.constants import NAME, OWN_ZONE_KEY, PARTITION, VERSION, ZONE_KEY
from volplane.drivers.ebs.inline import ConnectEc2, InlineVolumes
from volplane.host import Host, NodePaths, devices
from volplane.rules import latency
from volplane.sdk import Driver
from volplane.sdk.bounds import is_below
from volplane.sdk.errors import FailedPrecondition, InvalidArgument
from volplane.sdk.mounting import Mounter, node_path
from volplane.sdk.validation import EPHEMERAL

MAX_VOLUMES = 28
BY_ID = "/dev/disk/by-id"
INLINE_HANDLE = "csi-"  # prefix of the kubelet's handles of inline volumes
DEVICE_TIMEOUT, DEVICE_POLL_INTERVAL = (
    10.0,
    0.05,
)  # seconds; on AWS a disk appears seconds after it is attached

_Mode = v1.VolumeCapability.AccessMode


class EbsNodeConfig(Struct, frozen=True):
    """Instance and zone of the node; on AWS from the instance metadata, here from the settings."""

    instance: str
    zone: str
    max_volumes: int = MAX_VOLUMES
    latency: str = ""  # a profile of `rules.latency` to simulate


class EbsNode(Driver):
    name, version = NAME, VERSION
    extra_capabilities: ClassVar[frozenset[str]] = frozenset(
        {"VOLUME_ACCESSIBILITY_CONSTRAINTS", "SINGLE_NODE_MULTI_WRITER", "VOLUME_CONDITION"}
    )
    methods_elsewhere: ClassVar[frozenset[str]] = frozenset({"CreateVolume", "CreateVolumeGroupSnapshot"})

    def __init__(
        self, place: EbsNodeConfig, host: Host, paths: NodePaths, *, connect: ConnectEc2 | None = None
    ) -> None:
        """`connect` enables inline volumes, which the node creates itself."""
        Driver.__init__(self)
        self._inline = InlineVolumes(connect, instance=place.instance, zone=place.zone)
        self._place, self._host, self._paths = place, host, paths
        self._mounter = Mounter(host)
        self._random = Random(place.instance)

    async def stop(self) -> None:
        await self._inline.close()

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        segments = {ZONE_KEY: self._place.zone, OWN_ZONE_KEY: self._place.zone}
        return v1.NodeGetInfoResponse(
            node_id=self._place.instance,
            max_volumes_per_node=self._place.max_volumes,
            accessible_topology=v1.Topology(segments=segments),
        )

    async def node_stage_volume(self, request: v1.NodeStageVolumeRequest) -> v1.NodeStageVolumeResponse:
        _check(request.volume_capability)
        _refuse_partition(request.volume_context.get(PARTITION, ""))
        target = self._path(request.staging_target_path, "staging_target_path")
        await self._simulate_latency("NodeStageVolume", request.volume_id)
        named = request.publish_context.get("devicePath", "")
        async with self._open_device(request.volume_id, named) as device:
            if request.volume_capability.HasField("mount"):
                mount = request.volume_capability.mount
                arguments = format_options.mkfs_arguments(request.volume_context, request.volume_capability)
                flags = tuple(mount.mount_flags)
                await self._mounter.stage(device, target, mount.fs_type, flags, format_options=arguments)
        return v1.NodeStageVolumeResponse()

    async def node_unstage_volume(self, request: v1.NodeUnstageVolumeRequest) -> v1.NodeUnstageVolumeResponse:
        await self._mounter.unstage(self._path(request.staging_target_path, "staging_target_path"))
        return v1.NodeUnstageVolumeResponse()

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        _check(request.volume_capability)
        _refuse_partition(request.volume_context.get(PARTITION, ""))
        target = self._path(request.target_path, "target_path")
        staging = request.staging_target_path
        staging = self._path(staging, "staging_target_path") if staging else ""
        await self._simulate_latency("NodePublishVolume")
        if request.volume_context.get(EPHEMERAL) == "true":
            await self._publish_inline(request, target)
        elif request.volume_capability.HasField("block"):
            named = request.publish_context.get("devicePath", "")
            async with self._open_device(request.volume_id, named) as device:
                await self._mounter.publish_block(device, target)
        else:
            mode = request.volume_capability.access_mode.mode
            await self._mounter.publish(
                staging,
                target,
                readonly=request.readonly,
                exclusive=mode == _Mode.SINGLE_NODE_SINGLE_WRITER,
            )
        return v1.NodePublishVolumeResponse()

    async def _publish_inline(self, request: v1.NodePublishVolumeRequest, target: str) -> None:
        """Mount the disk at the target directly: it belongs to one pod."""
        if request.volume_capability.HasField("block"):
            raise InvalidArgument("an inline volume cannot be a raw block device")
        mount = request.volume_capability.mount
        volume, named = await self._inline.attach(request.volume_id, request.volume_context)
        options = (*mount.mount_flags, "ro") if request.readonly else tuple(mount.mount_flags)
        async with self._open_device(volume, named) as device:
            arguments = format_options.mkfs_arguments(
                {k.lower(): v for k, v in request.volume_context.items()}, request.volume_capability
            )
            await self._mounter.stage(device, target, mount.fs_type, options, format_options=arguments)

    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        await self._mounter.unpublish(self._path(request.target_path, "target_path"))
        # The request does not name the kind of volume; an EBS id never looks like a kubelet's handle.
        if request.volume_id.startswith(INLINE_HANDLE) and self._inline.is_available:
            await self._inline.remove(request.volume_id)
        return v1.NodeUnpublishVolumeResponse()

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        path = self._path(request.volume_path, "volume_path")
        usage, why = await self._mounter.usage(path), await self._mounter.find_problem(path)
        condition = v1.VolumeCondition(abnormal=bool(why), message=why or "the disk is mounted")
        return v1.NodeGetVolumeStatsResponse(usage=usage, volume_condition=condition)

    async def node_expand_volume(self, request: v1.NodeExpandVolumeRequest) -> v1.NodeExpandVolumeResponse:
        path = self._path(request.volume_path, "volume_path")
        size = await self._mounter.grow(path, request.capacity_range.required_bytes)
        return v1.NodeExpandVolumeResponse(capacity_bytes=size)

    def _path(self, path: str, field: str) -> str:
        return node_path(self._paths, path, field)

    async def _simulate_latency(self, step: str, volume: str = "") -> None:
        profile, volume_type = self._place.latency, ""
        if profile == latency.BY_TYPE and volume:
            volume_type = await self._inline.read_type(volume)
        seconds = latency.seconds(profile, step, self._random.random(), volume_type)
        if seconds:
            await asyncio.sleep(seconds)

    @asynccontextmanager
    async def _open_device(self, volume: str, named: str) -> AsyncIterator[str]:
        """The volume's device, held open so that its name cannot be reused for another disk meanwhile."""
        stable = self._paths.real(f"{BY_ID}/nvme-Amazon_Elastic_Block_Store_{volume.replace('-', '')}")
        if "/" in volume:
            raise InvalidArgument(f'volume_id "{volume}" is not the id of a volume')
        if named:
            if not is_below(named, "/dev") or posixpath.normpath(named) != named:
                raise InvalidArgument(f'devicePath "{named}" is not below /dev')
            named = self._paths.real(named)
        deadline = clock.now() + DEVICE_TIMEOUT
        while (found := await self._host.call(_try_open_device, volume, stable, named)) is None:
            if not named:
                raise InvalidArgument("devicePath is missing in the publish context")
            if clock.now() >= deadline:
                raise FailedPrecondition(f"the disk of {volume} has not appeared as {named}")
            await asyncio.sleep(DEVICE_POLL_INTERVAL)
        descriptor, device = found
        try:
            yield device
        finally:
            # In a thread: the last close of a disk flushes the kernel's buffers.
            await self._host.call(os.close, descriptor)


def _check(capability: v1.VolumeCapability) -> None:
    why_not = parameters.unsupported_reason([capability])
    if why_not:
        raise InvalidArgument(f"volume capability not supported: {why_not}")


def _refuse_partition(number: str) -> None:
    """Mounting the whole disk instead could format it."""
    if number not in ("", "0"):
        raise InvalidArgument(f"partition {number}: the disks have no partitions, only 0 is supported")


def _try_open_device(volume: str, stable: str, named: str) -> tuple[int, str] | None:
    device = _resolve_disk(stable, named)
    if not device:
        return None
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    # Links are removed before the disk is detached, so they are right while we hold it open. The serial
    # number is checked as well, in case the disk was detached without the service.
    serial = devices.serial(device).replace("-", "")
    if _resolve_disk(stable, named) == device and serial in ("", volume.replace("-", "")):
        return descriptor, device
    os.close(descriptor)
    return None


def _resolve_disk(stable: str, named: str) -> str:
    if os.path.exists(stable):
        return os.path.realpath(stable)
    if not named or not os.path.exists(named) or _belongs_to_another(named, stable):
        return ""
    return os.path.realpath(named)


def _belongs_to_another(named: str, stable: str) -> bool:
    directory, own = os.path.split(stable)
    if not os.path.isdir(directory):
        return False
    others = (n for n in os.listdir(directory) if n.startswith("nvme-Amazon_") and n != own)
    return any(os.path.realpath(os.path.join(directory, n)) == os.path.realpath(named) for n in others)
