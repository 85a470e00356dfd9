"""Instances.

Three actions are our own (and SetFaults in `app`): RegisterInstance and DeregisterInstance replace
RunInstances, and DescribeDiskCapacity returns the free space, which AWS does not publish.
"""

from __future__ import annotations

from volplane.cloud import filters, xml_views
from volplane.cloud.actions.base import DONE, OWNER, Tree
from volplane.cloud.errors import missing_parameter
from volplane.cloud.instance_types import DEFAULT_INSTANCE_TYPE, require_instance_type
from volplane.cloud.model import CloudInstance
from volplane.cloud.query import QueryParameters
from volplane.cloud.service import DiskService
from volplane.cloud.xml import Value


async def describe_instances(service: DiskService, parameters: QueryParameters) -> Tree:
    ids = parameters.texts("InstanceId")
    found = [service.instance(i) for i in dict.fromkeys(ids)] or list(service.records.instances.values())
    found, token = filters.page(
        filters.apply_filters(found, filters.INSTANCE, lambda i: i.tags, parameters),
        lambda i: i.id,
        parameters,
    )
    return {"reservationSet": [_reservation(service, i) for i in found], "nextToken": token}


def _reservation(service: DiskService, instance: CloudInstance) -> Tree:
    shown = xml_views.instance(instance, service.records.attached_to(instance.id))
    number = instance.id.removeprefix("i-")
    return {"reservationId": f"r-{number}", "ownerId": OWNER, "groupSet": [], "instancesSet": [shown]}


async def stop_instances(service: DiskService, parameters: QueryParameters) -> Tree:
    return await _power(service, parameters, running=False)


async def start_instances(service: DiskService, parameters: QueryParameters) -> Tree:
    return await _power(service, parameters, running=True)


async def _power(service: DiskService, parameters: QueryParameters, *, running: bool) -> Tree:
    changes: list[Value] = []
    for name in parameters.texts("InstanceId"):
        before = xml_views.state(service.instance(name))
        after = xml_views.state(await service.power(name, running=running))
        changes.append({"instanceId": name, "currentState": after, "previousState": before})
    if not changes:
        raise missing_parameter("InstanceId")
    return {"instancesSet": changes}


async def register_instance(service: DiskService, parameters: QueryParameters) -> Tree:
    name = parameters.require("InstanceId")
    known = service.records.instances.get(name)
    kind = parameters.text("InstanceType") or (known.type if known else DEFAULT_INSTANCE_TYPE)
    instance = CloudInstance(
        id=name,
        zone=parameters.require("AvailabilityZone"),
        directory=parameters.require("DeviceDirectory"),
        name=parameters.text("PrivateDnsName"),
        type=require_instance_type(kind),
    )
    shown = await service.register(instance)
    return xml_views.instance(shown, service.records.attached_to(shown.id))


async def deregister_instance(service: DiskService, parameters: QueryParameters) -> Tree:
    await service.deregister(parameters.require("InstanceId"))
    return DONE


async def describe_disk_capacity(service: DiskService, parameters: QueryParameters) -> Tree:
    return {"availableBytes": await service.capacity()}
