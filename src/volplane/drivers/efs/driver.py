"""The controller and node services. Nothing is attached or staged: publishing is one bind mount.

The size of a volume is checked but not enforced: a volume that uses more than its size is reported as
abnormal, and its claim can be expanded. All volumes share the space of one file system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import ClassVar, TypeVar

from volplane.csi import v1
from volplane.drivers.efs import access_points, parameters
from volplane.drivers.efs.access_points import AccessPoint, AccessPointStore, access_point_id, parse_handle
from volplane.drivers.efs.parameters import GIB, AccessPointParameters
from volplane.host import Host, NodePaths, files
from volplane.rules import latency as latencies
from volplane.sdk import Driver
from volplane.sdk.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
)
from volplane.sdk.mounting import Mounter, node_path, publish_open_directory

NAME, VERSION = "efs.csi.aws.com", "0.2.0"

T = TypeVar("T")

_Mode = v1.VolumeCapability.AccessMode


class EfsController(Driver):
    name, version = NAME, VERSION
    extra_capabilities: ClassVar[frozenset[str]] = frozenset({"SINGLE_NODE_MULTI_WRITER", "VOLUME_CONDITION"})

    def __init__(self, store: AccessPointStore, host: Host) -> None:
        Driver.__init__(self)
        self._store, self._host = store, host
        self._gid_lock = asyncio.Lock()  # held while a group id is chosen

    async def start(self) -> None:
        await self._host.call(self._store.prepare)
        await self._host.call(self._store.finish_removals)

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        if why_not := parameters.unsupported_reason(request.volume_capabilities):
            raise InvalidArgument(f"volume capabilities not supported: {why_not}")
        if request.HasField("volume_content_source"):
            raise InvalidArgument("a shared directory cannot be created from a snapshot or another volume")
        wanted = parameters.parse({**request.parameters, **request.mutable_parameters})
        size = await self._size(request.capacity_range)
        known = await self._host.call(self._store.get, access_point_id(request.name))
        if known is None:
            async with self._gid_lock:
                point = await self._new_access_point(request, wanted, size)
                known = await self._host.call(_refuse_links, self._store.create, point)
        if not _fits(known, request.capacity_range, wanted):
            raise AlreadyExists(f"{request.name} exists with other properties than requested")
        return v1.CreateVolumeResponse(volume=_to_csi_volume(known))

    async def _new_access_point(
        self, request: v1.CreateVolumeRequest, wanted: AccessPointParameters, size: int
    ) -> AccessPoint:
        gid = wanted.gid
        if gid is None:
            taken = await self._host.call(self._store.taken_gids, wanted.file_system)
            free = (g for g in range(wanted.first_gid, wanted.last_gid + 1) if g not in taken)
            gid = next(free, None)
        if gid is None:
            raise ResourceExhausted(f"no free group id in {wanted.file_system}")
        name = access_point_id(request.name)
        return AccessPoint(
            id=name,
            name=request.name,
            file_system=wanted.file_system,
            path=wanted.path(name, request.parameters),
            uid=gid if wanted.uid is None else wanted.uid,
            gid=gid,
            mode=wanted.mode,
            size=size,
        )

    async def _size(self, wanted: v1.CapacityRange) -> int:
        size = wanted.required_bytes or min(wanted.limit_bytes or GIB, GIB)
        left = await self._host.call(self._store.capacity)
        if size > left:
            raise OutOfRange(f"{size} bytes are requested, {left} are left")
        return size

    async def delete_volume(self, request: v1.DeleteVolumeRequest) -> v1.DeleteVolumeResponse:
        point = await self._host.call(self._store.get, parse_handle(request.volume_id))
        if point is not None and point.handle == request.volume_id:
            await self._host.call(_refuse_links, self._store.remove, point)
        return v1.DeleteVolumeResponse()

    async def validate_volume_capabilities(
        self, request: v1.ValidateVolumeCapabilitiesRequest
    ) -> v1.ValidateVolumeCapabilitiesResponse:
        await require_access_point(self._store, self._host, request.volume_id)
        if why_not := parameters.unsupported_reason(request.volume_capabilities):
            return v1.ValidateVolumeCapabilitiesResponse(message=why_not)
        confirmed = v1.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_context=request.volume_context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
        )
        return v1.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    async def get_capacity(self, request: v1.GetCapacityRequest) -> v1.GetCapacityResponse:
        if parameters.unsupported_reason(request.volume_capabilities):
            return v1.GetCapacityResponse(available_capacity=0)
        left = await self._host.call(self._store.capacity)
        return v1.GetCapacityResponse(available_capacity=left, maximum_volume_size={"value": left})

    async def list_volumes(self, request: v1.ListVolumesRequest) -> v1.ListVolumesResponse:
        after, most = request.starting_token, request.max_entries
        if after and not parse_handle(after):
            raise Aborted(f"{after!r} is not a valid token")
        points = await self._host.call(lambda: sorted(self._store.all(), key=lambda p: p.handle))
        left = [p for p in points if p.handle > after]
        page = left[:most] if most else left
        token = page[-1].handle if len(page) < len(left) else ""
        entries = [await self._entry(point) for point in page]
        return v1.ListVolumesResponse(entries=entries, next_token=token)

    async def _entry(self, point: AccessPoint) -> v1.ListVolumesResponse.Entry:
        found = await self._host.call(_read_condition, self._store, point)
        status = v1.ListVolumesResponse.VolumeStatus(volume_condition=found)
        return v1.ListVolumesResponse.Entry(volume=_to_csi_volume(point), status=status)

    async def controller_get_volume(
        self, request: v1.ControllerGetVolumeRequest
    ) -> v1.ControllerGetVolumeResponse:
        point = await require_access_point(self._store, self._host, request.volume_id)
        found = await self._host.call(_read_condition, self._store, point)
        status = v1.ControllerGetVolumeResponse.VolumeStatus(volume_condition=found)
        return v1.ControllerGetVolumeResponse(volume=_to_csi_volume(point), status=status)

    async def controller_expand_volume(
        self, request: v1.ControllerExpandVolumeRequest
    ) -> v1.ControllerExpandVolumeResponse:
        point = await require_access_point(self._store, self._host, request.volume_id)
        size = request.capacity_range.required_bytes
        if size > point.size:
            if size - point.size > await self._host.call(self._store.capacity):
                raise OutOfRange(f"not enough space for {size} bytes")
            point = await self._host.call(self._store.resize, point, size)
        return v1.ControllerExpandVolumeResponse(capacity_bytes=point.size, node_expansion_required=False)


class EfsNode(Driver):
    name, version = NAME, VERSION
    extra_capabilities: ClassVar[frozenset[str]] = frozenset({"SINGLE_NODE_MULTI_WRITER", "VOLUME_CONDITION"})
    methods_elsewhere: ClassVar[frozenset[str]] = frozenset({"CreateVolume", "ControllerExpandVolume"})

    def __init__(
        self, store: AccessPointStore, node: str, host: Host, paths: NodePaths, *, latency: str = ""
    ) -> None:
        Driver.__init__(self)
        self._store, self._host, self._node, self._paths = store, host, node, paths
        self._mounter = Mounter(host)
        self._latency, self._random = latencies.check_profile(latency), Random(node)

    async def node_get_info(self, request: v1.NodeGetInfoRequest) -> v1.NodeGetInfoResponse:
        return v1.NodeGetInfoResponse(node_id=self._node)

    async def node_publish_volume(self, request: v1.NodePublishVolumeRequest) -> v1.NodePublishVolumeResponse:
        if why_not := parameters.unsupported_reason([request.volume_capability]):
            raise InvalidArgument(f"volume capability not supported: {why_not}")
        target = node_path(self._paths, request.target_path, "target_path")
        point = await require_access_point(self._store, self._host, request.volume_id)
        seconds = latencies.seconds(self._latency, "NodePublishVolume", self._random.random(), "efs")
        if seconds:
            await asyncio.sleep(seconds)
        mode = request.volume_capability.access_mode.mode
        reads = mode in (_Mode.MULTI_NODE_READER_ONLY, _Mode.SINGLE_NODE_READER_ONLY)
        await self._host.call(
            _publish,
            self._store,
            point,
            target,
            readonly=request.readonly or reads or "ro" in request.volume_capability.mount.mount_flags,
            exclusive=mode == _Mode.SINGLE_NODE_SINGLE_WRITER,
        )
        return v1.NodePublishVolumeResponse()

    async def node_unpublish_volume(
        self, request: v1.NodeUnpublishVolumeRequest
    ) -> v1.NodeUnpublishVolumeResponse:
        await self._mounter.unpublish(node_path(self._paths, request.target_path, "target_path"))
        return v1.NodeUnpublishVolumeResponse()

    async def node_get_volume_stats(
        self, request: v1.NodeGetVolumeStatsRequest
    ) -> v1.NodeGetVolumeStatsResponse:
        path = node_path(self._paths, request.volume_path, "volume_path")
        if not await self._host.is_mount(path):
            raise NotFound(f"nothing is published at {path}")
        point = await require_access_point(self._store, self._host, request.volume_id)
        try:
            s = await self._host.call(access_points.usage_at, path)
        except FileNotFoundError as error:
            raise NotFound(f"nothing is published at {path} any more") from error
        if not await self._host.is_mount(path):  # unpublished meanwhile: an empty directory was measured
            raise NotFound(f"nothing is published at {path} any more")
        unit = v1.VolumeUsage
        left = max(0, min(point.size - s.used, s.available))
        usage = [
            unit(unit=unit.BYTES, total=point.size, available=left, used=s.used),
            unit(unit=unit.INODES, total=s.inodes, available=s.inodes_free, used=s.inodes_used),
        ]
        return v1.NodeGetVolumeStatsResponse(usage=usage, volume_condition=volume_condition(point, s.used))


class EfsAllInOneDriver(EfsController, EfsNode):
    """Both services on one socket, for a single machine and for conformance tests."""

    def __init__(self, store: AccessPointStore, node: str, host: Host, paths: NodePaths) -> None:
        EfsController.__init__(self, store, host)
        EfsNode.__init__(self, store, node, host, paths)


async def require_access_point(store: AccessPointStore, host: Host, handle: str) -> AccessPoint:
    point = await host.call(store.get, parse_handle(handle))
    if point is None or point.handle != handle:
        raise NotFound(f"volume {handle} does not exist")
    return point


def _refuse_links(call: Callable[[AccessPoint], T], point: AccessPoint) -> T:
    try:
        return call(point)
    except files.PathEscapesVolume as error:
        raise FailedPrecondition(f"the directory of {point.handle} cannot be used: {error}") from error


def _publish(
    store: AccessPointStore, point: AccessPoint, target: str, *, readonly: bool, exclusive: bool
) -> None:
    def bind(point: AccessPoint) -> None:
        with store.open_directory(point) as directory:
            publish_open_directory(directory, target, readonly=readonly, exclusive=exclusive)

    try:
        _refuse_links(bind, point)
    except FileNotFoundError as error:
        raise NotFound(f"the directory of {point.handle} does not exist") from error


def _read_condition(store: AccessPointStore, point: AccessPoint) -> v1.VolumeCondition:
    try:
        return volume_condition(point, store.usage(point).used)
    except OSError as error:  # of one volume: list the others
        return v1.VolumeCondition(abnormal=True, message=f"cannot read its directory: {error}")


def volume_condition(point: AccessPoint, taken: int) -> v1.VolumeCondition:
    if taken > point.size:
        text = f"it uses {taken} bytes, {taken - point.size} more than its size"
        return v1.VolumeCondition(abnormal=True, message=text)
    return v1.VolumeCondition(abnormal=False, message="the directory exists")


def _fits(point: AccessPoint, wanted: v1.CapacityRange, access: AccessPointParameters) -> bool:
    low, high = wanted.required_bytes, wanted.limit_bytes or point.size
    return low <= point.size <= high and point.file_system == access.file_system and point.mode == access.mode


def _to_csi_volume(point: AccessPoint) -> v1.Volume:
    return v1.Volume(volume_id=point.handle, capacity_bytes=point.size)
