"""Regions and availability zones."""

from __future__ import annotations

from volplane.cloud import filters
from volplane.cloud.actions.base import Tree
from volplane.cloud.errors import Ec2ErrorResponse, invalid_parameter, zone_not_found
from volplane.cloud.query import QueryParameters
from volplane.cloud.service import DiskService
from volplane.rules.zones import region_of, zone_id

_OPT_IN = "opt-in-not-required"
_ZONE: filters.FilterFields[str] = {
    "zone-name": lambda z: [z],
    "zone-id": lambda z: [zone_id(z)],
    "region-name": lambda z: [region_of(z)],
    "group-name": lambda z: [region_of(z)],
    "state": lambda z: ["available"],
    "zone-type": lambda z: ["availability-zone"],
    "opt-in-status": lambda z: [_OPT_IN],
    "message": lambda z: [],
    "parent-zone-id": lambda z: [],
    "parent-zone-name": lambda z: [],
}


async def describe_availability_zones(service: DiskService, parameters: QueryParameters) -> Tree:
    known = service.known_zones()
    names, ids = parameters.texts("ZoneName"), parameters.texts("ZoneId")
    if names and ids:
        text = "The parameter zoneNames cannot be used with the parameter zoneIds"
        raise Ec2ErrorResponse("InvalidParameterCombination", text)
    for zone in names:
        if zone not in known:
            raise zone_not_found(zone)
    zones = names or ([service.find_zone(number) for number in ids] if ids else known)
    chosen = filters.apply_filters(zones, _ZONE, lambda _: {}, parameters)
    return {"availabilityZoneInfo": [_zone(name) for name in chosen]}


def _zone(name: str) -> Tree:
    region = region_of(name)
    return {
        "zoneName": name,
        "zoneState": "available",
        "regionName": region,
        "zoneId": zone_id(name),
        "zoneType": "availability-zone",
        "groupName": region,
        "networkBorderGroup": region,
        "optInStatus": _OPT_IN,
        "messageSet": [],
    }


async def describe_regions(service: DiskService, parameters: QueryParameters) -> Tree:
    """The regions of the zones. Their endpoint is this service."""
    known = sorted({region_of(zone) for zone in service.known_zones()})
    names = parameters.texts("RegionName")
    for name in names:
        if name not in known:
            raise invalid_parameter("region", name, f"Valid values: {', '.join(known)}.")
    fields: filters.FilterFields[str] = {
        "region-name": lambda r: [r],
        "opt-in-status": lambda r: [_OPT_IN],
        "endpoint": lambda r: [service.endpoint],
    }
    chosen = filters.apply_filters(names or known, fields, lambda _: {}, parameters)
    return {
        "regionInfo": [
            {"regionName": name, "regionEndpoint": service.endpoint, "optInStatus": _OPT_IN}
            for name in chosen
        ]
    }
