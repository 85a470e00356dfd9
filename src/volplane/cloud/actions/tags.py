"""Tags on volumes, snapshots and instances."""

from __future__ import annotations

from volplane.cloud import filters
from volplane.cloud.actions.base import DONE, Tree
from volplane.cloud.errors import (
    Ec2ErrorResponse,
    instance_not_found,
    missing_parameter,
    snapshot_not_found,
    volume_not_found,
)
from volplane.cloud.query import QueryParameters
from volplane.cloud.query import parse_tags as parse_tags
from volplane.cloud.service import DiskService


async def create_tags(service: DiskService, parameters: QueryParameters) -> Tree:
    return await _tag(service, parameters, remove=False)


async def delete_tags(service: DiskService, parameters: QueryParameters) -> Tree:
    return await _tag(service, parameters, remove=True)


async def _tag(service: DiskService, parameters: QueryParameters, *, remove: bool) -> Tree:
    resources, records = parameters.texts("ResourceId"), service.records
    if not resources:
        raise missing_parameter("resourceIdSet")
    for resource in resources:
        if not any(resource in known for known in (records.volumes, records.snapshots, records.instances)):
            raise _missing(resource)
    for resource in resources:
        await service.tag(resource, parse_tags(parameters.structs("Tag")), remove=remove)
    return DONE


def _missing(resource: str) -> Ec2ErrorResponse:
    kinds = {"vol": volume_not_found, "snap": snapshot_not_found, "i": instance_not_found}
    kind = kinds.get(resource.partition("-")[0])
    return kind(resource) if kind else Ec2ErrorResponse("InvalidID", f"The ID '{resource}' is not valid")


async def describe_tags(service: DiskService, parameters: QueryParameters) -> Tree:
    owners = [(v.id, "volume", v.tags) for v in service.records.volumes.values()]
    owners += [(s.id, "snapshot", s.tags) for s in service.snapshots.all()]
    owners += [(i.id, "instance", i.tags) for i in service.records.instances.values()]
    rows = [(owner, kind, key, value) for owner, kind, found in owners for key, value in found.items()]
    facts: filters.FilterFields[tuple[str, str, str, str]] = {
        "resource-id": lambda r: [r[0]],
        "resource-type": lambda r: [r[1]],
        "key": lambda r: [r[2]],
        "value": lambda r: [r[3]],
    }
    chosen = filters.apply_filters(rows, facts, lambda r: {r[2]: r[3]}, parameters)
    found, token = filters.page(chosen, lambda r: f"{r[0]} {r[2]}", parameters)
    names = ("resourceId", "resourceType", "key", "value")
    return {"tagSet": [dict(zip(names, row, strict=True)) for row in found], "nextToken": token}
