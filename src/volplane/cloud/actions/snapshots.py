"""Snapshots."""

from __future__ import annotations

from volplane.cloud import filters, views
from volplane.cloud.actions.answers import DONE, OWNER, Tree, snapshot_id, specified_tags, volume_id
from volplane.cloud.errors import Refusal
from volplane.cloud.query import Parameters
from volplane.cloud.service import Service


async def create_snapshot(service: Service, given: Parameters) -> Tree:
    made = await service.snapshots.create(
        volume_id(given.required("VolumeId")),
        description=given.text("Description"),
        tags=specified_tags(given, "snapshot"),
    )
    return views.snapshot(made, service.snapshots.progress(made), OWNER)


async def create_snapshots(service: Service, given: Parameters) -> Tree:
    """Of all volumes of an instance, at one moment. An instance has no boot volume here."""
    where = given.struct("InstanceSpecification")
    made = await service.snapshots.create_set(
        where.required("InstanceId"),
        without=[volume_id(volume) for volume in where.texts("ExcludeDataVolumeId")],
        description=given.text("Description"),
        tags=specified_tags(given, "snapshot"),
        copy_tags=given.text("CopyTagsFromSource") == "volume",
    )
    return {"snapshotSet": [views.member(s, service.snapshots.progress(s), OWNER) for s in made]}


async def delete_snapshot(service: Service, given: Parameters) -> Tree:
    await service.snapshots.delete(snapshot_id(given.required("SnapshotId")))
    return DONE


async def describe_snapshots(service: Service, given: Parameters) -> Tree:
    ids = given.texts("SnapshotId")
    if ids and given.text("MaxResults"):
        text = "The parameter snapshotSet cannot be used with the parameter maxResults"
        raise Refusal("InvalidParameterCombination", text)
    named = [service.snapshots.get(snapshot_id(i)) for i in dict.fromkeys(ids)]
    found = named if ids else service.snapshots.all()
    # All of them belong to one owner; strangers' snapshots do not exist here.
    if any(owner not in ("self", OWNER) for owner in given.texts("Owner")):
        found = []
    shown = [(s, service.snapshots.progress(s)) for s in found]
    chosen = filters.chosen(shown, filters.SNAPSHOT, lambda s: s[0].tags, given)
    page, token = filters.page(chosen, lambda s: s[0].id, given)
    return {"snapshotSet": [views.snapshot(s, done, OWNER) for s, done in page], "nextToken": token}
