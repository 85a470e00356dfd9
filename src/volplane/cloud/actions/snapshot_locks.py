"""LockSnapshot, UnlockSnapshot and DescribeLockedSnapshots."""

from __future__ import annotations

from datetime import datetime

from volplane.base import clock
from volplane.cloud import filters, snapshot_locks
from volplane.cloud.actions.base import OWNER, Tree, snapshot_id
from volplane.cloud.errors import Ec2ErrorResponse
from volplane.cloud.model import CloudSnapshot
from volplane.cloud.query import QueryParameters
from volplane.cloud.service import DiskService


async def lock_snapshot(service: DiskService, parameters: QueryParameters) -> Tree:
    now = clock.wall()
    wanted = snapshot_locks.parse_lock(parameters, now)
    done = await service.snapshots.change(
        snapshot_id(parameters.require("SnapshotId")), lambda s: snapshot_locks.change_lock(s, wanted, now)
    )
    return _show(done, now)


async def unlock_snapshot(service: DiskService, parameters: QueryParameters) -> Tree:
    now = clock.wall()
    done = await service.snapshots.change(
        snapshot_id(parameters.require("SnapshotId")), lambda s: snapshot_locks.remove_lock(s, now)
    )
    return {"snapshotId": done.id}


async def describe_locked_snapshots(service: DiskService, parameters: QueryParameters) -> Tree:
    """The snapshots with a lock, also with an expired one."""
    now, ids = clock.wall(), parameters.texts("SnapshotId")
    if ids and parameters.text("MaxResults"):
        text = "The parameter snapshotIds cannot be used with the parameter maxResults"
        raise Ec2ErrorResponse("InvalidParameterCombination", text)
    named = [service.snapshots.get(snapshot_id(i)) for i in dict.fromkeys(ids)]
    found = [s for s in (named if ids else service.snapshots.all()) if s.lock is not None]
    fields: filters.FilterFields[CloudSnapshot] = {
        "lock-state": lambda s: [snapshot_locks.lock_state(s, s.lock, now)] if s.lock else []
    }
    chosen = filters.apply_filters(found, fields, lambda s: s.tags, parameters)
    page, token = filters.page(chosen, lambda s: s.id, parameters)
    return {"snapshotSet": [{"ownerId": OWNER, **_show(s, now)} for s in page], "nextToken": token}


def _show(snapshot: CloudSnapshot, now: datetime) -> Tree:
    lock = snapshot.lock
    assert lock is not None
    times = snapshot_locks.lock_times(snapshot, lock)
    return {
        "snapshotId": snapshot.id,
        "lockState": snapshot_locks.lock_state(snapshot, lock, now),
        "lockDuration": lock.days,
        "coolOffPeriod": lock.cool_off or None,
        "coolOffPeriodExpiresOn": _stamp(times.cool_off_ends),
        "lockCreatedOn": lock.created,
        "lockDurationStartTime": _stamp(times.started),
        "lockExpiresOn": _stamp(times.ends),
    }


def _stamp(moment: datetime | None) -> str | None:
    return clock.microstamp(moment) if moment else None
