"""EC2's actions, one function each: parameters in, the answer's tree out.

Four actions are not EC2's: RegisterInstance and DeregisterInstance stand for RunInstances, which we cannot
do, and DescribeDiskCapacity tells what AWS never would. (Their names are ours to choose; a client of AWS
does not send them.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from volplane.cloud import filters, views
from volplane.cloud.errors import Refusal, invalid_parameter, missing_parameter, no_zone
from volplane.cloud.model import Instance, Shape, Volume
from volplane.cloud.query import Parameters
from volplane.cloud.query import tags as parse_tags
from volplane.cloud.service import Service, Wish
from volplane.cloud.xml import Value

Tree: TypeAlias = dict[str, Value]
Action: TypeAlias = Callable[[Service, Parameters], Awaitable[Tree]]

OWNER = "000000000000"
_DONE: Tree = {"return": True}


async def create_volume(service: Service, given: Parameters) -> Tree:
    if given.text("SnapshotId"):
        raise Refusal(
            "InvalidSnapshot.NotFound", f"The snapshot '{given.text('SnapshotId')}' does not exist."
        )
    if given.flag("MultiAttachEnabled"):
        raise Refusal("UnsupportedOperation", "This service attaches a volume to one instance only.")
    if not given.text("Size"):
        raise missing_parameter("size/snapshot")
    shape = Shape(
        size=given.number("Size"),
        type=given.text("VolumeType", "gp2"),
        iops=given.number("Iops"),
        throughput=given.number("Throughput"),
    )
    wish = Wish(
        zone=given.required("AvailabilityZone"),
        shape=shape,
        encrypted=given.flag("Encrypted"),
        token=given.text("ClientToken"),
        tags=_specified_tags(given),
    )
    return views.volume(await service.create(wish))


def _specified_tags(given: Parameters) -> dict[str, str]:
    found: dict[str, str] = {}
    for specification in given.structs("TagSpecification"):
        kind = specification.text("ResourceType")
        if kind != "volume":
            raise invalid_parameter("resourceType", kind, "Only volumes are created here.")
        found |= parse_tags(specification.structs("Tag"))
    return found


async def delete_volume(service: Service, given: Parameters) -> Tree:
    await service.delete(_volume_id(given.required("VolumeId")))
    return _DONE


async def attach_volume(service: Service, given: Parameters) -> Tree:
    volume = _volume_id(given.required("VolumeId"))
    instance = given.required("InstanceId")
    return views.attachment(volume, await service.attach(volume, instance, given.required("Device")))


async def detach_volume(service: Service, given: Parameters) -> Tree:
    volume = _volume_id(given.required("VolumeId"))
    done = await service.detach(volume, given.text("InstanceId"), force=given.flag("Force"))
    return views.attachment(volume, done)


async def modify_volume(service: Service, given: Parameters) -> Tree:
    wanted = {
        "size": given.number("Size"),
        "type": given.text("VolumeType"),
        "iops": given.number("Iops"),
        "throughput": given.number("Throughput"),
    }
    done = await service.modify(_volume_id(given.required("VolumeId")), wanted)
    return {"volumeModification": views.modification(done)}


async def describe_volumes(service: Service, given: Parameters) -> Tree:
    ids = given.texts("VolumeId")
    if ids and given.text("MaxResults"):
        text = "The parameter volumeIds cannot be used with the parameter maxResults"
        raise Refusal("InvalidParameterCombination", text)
    named = [service.volume(_volume_id(i)) for i in dict.fromkeys(ids)]
    found = named if ids else list(service.ledger.volumes.values())
    found, token = filters.page(filters.chosen(found, filters.VOLUME, lambda v: v.tags, given), _id, given)
    return {"volumeSet": [views.volume(v) for v in found], "nextToken": token}


async def describe_volumes_modifications(service: Service, given: Parameters) -> Tree:
    known = service.ledger.modifications
    ids = given.texts("VolumeId")
    for volume in ids:
        service.volume(_volume_id(volume))
        if volume not in known:
            text = f"Modification for volume '{volume}' does not exist."
            raise Refusal("InvalidVolumeModification.NotFound", text)
    found, token = filters.page([known[i] for i in ids or known], lambda m: m.volume, given)
    return {"volumeModificationSet": [views.modification(m) for m in found], "nextToken": token}


async def describe_snapshots(service: Service, given: Parameters) -> Tree:
    for snapshot in given.texts("SnapshotId"):
        raise Refusal("InvalidSnapshot.NotFound", f"The snapshot '{snapshot}' does not exist.")
    return {"snapshotSet": []}


async def create_tags(service: Service, given: Parameters) -> Tree:
    return await _tag(service, given, remove=False)


async def delete_tags(service: Service, given: Parameters) -> Tree:
    return await _tag(service, given, remove=True)


async def _tag(service: Service, given: Parameters, *, remove: bool) -> Tree:
    resources = given.texts("ResourceId")
    if not resources:
        raise missing_parameter("resourceIdSet")
    for resource in resources:
        if resource not in service.ledger.instances and resource not in service.ledger.volumes:
            raise Refusal("InvalidID", f"The ID '{resource}' is not valid")
    for resource in resources:
        await service.tag(resource, parse_tags(given.structs("Tag")), remove=remove)
    return _DONE


async def describe_tags(service: Service, given: Parameters) -> Tree:
    owners = [(v.id, "volume", v.tags) for v in service.ledger.volumes.values()]
    owners += [(i.id, "instance", i.tags) for i in service.ledger.instances.values()]
    rows = [(owner, kind, key, value) for owner, kind, found in owners for key, value in found.items()]
    facts: filters.Facts[tuple[str, str, str, str]] = {
        "resource-id": lambda r: [r[0]],
        "resource-type": lambda r: [r[1]],
        "key": lambda r: [r[2]],
        "value": lambda r: [r[3]],
    }
    chosen = filters.chosen(rows, facts, lambda r: {r[2]: r[3]}, given)
    found, token = filters.page(chosen, lambda r: f"{r[0]} {r[2]}", given)
    names = ("resourceId", "resourceType", "key", "value")
    return {"tagSet": [dict(zip(names, row, strict=True)) for row in found], "nextToken": token}


async def describe_instances(service: Service, given: Parameters) -> Tree:
    ids = given.texts("InstanceId")
    found = [service.instance(i) for i in dict.fromkeys(ids)] or list(service.ledger.instances.values())
    found, token = filters.page(
        filters.chosen(found, filters.INSTANCE, lambda i: i.tags, given), lambda i: i.id, given
    )
    return {"reservationSet": [_reservation(service, i) for i in found], "nextToken": token}


def _reservation(service: Service, instance: Instance) -> Tree:
    shown = views.instance(instance, service.ledger.attached_to(instance.id))
    number = instance.id.removeprefix("i-")
    return {"reservationId": f"r-{number}", "ownerId": OWNER, "groupSet": [], "instancesSet": [shown]}


async def describe_availability_zones(service: Service, given: Parameters) -> Tree:
    known = service.known_zones()
    for zone in given.texts("ZoneName"):
        if zone not in known:
            raise no_zone(zone)
    names = given.texts("ZoneName") or known
    return {"availabilityZoneInfo": [_zone(name) for name in names]}


def _zone(name: str) -> Tree:
    region = name[:-1]
    short = "".join(
        part[:3] if part.isalpha() and len(part) < 3 else part[0] for part in region.split("-")[:2]
    )
    number = ord(name[-1]) - ord("a") + 1
    return {
        "zoneName": name,
        "zoneState": "available",
        "regionName": region,
        "zoneId": f"{short}{region[-1]}-az{number}",
        "zoneType": "availability-zone",
        "groupName": region,
        "networkBorderGroup": region,
        "optInStatus": "opt-in-not-required",
        "messageSet": [],
    }


async def stop_instances(service: Service, given: Parameters) -> Tree:
    return await _power(service, given, running=False)


async def start_instances(service: Service, given: Parameters) -> Tree:
    return await _power(service, given, running=True)


async def _power(service: Service, given: Parameters, *, running: bool) -> Tree:
    changes: list[Value] = []
    for name in given.texts("InstanceId"):
        before = views.state(service.instance(name))
        after = views.state(await service.power(name, running=running))
        changes.append({"instanceId": name, "currentState": after, "previousState": before})
    if not changes:
        raise missing_parameter("InstanceId")
    return {"instancesSet": changes}


async def register_instance(service: Service, given: Parameters) -> Tree:
    instance = Instance(
        id=given.required("InstanceId"),
        zone=given.required("AvailabilityZone"),
        directory=given.required("DeviceDirectory"),
        name=given.text("PrivateDnsName"),
    )
    shown = await service.register(instance)
    return views.instance(shown, service.ledger.attached_to(shown.id))


async def deregister_instance(service: Service, given: Parameters) -> Tree:
    await service.deregister(given.required("InstanceId"))
    return _DONE


async def describe_disk_capacity(service: Service, given: Parameters) -> Tree:
    return {"availableBytes": await service.capacity()}


def _id(volume: Volume) -> str:
    return volume.id


def _volume_id(text: str) -> str:
    if not text.startswith("vol-"):
        raise invalid_parameter("volumeId", text, "Expected: 'vol-...'.")
    return text


ACTIONS: dict[str, Action] = {
    "CreateVolume": create_volume,
    "DeleteVolume": delete_volume,
    "AttachVolume": attach_volume,
    "DetachVolume": detach_volume,
    "ModifyVolume": modify_volume,
    "DescribeVolumes": describe_volumes,
    "DescribeVolumesModifications": describe_volumes_modifications,
    "DescribeSnapshots": describe_snapshots,
    "CreateTags": create_tags,
    "DeleteTags": delete_tags,
    "DescribeTags": describe_tags,
    "DescribeInstances": describe_instances,
    "DescribeAvailabilityZones": describe_availability_zones,
    "StopInstances": stop_instances,
    "StartInstances": start_instances,
    "RegisterInstance": register_instance,
    "DeregisterInstance": deregister_instance,
    "DescribeDiskCapacity": describe_disk_capacity,
}
