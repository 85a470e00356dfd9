"""The controller service: creates, attaches and deletes disks through the EC2 API.

CreateVolume is idempotent: the client token is a hash of the name, and the name is a tag, by which the volume
is found if the arguments of a repeated call differ.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from msgspec import Struct, structs

from volplane.csi import v1
from volplane.drivers.ebs import error_codes, format_options, parameters
from volplane.drivers.ebs.constants import CLUSTER_TAG, NAME_TAG, OWN_ZONE_KEY, ZONE_KEY
from volplane.drivers.ebs.disk_attacher import DiskAttacher, poll_while, wait_until_created
from volplane.drivers.ebs.ec2 import Ec2, Ec2Error, Ec2Volume
from volplane.drivers.ebs.error_codes import translate_errors
from volplane.drivers.ebs.groups import GroupCalls
from volplane.drivers.ebs.parameters import GIB, DiskParameters
from volplane.drivers.ebs.snapshots import require_snapshot_id
from volplane.sdk.errors import (
    Aborted,
    AlreadyExists,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
)

_VOLUME = re.compile(r"vol-[0-9a-f]{8,17}")
_INSTANCE = re.compile(r"i-[0-9a-z-]{1,60}")


class CopySource(Struct, frozen=True):
    """The snapshot or volume that a new disk is copied from."""

    size: int = 0  # GiB
    snapshot: str = ""
    volume: str = ""
    zone: str = ""

    @property
    def parameters(self) -> dict[str, str]:
        return {"SnapshotId": self.snapshot} if self.snapshot else {}


class EbsController(GroupCalls):
    extra_capabilities: ClassVar[frozenset[str]] = frozenset(
        {
            "CLONE_VOLUME",
            "LIST_VOLUMES_PUBLISHED_NODES",
            "SINGLE_NODE_MULTI_WRITER",
            "VOLUME_ACCESSIBILITY_CONSTRAINTS",
            "VOLUME_CONDITION",
        }
    )

    def __init__(self, ec2: Ec2) -> None:
        GroupCalls.__init__(self, ec2)  # not super(): EbsAllInOneDriver is also an EbsNode
        self._attaching = DiskAttacher(ec2)

    async def stop(self) -> None:
        await self._ec2.close()

    # Create and delete

    async def create_volume(self, request: v1.CreateVolumeRequest) -> v1.CreateVolumeResponse:
        why_not = parameters.unsupported_reason(request.volume_capabilities)
        if why_not:
            raise InvalidArgument(f"volume capabilities not supported: {why_not}")
        disk = _parse(request)
        with translate_errors():
            volume = await self._find_or_create(request, disk)
            await wait_until_created(self._ec2, volume.id, volume.state)
        return v1.CreateVolumeResponse(volume=_to_csi_volume(volume, disk.context))

    async def _find_or_create(self, request: v1.CreateVolumeRequest, disk: DiskParameters) -> Ec2Volume:
        origin = _named_source(request.volume_content_source)
        try:
            origin = await self._describe_source(origin)
            size = disk.size(request.capacity_range, least=origin.size)
        except (OutOfRange, Ec2Error) as error:
            # The call may be repeated, and its source may have been expanded or deleted after the copy.
            if isinstance(error, Ec2Error) and error.code not in error_codes.SOURCE_NOT_FOUND:
                raise
            if (existing := await self._find_existing_volume(request, disk, origin)) is None:
                raise
            return existing
        return await self._create(request, disk, size, await self._zone(request, origin), origin)

    async def _describe_source(self, source: CopySource) -> CopySource:
        """The source with its size and zone; Ec2Error if it does not exist."""
        if source.snapshot:
            snapshot = await self._ec2.snapshot(source.snapshot)
            return CopySource(snapshot.size, snapshot=snapshot.id)
        if source.volume:
            volume = await self._ec2.volume(source.volume)
            return CopySource(volume.size, volume=volume.id, zone=volume.zone)
        return source

    async def _create(
        self, request: v1.CreateVolumeRequest, disk: DiskParameters, size: int, zone: str, origin: CopySource
    ) -> Ec2Volume:
        given = disk.request(size, zone) | {"ClientToken": hashlib.sha256(request.name.encode()).hexdigest()}
        tags = {**disk.tags, NAME_TAG: request.name, CLUSTER_TAG: "true"}
        try:
            if origin.volume:
                del given["AvailabilityZone"]  # a copy is in the zone of its source
                return await self._ec2.copy_volume(origin.volume, given, tags)
            return await self._ec2.create_volume(given | origin.parameters, tags)
        except Ec2Error as error:
            if error.code != error_codes.MISMATCH:
                raise
            if (existing := await self._find_existing_volume(request, disk, origin)) is None:
                raise AlreadyExists(f"{request.name} was requested with other properties") from error
            return existing

    async def _find_existing_volume(
        self, request: v1.CreateVolumeRequest, disk: DiskParameters, origin: CopySource
    ) -> Ec2Volume | None:
        """The volume that was created under this name, perhaps with other arguments.

        Raises AlreadyExists if it does not satisfy this request.
        """
        found = await self._ec2.volumes({f"tag:{NAME_TAG}": request.name})
        wanted = request.capacity_range
        for volume in found:
            fits = wanted.required_bytes <= volume.size * GIB <= (wanted.limit_bytes or volume.size * GIB)
            alike = (volume.snapshot, volume.source, volume.type) == (
                origin.snapshot,
                origin.volume,
                disk.type,
            )
            if fits and alike and _reaches(request, volume.zone):
                return volume
        if found:
            raise AlreadyExists(f"{request.name} exists with other properties than requested")
        return None

    async def _zone(self, request: v1.CreateVolumeRequest, origin: CopySource) -> str:
        if origin.zone:
            if not _reaches(request, origin.zone):
                where = f"a copy of {origin.volume} is in {origin.zone}"
                raise ResourceExhausted(f"{where}, which the accessibility requirements exclude")
            return origin.zone
        terms = request.accessibility_requirements
        named = [zone for term in (*terms.preferred, *terms.requisite) if (zone := _zone_of(term))]
        if named:
            return named[0]
        if terms.preferred or terms.requisite:
            raise InvalidArgument(f"no {ZONE_KEY} in the accessibility requirements")
        zones = await self._ec2.zones()
        # Spreads volumes over the zones; the same zone for a repeated call.
        return zones[hashlib.sha256(request.name.encode()).digest()[0] % len(zones)]

    async def delete_volume(self, request: v1.DeleteVolumeRequest) -> v1.DeleteVolumeResponse:
        if _VOLUME.fullmatch(request.volume_id):
            with translate_errors():
                try:
                    await self._ec2.delete_volume(request.volume_id)
                except Ec2Error as error:
                    if error.code != error_codes.VOLUME_NOT_FOUND:
                        raise
        return v1.DeleteVolumeResponse()

    # Attach and detach

    async def controller_publish_volume(
        self, request: v1.ControllerPublishVolumeRequest
    ) -> v1.ControllerPublishVolumeResponse:
        volume, instance = _require_volume_id(request.volume_id), request.node_id
        if not _INSTANCE.fullmatch(instance):
            raise NotFound(f"instance {instance} does not exist")
        why_not = parameters.unsupported_reason([request.volume_capability])
        if why_not:
            raise InvalidArgument(f"volume capability not supported: {why_not}")
        with translate_errors():
            device = await self._attaching.attach(volume, instance)
            if request.volume_context.get(parameters.WAIT_INITIALIZED) == "true":
                await self._wait_until_initialized(volume)
        return v1.ControllerPublishVolumeResponse(publish_context={"devicePath": device})

    async def _wait_until_initialized(self, volume: str) -> None:
        async def state() -> str:
            return await self._ec2.initialization(volume)

        await poll_while(f"{volume}: initialization", state, "initializing")

    async def controller_unpublish_volume(
        self, request: v1.ControllerUnpublishVolumeRequest
    ) -> v1.ControllerUnpublishVolumeResponse:
        volume, instance = request.volume_id, request.node_id
        if _VOLUME.fullmatch(volume):
            with translate_errors():
                await self._attaching.detach(volume, instance)
        return v1.ControllerUnpublishVolumeResponse()

    # Lookups and changes

    async def validate_volume_capabilities(
        self, request: v1.ValidateVolumeCapabilitiesRequest
    ) -> v1.ValidateVolumeCapabilitiesResponse:
        with translate_errors():
            await self._ec2.volume(_require_volume_id(request.volume_id))
        why_not = parameters.unsupported_reason(request.volume_capabilities)
        if why_not:
            return v1.ValidateVolumeCapabilitiesResponse(message=why_not)
        confirmed = v1.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_context=request.volume_context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
        )
        return v1.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    async def list_volumes(self, request: v1.ListVolumesRequest) -> v1.ListVolumesResponse:
        after, most = request.starting_token, request.max_entries
        if after and not _VOLUME.fullmatch(after):
            raise Aborted(f"{after!r} is not a valid token")
        with translate_errors():
            found = sorted(await self._ec2.volumes(), key=lambda v: v.id)
        found = [v for v in found if v.id > after]
        page = found[:most] if most else found
        token = page[-1].id if len(page) < len(found) else ""
        return v1.ListVolumesResponse(entries=[_entry(v) for v in page], next_token=token)

    async def controller_get_volume(
        self, request: v1.ControllerGetVolumeRequest
    ) -> v1.ControllerGetVolumeResponse:
        with translate_errors():
            volume = await self._ec2.volume(_require_volume_id(request.volume_id))
        status = v1.ControllerGetVolumeResponse.VolumeStatus(
            published_node_ids=_nodes(volume), volume_condition=_condition(volume)
        )
        return v1.ControllerGetVolumeResponse(volume=_to_csi_volume(volume), status=status)

    async def get_capacity(self, request: v1.GetCapacityRequest) -> v1.GetCapacityResponse:
        disk = parameters.parse(parameters.driver_parameters(request.parameters))
        largest = disk.largest * GIB
        if parameters.unsupported_reason(request.volume_capabilities):
            return v1.GetCapacityResponse(available_capacity=0)
        zone = _zone_of(request.accessible_topology)
        with translate_errors():
            if zone and zone not in await self._ec2.zones():
                return v1.GetCapacityResponse(available_capacity=0)
            left = await self._ec2.capacity()
        available = largest if left is None else left
        return v1.GetCapacityResponse(
            available_capacity=available, maximum_volume_size={"value": min(available, largest)}
        )

    async def controller_expand_volume(
        self, request: v1.ControllerExpandVolumeRequest
    ) -> v1.ControllerExpandVolumeResponse:
        wanted = request.capacity_range
        size = -(-wanted.required_bytes // GIB)
        if wanted.limit_bytes and size * GIB > wanted.limit_bytes:
            raise OutOfRange(f"{size} GiB, the next whole size, is above the limit")
        with translate_errors():
            volume = await self._ec2.volume(_require_volume_id(request.volume_id))
            if volume.size < size:
                iops = parameters.grown_iops(volume.tags, volume.type, size)
                more = {"Iops": str(iops)} if iops and iops != volume.iops else {}
                await self._modify(volume.id, {"Size": str(size), **more})
        return v1.ControllerExpandVolumeResponse(
            capacity_bytes=max(size, volume.size) * GIB,
            node_expansion_required=not request.volume_capability.HasField("block"),
        )

    async def controller_modify_volume(
        self, request: v1.ControllerModifyVolumeRequest
    ) -> v1.ControllerModifyVolumeResponse:
        disk = parameters.parse_change(request.mutable_parameters)
        with translate_errors():
            volume = await self._ec2.volume(_require_volume_id(request.volume_id))
            if disk.tags:
                await self._ec2.create_tags([volume.id], disk.tags)
            if disk.removed_tags:
                await self._ec2.delete_tags([volume.id], disk.removed_tags)
            wanted = disk.changes(volume.size, type=volume.type, iops=volume.iops, speed=volume.throughput)
            if wanted:
                await self._modify(volume.id, wanted)
        return v1.ControllerModifyVolumeResponse()

    async def _modify(self, volume: str, wanted: Mapping[str, str]) -> None:
        state = await self._ec2.modify_volume(volume, wanted)
        if state == "modifying":

            async def again() -> str:
                return await self._ec2.modification(volume)

            state = await poll_while(f"the modification of {volume}", again, "modifying")
        if state not in ("optimizing", "completed"):
            raise Aborted(f"the modification of {volume} is {state}")


def _require_volume_id(volume: str) -> str:
    if not _VOLUME.fullmatch(volume):
        raise NotFound(f"volume {volume} does not exist")
    return volume


def _named_source(source: v1.VolumeContentSource) -> CopySource:
    """The source that a request names; NOT_FOUND if its id cannot be one of ours."""
    match source.WhichOneof("type"):
        case "snapshot":
            return CopySource(snapshot=require_snapshot_id(source.snapshot.snapshot_id))
        case "volume":
            return CopySource(volume=_require_volume_id(source.volume.volume_id))
    return CopySource()


def _zone_of(term: v1.Topology) -> str:
    return term.segments.get(ZONE_KEY, "") or term.segments.get(OWN_ZONE_KEY, "")


def _reaches(request: v1.CreateVolumeRequest, zone: str) -> bool:
    requisite = request.accessibility_requirements.requisite
    return not requisite or zone in {_zone_of(term) for term in requisite}


def _parse(request: v1.CreateVolumeRequest) -> DiskParameters:
    """Raises InvalidArgument."""
    disk = parameters.parse({**request.parameters, **request.mutable_parameters})
    format_options.check_options(format_options.find_options(disk.context), request.volume_capabilities)
    shared = parameters.needs_multi_attach(request.volume_capabilities)
    return structs.replace(disk, multi_attach=shared)


def _to_csi_volume(volume: Ec2Volume, context: Mapping[str, str] = MappingProxyType({})) -> v1.Volume:
    return v1.Volume(
        volume_context=context,
        volume_id=volume.id,
        capacity_bytes=volume.size * GIB,
        accessible_topology=[v1.Topology(segments={ZONE_KEY: volume.zone})],
        content_source=_source(volume),
    )


def _source(volume: Ec2Volume) -> v1.VolumeContentSource | None:
    if volume.snapshot:
        return v1.VolumeContentSource(snapshot={"snapshot_id": volume.snapshot})
    return v1.VolumeContentSource(volume={"volume_id": volume.source}) if volume.source else None


def _nodes(volume: Ec2Volume) -> list[str]:
    return [a.instance for a in volume.attachments if a.state == "attached"]


def _condition(volume: Ec2Volume) -> v1.VolumeCondition:
    broken = volume.state in ("error", "deleting", "deleted")
    return v1.VolumeCondition(abnormal=broken, message=f"the disk is {volume.state}")


def _entry(volume: Ec2Volume) -> v1.ListVolumesResponse.Entry:
    status = v1.ListVolumesResponse.VolumeStatus(
        published_node_ids=_nodes(volume), volume_condition=_condition(volume)
    )
    return v1.ListVolumesResponse.Entry(volume=_to_csi_volume(volume), status=status)
