"""Snapshots."""

from __future__ import annotations

from volplane.cloud import filters, xml_views
from volplane.cloud.actions.base import (
    DONE,
    OWNER,
    Tree,
    key_of_encryption,
    refuse_outposts,
    snapshot_id,
    specified_tags,
    volume_id,
)
from volplane.cloud.errors import Ec2ErrorResponse, invalid_parameter
from volplane.cloud.query import QueryParameters
from volplane.cloud.service import DiskService
from volplane.rules.zones import region_of


async def create_snapshot(service: DiskService, parameters: QueryParameters) -> Tree:
    refuse_outposts(parameters, "OutpostArn")
    _check_location(parameters)
    made = await service.snapshots.create(
        volume_id(parameters.require("VolumeId")),
        description=parameters.text("Description"),
        tags=specified_tags(parameters, "snapshot"),
    )
    return xml_views.snapshot(made, service.snapshots.progress(made), OWNER)


def _check_location(parameters: QueryParameters) -> None:
    if parameters.text("Location", "regional") != "regional":
        raise invalid_parameter("location", parameters.text("Location"), "Only regional is supported.")


async def create_snapshots(service: DiskService, parameters: QueryParameters) -> Tree:
    """Take snapshots of all volumes of an instance at one moment. Instances have no boot volume."""
    refuse_outposts(parameters, "OutpostArn")
    _check_location(parameters)
    where = parameters.struct("InstanceSpecification")
    made = await service.snapshots.create_set(
        where.require("InstanceId"),
        without=[volume_id(volume) for volume in where.texts("ExcludeDataVolumeId")],
        description=parameters.text("Description"),
        tags=specified_tags(parameters, "snapshot"),
        copy_tags=parameters.text("CopyTagsFromSource") == "volume",
    )
    return {"snapshotSet": [xml_views.member(s, service.snapshots.progress(s), OWNER) for s in made]}


async def copy_snapshot(service: DiskService, parameters: QueryParameters) -> Tree:
    """Copy a snapshot. `PresignedUrl` is the same request once more, signed for the source region."""
    regions = {region_of(zone) for zone in service.known_zones()}
    for name in ("SourceRegion", "DestinationRegion"):
        region = parameters.require(name) if name == "SourceRegion" else parameters.text(name)
        if region and region not in regions:
            raise invalid_parameter(name, region, f"Valid values: {', '.join(sorted(regions))}.")
    refuse_outposts(parameters, "DestinationOutpostArn", "DestinationAvailabilityZone")
    key, minutes = key_of_encryption(parameters), parameters.number("CompletionDurationMinutes")
    if parameters.text("CompletionDurationMinutes") and (minutes % 15 or not 15 <= minutes <= 2880):
        text = "Expecting a multiple of 15 from 15 to 2880."
        raise invalid_parameter("completionDurationMinutes", minutes, text)
    made = await service.snapshots.copy(
        snapshot_id(parameters.require("SourceSnapshotId")),
        description=parameters.text("Description"),
        tags=specified_tags(parameters, "snapshot"),
        encrypted=parameters.flag("Encrypted"),
        kms_key=key,
        duration=minutes,
    )
    return {"snapshotId": made.id, "tagSet": xml_views.tags(made.tags) or None}


async def delete_snapshot(service: DiskService, parameters: QueryParameters) -> Tree:
    await service.snapshots.delete(snapshot_id(parameters.require("SnapshotId")))
    return DONE


async def describe_snapshots(service: DiskService, parameters: QueryParameters) -> Tree:
    ids = parameters.texts("SnapshotId")
    if ids and parameters.text("MaxResults"):
        text = "The parameter snapshotSet cannot be used with the parameter maxResults"
        raise Ec2ErrorResponse("InvalidParameterCombination", text)
    named = [service.snapshots.get(snapshot_id(i)) for i in dict.fromkeys(ids)]
    found = named if ids else service.snapshots.all()
    # All snapshots belong to one owner.
    if any(owner not in ("self", OWNER) for owner in parameters.texts("Owner")):
        found = []
    shown = [(s, service.snapshots.progress(s)) for s in found]
    chosen = filters.apply_filters(shown, filters.SNAPSHOT, lambda s: s[0].tags, parameters)
    page, token = filters.page(chosen, lambda s: s[0].id, parameters)
    return {"snapshotSet": [xml_views.snapshot(s, done, OWNER) for s, done in page], "nextToken": token}
