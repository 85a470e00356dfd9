"""Fast snapshot restores: enabled at once, because a restored disk is complete when it is available."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import structs

from volplane.base import clock
from volplane.cloud import filters
from volplane.cloud.actions.base import OWNER, Tree, snapshot_id
from volplane.cloud.errors import Ec2ErrorResponse, missing_parameter, zone_not_found
from volplane.cloud.model import CloudSnapshot
from volplane.cloud.query import QueryParameters
from volplane.cloud.service import DiskService
from volplane.cloud.xml import Value
from volplane.rules.zones import zone_id

_Change: TypeAlias = Callable[[CloudSnapshot, str], tuple[CloudSnapshot, Tree]]


async def enable_fast_snapshot_restores(service: DiskService, parameters: QueryParameters) -> Tree:
    now = clock.microstamp()

    def enable(snapshot: CloudSnapshot, zone: str) -> tuple[CloudSnapshot, Tree]:
        since = snapshot.fast_restores.get(zone, now)
        changed = structs.replace(snapshot, fast_restores={**snapshot.fast_restores, zone: since})
        return changed, _show(snapshot.id, zone, since)

    return await _change(service, parameters, enable)


async def disable_fast_snapshot_restores(service: DiskService, parameters: QueryParameters) -> Tree:
    now = clock.microstamp()

    def disable(snapshot: CloudSnapshot, zone: str) -> tuple[CloudSnapshot, Tree]:
        since = snapshot.fast_restores.get(zone)
        if since is None:
            text = f"Fast snapshot restores are not enabled for '{snapshot.id}' in {zone}."
            raise Ec2ErrorResponse("IncorrectState", text)
        left = {known: at for known, at in snapshot.fast_restores.items() if known != zone}
        ended: Tree = {"state": "disabled", "disablingTime": now, "disabledTime": now}
        return structs.replace(snapshot, fast_restores=left), _show(snapshot.id, zone, since) | ended

    return await _change(service, parameters, disable)


def _parse_zones(service: DiskService, parameters: QueryParameters) -> list[str]:
    zones = parameters.texts("AvailabilityZone")
    for zone in zones:
        if zone not in service.known_zones():
            raise zone_not_found(zone)
    zones += [service.find_zone(number) for number in parameters.texts("AvailabilityZoneId")]
    if not zones:
        raise missing_parameter("AvailabilityZone")
    return list(dict.fromkeys(zones))


async def _change(service: DiskService, parameters: QueryParameters, change: _Change) -> Tree:
    """Change every snapshot in every zone; an error of one does not affect the others."""
    zones, ids = _parse_zones(service, parameters), parameters.texts("SourceSnapshotId")
    if not ids:
        raise missing_parameter("SourceSnapshotId")
    done: list[Value] = []
    failed: list[Value] = []
    for name in dict.fromkeys(map(snapshot_id, ids)):
        errors: list[Value] = []
        for zone in zones:
            shown: list[Tree] = []

            def apply(snapshot: CloudSnapshot, zone: str = zone, shown: list[Tree] = shown) -> CloudSnapshot:
                changed, tree = change(snapshot, zone)
                shown.append(tree)
                return changed

            try:
                await service.snapshots.change(name, apply)
            except Ec2ErrorResponse as error:
                place: Tree = {"availabilityZone": zone, "availabilityZoneId": zone_id(zone)}
                errors.append({**place, "error": {"code": error.code, "message": error.message}})
            else:
                done += shown
        if errors:
            failed.append({"snapshotId": name, "fastSnapshotRestoreStateErrorSet": errors})
    return {"successful": done, "unsuccessful": failed}


def _show(name: str, zone: str, since: str) -> Tree:
    return {
        "snapshotId": name,
        "availabilityZone": zone,
        "availabilityZoneId": zone_id(zone),
        "state": "enabled",
        "stateTransitionReason": "Client.UserInitiated",
        "ownerId": OWNER,
        "enablingTime": since,
        "optimizingTime": since,
        "enabledTime": since,
    }


async def describe_fast_snapshot_restores(service: DiskService, parameters: QueryParameters) -> Tree:
    rows = [(s.id, zone, since) for s in service.snapshots.all() for zone, since in s.fast_restores.items()]
    fields: filters.FilterFields[tuple[str, str, str]] = {
        "snapshot-id": lambda r: [r[0]],
        "availability-zone": lambda r: [r[1]],
        "availability-zone-id": lambda r: [zone_id(r[1])],
        "owner-id": lambda r: [OWNER],
        "state": lambda r: ["enabled"],
    }
    chosen = filters.apply_filters(rows, fields, lambda _: {}, parameters)
    page, token = filters.page(chosen, lambda r: f"{r[0]} {r[1]}", parameters)
    return {"fastSnapshotRestoreSet": [_show(*row) for row in page], "nextToken": token}
