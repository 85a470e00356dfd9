"""Instances and zones.

Three actions are not EC2's (and SetFaults, in `app`): RegisterInstance and DeregisterInstance stand for
RunInstances, which we cannot do, and DescribeDiskCapacity tells what AWS never would. (Their
names are ours to choose; a client of AWS does not send them.)
"""

from __future__ import annotations

from volplane.cloud import filters, views
from volplane.cloud.actions.answers import DONE, OWNER, Tree
from volplane.cloud.errors import missing_parameter, no_zone
from volplane.cloud.model import Instance
from volplane.cloud.query import Parameters
from volplane.cloud.service import Service
from volplane.cloud.xml import Value


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
    return DONE


async def describe_disk_capacity(service: Service, given: Parameters) -> Tree:
    return {"availableBytes": await service.capacity()}
