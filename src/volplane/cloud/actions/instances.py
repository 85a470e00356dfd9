"""Instances and zones.

Three actions are our own (and SetFaults in `app`): RegisterInstance and DeregisterInstance replace
RunInstances, and DescribeDiskCapacity returns the free space, which AWS does not publish.
"""

from __future__ import annotations

from volplane.cloud import filters, xml_views
from volplane.cloud.actions.base import DONE, OWNER, Tree
from volplane.cloud.errors import missing_parameter, zone_not_found
from volplane.cloud.model import CloudInstance
from volplane.cloud.query import QueryParameters
from volplane.cloud.service import DiskService
from volplane.cloud.xml import Value


async def describe_instances(service: DiskService, given: QueryParameters) -> Tree:
    ids = given.texts("InstanceId")
    found = [service.instance(i) for i in dict.fromkeys(ids)] or list(service.records.instances.values())
    found, token = filters.page(
        filters.apply_filters(found, filters.INSTANCE, lambda i: i.tags, given), lambda i: i.id, given
    )
    return {"reservationSet": [_reservation(service, i) for i in found], "nextToken": token}


def _reservation(service: DiskService, instance: CloudInstance) -> Tree:
    shown = xml_views.instance(instance, service.records.attached_to(instance.id))
    number = instance.id.removeprefix("i-")
    return {"reservationId": f"r-{number}", "ownerId": OWNER, "groupSet": [], "instancesSet": [shown]}


async def describe_availability_zones(service: DiskService, given: QueryParameters) -> Tree:
    known = service.known_zones()
    for zone in given.texts("ZoneName"):
        if zone not in known:
            raise zone_not_found(zone)
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


async def stop_instances(service: DiskService, given: QueryParameters) -> Tree:
    return await _power(service, given, running=False)


async def start_instances(service: DiskService, given: QueryParameters) -> Tree:
    return await _power(service, given, running=True)


async def _power(service: DiskService, given: QueryParameters, *, running: bool) -> Tree:
    changes: list[Value] = []
    for name in given.texts("InstanceId"):
        before = xml_views.state(service.instance(name))
        after = xml_views.state(await service.power(name, running=running))
        changes.append({"instanceId": name, "currentState": after, "previousState": before})
    if not changes:
        raise missing_parameter("InstanceId")
    return {"instancesSet": changes}


async def register_instance(service: DiskService, given: QueryParameters) -> Tree:
    instance = CloudInstance(
        id=given.require("InstanceId"),
        zone=given.require("AvailabilityZone"),
        directory=given.require("DeviceDirectory"),
        name=given.text("PrivateDnsName"),
    )
    shown = await service.register(instance)
    return xml_views.instance(shown, service.records.attached_to(shown.id))


async def deregister_instance(service: DiskService, given: QueryParameters) -> Tree:
    await service.deregister(given.require("InstanceId"))
    return DONE


async def describe_disk_capacity(service: DiskService, given: QueryParameters) -> Tree:
    return {"availableBytes": await service.capacity()}
