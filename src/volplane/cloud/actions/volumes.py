"""Volumes: made, attached, modified, described, removed."""

from __future__ import annotations

from volplane.cloud import filters, views
from volplane.cloud.actions.answers import DONE, Tree, snapshot_id, specified_tags, volume_id
from volplane.cloud.creation import Wish
from volplane.cloud.errors import Refusal, missing_parameter
from volplane.cloud.model import Shape, Volume
from volplane.cloud.query import Parameters
from volplane.cloud.service import Service, modified


async def create_volume(service: Service, given: Parameters) -> Tree:
    return views.volume(await service.create(_wish(given)))


async def check_create_volume(service: Service, given: Parameters) -> None:
    """A dry run: the arguments are looked at, and nothing is made."""
    service.creation.check(_wish(given))


def _wish(given: Parameters) -> Wish:
    _check_single(given)
    snapshot = given.text("SnapshotId")
    if not given.text("Size") and not snapshot:
        raise missing_parameter("size/snapshot")
    return Wish(
        zone=given.required("AvailabilityZone"),
        shape=Shape(
            size=given.number("Size"),
            type=given.text("VolumeType", "gp2"),
            iops=given.number("Iops"),
            throughput=given.number("Throughput"),
        ),
        encrypted=given.flag("Encrypted"),
        token=given.text("ClientToken"),
        tags=specified_tags(given, "volume"),
        snapshot=snapshot_id(snapshot) if snapshot else "",
    )


async def copy_volumes(service: Service, given: Parameters) -> Tree:
    _check_single(given)
    source = service.volume(volume_id(given.required("SourceVolumeId")))
    wanted = {
        "size": given.number("Size"),
        "type": given.text("VolumeType"),
        "iops": given.number("Iops"),
        "throughput": given.number("Throughput"),
    }
    wish = Wish(
        zone=source.zone,
        shape=modified(source.shape, wanted),
        encrypted=given.flag("Encrypted"),
        token=given.text("ClientToken"),
        tags=specified_tags(given, "volume"),
        source=source.id,
    )
    return {"volumeSet": [views.volume(await service.create(wish))]}


def _check_single(given: Parameters) -> None:
    if given.flag("MultiAttachEnabled"):
        raise Refusal("UnsupportedOperation", "This service attaches a volume to one instance only.")


async def delete_volume(service: Service, given: Parameters) -> Tree:
    await service.delete(volume_id(given.required("VolumeId")))
    return DONE


async def attach_volume(service: Service, given: Parameters) -> Tree:
    volume = volume_id(given.required("VolumeId"))
    instance = given.required("InstanceId")
    return views.attachment(volume, await service.attach(volume, instance, given.required("Device")))


async def detach_volume(service: Service, given: Parameters) -> Tree:
    volume = volume_id(given.required("VolumeId"))
    done = await service.detach(volume, given.text("InstanceId"), force=given.flag("Force"))
    return views.attachment(volume, done)


async def modify_volume(service: Service, given: Parameters) -> Tree:
    wanted = {
        "size": given.number("Size"),
        "type": given.text("VolumeType"),
        "iops": given.number("Iops"),
        "throughput": given.number("Throughput"),
    }
    done = await service.modify(volume_id(given.required("VolumeId")), wanted)
    return {"volumeModification": views.modification(done)}


async def describe_volumes(service: Service, given: Parameters) -> Tree:
    ids = given.texts("VolumeId")
    if ids and given.text("MaxResults"):
        text = "The parameter volumeIds cannot be used with the parameter maxResults"
        raise Refusal("InvalidParameterCombination", text)
    named = [service.volume(volume_id(i)) for i in dict.fromkeys(ids)]
    found = named if ids else list(service.ledger.volumes.values())
    found, token = filters.page(filters.chosen(found, filters.VOLUME, lambda v: v.tags, given), _id, given)
    return {"volumeSet": [views.volume(v) for v in found], "nextToken": token}


async def describe_volumes_modifications(service: Service, given: Parameters) -> Tree:
    known = service.ledger.modifications
    ids = given.texts("VolumeId")
    for volume in ids:
        service.volume(volume_id(volume))
        if volume not in known:
            text = f"Modification for volume '{volume}' does not exist."
            raise Refusal("InvalidVolumeModification.NotFound", text)
    chosen = filters.chosen([known[i] for i in ids or known], filters.MODIFICATION, lambda _: {}, given)
    found, token = filters.page(chosen, lambda m: m.volume, given)
    return {"volumeModificationSet": [views.modification(m) for m in found], "nextToken": token}


def _id(volume: Volume) -> str:
    return volume.id
