"""Health of volumes and instances, and the attributes of volumes and snapshots."""

from __future__ import annotations

from volplane.cloud import filters, xml_views
from volplane.cloud.actions.base import Tree, snapshot_id, volume_id
from volplane.cloud.errors import Ec2ErrorResponse, invalid_parameter
from volplane.cloud.model import CloudInstance, CloudVolume, VolumeState
from volplane.cloud.query import QueryParameters
from volplane.cloud.service import DiskService
from volplane.cloud.xml import Value
from volplane.rules.zones import zone_id

_NEVER = ("code", "description", "event-id", "event-type", "not-after", "not-before", "not-before-deadline")


def _volume_details(volume: CloudVolume) -> dict[str, str]:
    """The checks of a volume, by name."""
    works = volume.state is not VolumeState.ERROR
    measured = works and volume.shape.type in ("io1", "io2", "gp3")
    creating = volume.state is VolumeState.CREATING
    copied = volume.snapshot or volume.source
    return {
        "io-enabled": "passed" if works else "failed",
        "io-performance": "normal" if measured and volume.attachments else "not-applicable",
        "initialization-state": ("initializing" if creating else "completed") if copied else "not-applicable",
    }


def _volume_status(volume: CloudVolume) -> str:
    if volume.state is VolumeState.CREATING:
        return "insufficient-data"
    return "impaired" if volume.state is VolumeState.ERROR else "ok"


_VOLUME: filters.FilterFields[CloudVolume] = {
    "availability-zone": lambda v: [v.zone],
    "availability-zone-id": lambda v: [zone_id(v.zone)],
    "volume-status.status": lambda v: [_volume_status(v)],
    "volume-status.details-name": lambda v: list(_volume_details(v)),
    "volume-status.details-status": lambda v: list(_volume_details(v).values()),
    "operator.managed": lambda v: ["false"],
    "operator.principal": lambda v: [],
    **{f"{kind}.{name}": lambda v: [] for kind in ("event", "action") for name in _NEVER},
}


async def describe_volume_status(service: DiskService, parameters: QueryParameters) -> Tree:
    ids = parameters.texts("VolumeId")
    if ids and parameters.text("MaxResults"):
        text = "The parameter volumeIds cannot be used with the parameter maxResults"
        raise Ec2ErrorResponse("InvalidParameterCombination", text)
    named = [service.volume(volume_id(i)) for i in dict.fromkeys(ids)]
    found = named if ids else list(service.records.volumes.values())
    chosen = filters.apply_filters(found, _VOLUME, lambda v: v.tags, parameters)
    page, token = filters.page(chosen, lambda v: v.id, parameters)
    return {"volumeStatusSet": [_show_volume(v) for v in page], "nextToken": token}


def _show_volume(volume: CloudVolume) -> Tree:
    details: list[Value] = [{"name": n, "status": s} for n, s in _volume_details(volume).items()]
    return {
        "volumeId": volume.id,
        "availabilityZone": volume.zone,
        "availabilityZoneId": zone_id(volume.zone),
        "volumeStatus": {"status": _volume_status(volume), "details": details},
        "eventsSet": [],
        "actionsSet": [],
        "operator": {"managed": False},
    }


async def describe_volume_attribute(service: DiskService, parameters: QueryParameters) -> Tree:
    volume = service.volume(volume_id(parameters.require("VolumeId")))
    match parameters.require("Attribute"):
        case "autoEnableIO":
            return {"volumeId": volume.id, "autoEnableIO": {"value": False}}
        case "productCodes":
            return {"volumeId": volume.id, "productCodes": []}
        case other:
            raise invalid_parameter("attribute", other, "Valid values: autoEnableIO, productCodes.")


async def describe_snapshot_attribute(service: DiskService, parameters: QueryParameters) -> Tree:
    snapshot = service.snapshots.get(snapshot_id(parameters.require("SnapshotId")))
    match parameters.require("Attribute"):
        case "createVolumePermission":  # there is only one account
            return {"snapshotId": snapshot.id, "createVolumePermission": []}
        case "productCodes":
            return {"snapshotId": snapshot.id, "productCodes": []}
        case other:
            raise invalid_parameter("attribute", other, "Valid values: productCodes, createVolumePermission.")


def _check(instance: CloudInstance, works: bool = True) -> tuple[str, str]:
    """Status and reachability."""
    if not instance.running:
        return "not-applicable", ""
    return ("ok", "passed") if works else ("impaired", "failed")


async def describe_instance_status(service: DiskService, parameters: QueryParameters) -> Tree:
    """Running instances, or all. An instance with a lost disk has impaired EBS reachability."""
    ids = parameters.texts("InstanceId")
    if ids and parameters.text("MaxResults"):
        text = "The parameter instancesSet cannot be used with the parameter maxResults"
        raise Ec2ErrorResponse("InvalidParameterCombination", text)
    found = [service.instance(i) for i in dict.fromkeys(ids)] or list(service.records.instances.values())
    if not parameters.flag("IncludeAllInstances"):
        found = [instance for instance in found if instance.running]

    def disks(instance: CloudInstance) -> tuple[str, str]:
        lost = any(volume.lost for volume in service.records.attached_to(instance.id))
        return _check(instance, not lost)

    fields: filters.FilterFields[CloudInstance] = {
        "availability-zone": lambda i: [i.zone],
        "availability-zone-id": lambda i: [zone_id(i.zone)],
        "instance-state-name": lambda i: ["running" if i.running else "stopped"],
        "instance-state-code": lambda i: ["16" if i.running else "80"],
        **{f"{kind}-status.status": lambda i: [_check(i)[0]] for kind in ("instance", "system")},
        **{f"{kind}-status.reachability": lambda i: [_check(i)[1]] for kind in ("instance", "system")},
        "attached-ebs-status.status": lambda i: [disks(i)[0]],
        "attached-ebs-status.reachability": lambda i: [disks(i)[1]],
        "operator.managed": lambda i: ["false"],
        "operator.principal": lambda i: [],
        **{f"event.{name}": lambda i: [] for name in (*_NEVER, "instance-event-id")},
    }
    chosen = filters.apply_filters(found, fields, lambda i: i.tags, parameters)
    page, token = filters.page(chosen, lambda i: i.id, parameters)
    return {"instanceStatusSet": [_show_instance(i, disks(i)) for i in page], "nextToken": token}


def _show_instance(instance: CloudInstance, disks: tuple[str, str]) -> Tree:
    return {
        "instanceId": instance.id,
        "availabilityZone": instance.zone,
        "availabilityZoneId": zone_id(instance.zone),
        "instanceState": xml_views.state(instance),
        "systemStatus": _show_check(_check(instance)),
        "instanceStatus": _show_check(_check(instance)),
        "attachedEbsStatus": _show_check(disks),
        "operator": {"managed": False},
    }


def _show_check(check: tuple[str, str]) -> Tree:
    status, reached = check
    details: list[Value] = [{"name": "reachability", "status": reached}] if reached else []
    return {"status": status, "details": details or None}
