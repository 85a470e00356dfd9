"""Volumes: create, copy, attach, modify, describe, delete."""

from __future__ import annotations

from volplane.cloud import filters, xml_views
from volplane.cloud.actions.base import (
    DONE,
    Tree,
    key_of_encryption,
    refuse_outposts,
    snapshot_id,
    specified_tags,
    volume_id,
)
from volplane.cloud.create_volume import CloudVolumeRequest
from volplane.cloud.errors import Ec2ErrorResponse, invalid_parameter, missing_parameter
from volplane.cloud.instance_types import EBS_CARDS
from volplane.cloud.model import CloudVolume, VolumeShape
from volplane.cloud.query import QueryParameters
from volplane.cloud.service import DiskService, apply_changes

INITIALIZATION_RATES = (100, 300)  # MiB/s


async def create_volume(service: DiskService, parameters: QueryParameters) -> Tree:
    return xml_views.volume(await service.create(_parse_request(service, parameters)))


async def check_create_volume(service: DiskService, parameters: QueryParameters) -> None:
    """A dry run: check the arguments without creating a volume."""
    service.creator.check(_parse_request(service, parameters))


def _parse_request(service: DiskService, parameters: QueryParameters) -> CloudVolumeRequest:
    refuse_outposts(parameters, "OutpostArn")
    snapshot, encrypted = parameters.text("SnapshotId"), parameters.flag("Encrypted")
    if not parameters.text("Size") and not snapshot:
        raise missing_parameter("size/snapshot")
    return CloudVolumeRequest(
        zone=_zone(service, parameters),
        shape=VolumeShape(
            size=parameters.number("Size"),
            type=parameters.text("VolumeType", "gp2"),
            iops=parameters.number("Iops"),
            throughput=parameters.number("Throughput"),
            multi_attach=parameters.flag("MultiAttachEnabled"),
        ),
        encrypted=encrypted,
        token=parameters.text("ClientToken"),
        tags=specified_tags(parameters, "volume"),
        snapshot=snapshot_id(snapshot) if snapshot else "",
        kms_key=key_of_encryption(parameters),
        initialization_rate=_initialization_rate(parameters),
    )


def _initialization_rate(parameters: QueryParameters) -> int:
    """MiB/s at which a volume is initialized from its snapshot. Here it is complete when it is available."""
    rate = parameters.number("VolumeInitializationRate")
    if not parameters.text("VolumeInitializationRate"):
        return 0
    if not parameters.text("SnapshotId"):
        text = "The parameter volumeInitializationRate is supported only for volumes from snapshots."
        raise Ec2ErrorResponse("InvalidParameterCombination", text)
    slowest, fastest = INITIALIZATION_RATES
    if not slowest <= rate <= fastest:
        raise invalid_parameter("volumeInitializationRate", rate, f"Expecting {slowest} to {fastest} MiB/s.")
    return rate


def _zone(service: DiskService, parameters: QueryParameters) -> str:
    number = parameters.text("AvailabilityZoneId")
    if not number:
        return parameters.require("AvailabilityZone")
    if parameters.text("AvailabilityZone"):
        text = "The parameter AvailabilityZone cannot be used with the parameter AvailabilityZoneId"
        raise Ec2ErrorResponse("InvalidParameterCombination", text)
    return service.find_zone(number)


async def copy_volumes(service: DiskService, parameters: QueryParameters) -> Tree:
    source = service.volume(volume_id(parameters.require("SourceVolumeId")))
    wanted = {
        "size": parameters.number("Size"),
        "type": parameters.text("VolumeType"),
        "iops": parameters.number("Iops"),
        "throughput": parameters.number("Throughput"),
        "multi_attach": parameters.flag("MultiAttachEnabled"),
    }
    request = CloudVolumeRequest(
        zone=source.zone,
        shape=apply_changes(source.shape, wanted),
        encrypted=parameters.flag("Encrypted"),
        token=parameters.text("ClientToken"),
        tags=specified_tags(parameters, "volume"),
        source=source.id,
        kms_key=key_of_encryption(parameters),
    )
    return {"volumeSet": [xml_views.volume(await service.create(request))]}


async def delete_volume(service: DiskService, parameters: QueryParameters) -> Tree:
    await service.delete(volume_id(parameters.require("VolumeId")))
    return DONE


async def attach_volume(service: DiskService, parameters: QueryParameters) -> Tree:
    volume = volume_id(parameters.require("VolumeId"))
    instance, device = parameters.require("InstanceId"), parameters.require("Device")
    card = parameters.number("EbsCardIndex") if parameters.text("EbsCardIndex") else None
    if card is not None and not 0 <= card < EBS_CARDS:
        raise invalid_parameter("ebsCardIndex", card, f"{instance} has {EBS_CARDS} EBS card, with index 0.")
    return xml_views.attachment(volume, await service.attach(volume, instance, device, card=card))


async def detach_volume(service: DiskService, parameters: QueryParameters) -> Tree:
    volume, device = volume_id(parameters.require("VolumeId")), parameters.text("Device")
    if device and device not in [a.device for a in service.volume(volume).attachments]:
        text = f"The volume '{volume}' is not attached as device '{device}'."
        raise Ec2ErrorResponse("InvalidAttachment.NotFound", text)
    done = await service.detach(volume, parameters.text("InstanceId"), force=parameters.flag("Force"))
    return xml_views.attachment(volume, done)


async def modify_volume(service: DiskService, parameters: QueryParameters) -> Tree:
    wanted = {
        "size": parameters.number("Size"),
        "type": parameters.text("VolumeType"),
        "iops": parameters.number("Iops"),
        "throughput": parameters.number("Throughput"),
        "multi_attach": parameters.flag("MultiAttachEnabled")
        if parameters.text("MultiAttachEnabled")
        else None,
    }
    done = await service.modify(volume_id(parameters.require("VolumeId")), wanted)
    return {"volumeModification": xml_views.modification(done)}


async def describe_volumes(service: DiskService, parameters: QueryParameters) -> Tree:
    ids = parameters.texts("VolumeId")
    if ids and parameters.text("MaxResults"):
        text = "The parameter volumeIds cannot be used with the parameter maxResults"
        raise Ec2ErrorResponse("InvalidParameterCombination", text)
    named = [service.volume(volume_id(i)) for i in dict.fromkeys(ids)]
    found = named if ids else list(service.records.volumes.values())
    found, token = filters.page(
        filters.apply_filters(found, filters.VOLUME, lambda v: v.tags, parameters), _id, parameters
    )
    return {"volumeSet": [xml_views.volume(v) for v in found], "nextToken": token}


async def describe_volumes_modifications(service: DiskService, parameters: QueryParameters) -> Tree:
    known = service.records.modifications
    ids = parameters.texts("VolumeId")
    for volume in ids:
        service.volume(volume_id(volume))
        if volume not in known:
            text = f"Modification for volume '{volume}' does not exist."
            raise Ec2ErrorResponse("InvalidVolumeModification.NotFound", text)
    chosen = filters.apply_filters(
        [known[i] for i in ids or known], filters.MODIFICATION, lambda _: {}, parameters
    )
    found, token = filters.page(chosen, lambda m: m.volume, parameters)
    return {"volumeModificationSet": [xml_views.modification(m) for m in found], "nextToken": token}


def _id(volume: CloudVolume) -> str:
    return volume.id
