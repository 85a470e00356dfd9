"""Snapshot locks: until its lock expires, a snapshot is not deleted.

A lock in governance mode can be changed and removed. So can one in compliance mode during its cooling-off
period; after that it can only be extended. EC2's documentation has no code of its own for a refused deletion,
so the general `OperationNotPermitted` is used.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from volplane.base import clock
from volplane.cloud.errors import Ec2ErrorResponse, invalid_parameter, missing_parameter
from volplane.cloud.model import CloudSnapshot, LockMode, SnapshotLock, SnapshotState

if TYPE_CHECKING:
    from volplane.cloud.query import QueryParameters

MAX_DAYS, MAX_COOL_OFF = 36500, 72  # days, hours


class LockTimes(Struct, frozen=True):
    """When a lock began to count, and when it ends; `ends` is None while the snapshot is pending."""

    started: datetime | None
    ends: datetime | None
    cool_off_ends: datetime | None


def lock_times(snapshot: CloudSnapshot, lock: SnapshotLock) -> LockTimes:
    created = clock.parse(lock.created)
    cool_off = created + timedelta(hours=lock.cool_off) if lock.cool_off else None
    if lock.expires:
        return LockTimes(created, clock.parse(lock.expires), cool_off)
    if snapshot.state is SnapshotState.PENDING:  # the duration begins when the snapshot is completed
        return LockTimes(None, None, cool_off)
    started = max(created, clock.parse(snapshot.ended)) if snapshot.ended else created
    return LockTimes(started, started + timedelta(days=lock.days), cool_off)


def lock_state(snapshot: CloudSnapshot, lock: SnapshotLock, now: datetime) -> str:
    times = lock_times(snapshot, lock)
    if times.ends is not None and now >= times.ends:
        return "expired"
    if lock.mode is LockMode.GOVERNANCE:
        return "governance"
    in_cool_off = times.cool_off_ends is not None and now < times.cool_off_ends
    return "compliance-cooloff" if in_cool_off else "compliance"


def is_locked(snapshot: CloudSnapshot, now: datetime) -> bool:
    return snapshot.lock is not None and lock_state(snapshot, snapshot.lock, now) != "expired"


def check_deletable(snapshot: CloudSnapshot, now: datetime) -> None:
    if is_locked(snapshot, now):
        text = f"The snapshot '{snapshot.id}' is locked and cannot be deleted."
        raise Ec2ErrorResponse("OperationNotPermitted", text)


def parse_lock(parameters: QueryParameters, now: datetime) -> SnapshotLock:
    mode, days = parameters.require("LockMode"), parameters.text("LockDuration")
    expires, cool_off = parameters.text("ExpirationDate"), parameters.text("CoolOffPeriod")
    if mode not in tuple(LockMode):
        raise invalid_parameter("lockMode", mode, "Valid values: compliance, governance.")
    if bool(days) == bool(expires):
        if not days:
            raise missing_parameter("lockDuration/expirationDate")
        text = "The parameter lockDuration cannot be used with the parameter expirationDate"
        raise Ec2ErrorResponse("InvalidParameterCombination", text)
    if cool_off and mode == LockMode.GOVERNANCE:
        text = "The parameter coolOffPeriod cannot be used with the lock mode governance"
        raise Ec2ErrorResponse("InvalidParameterCombination", text)
    number, hours = parameters.number("LockDuration"), parameters.number("CoolOffPeriod")
    if days and not 1 <= number <= MAX_DAYS:
        raise invalid_parameter("lockDuration", days, f"A lock lasts 1 to {MAX_DAYS} days.")
    if cool_off and not 1 <= hours <= MAX_COOL_OFF:
        raise invalid_parameter("coolOffPeriod", cool_off, f"It lasts 1 to {MAX_COOL_OFF} hours.")
    if expires:
        moment = _parse_date(expires)
        if not now < moment <= now + timedelta(days=MAX_DAYS):
            raise invalid_parameter("expirationDate", expires, f"It is within {MAX_DAYS} days from now.")
        expires, number = clock.microstamp(moment), -(-(moment - now) // timedelta(days=1))
    return SnapshotLock(LockMode(mode), clock.microstamp(now), number, expires, hours)


def _parse_date(text: str) -> datetime:
    try:
        return clock.parse(text)
    except ValueError:
        raise invalid_parameter("expirationDate", text, "Expected: YYYY-MM-DDThh:mm:ss.sssZ.") from None


def change_lock(snapshot: CloudSnapshot, wanted: SnapshotLock, now: datetime) -> CloudSnapshot:
    """The snapshot with a new or changed lock. Raises Ec2ErrorResponse if its lock allows no such change."""
    if snapshot.state is SnapshotState.ERROR:
        raise Ec2ErrorResponse("IncorrectState", f"Snapshot '{snapshot.id}' is '{snapshot.state}'.")
    known = snapshot.lock
    if known is None or not is_locked(snapshot, now):
        return structs.replace(snapshot, lock=wanted)
    lock = structs.replace(wanted, created=known.created)
    if lock_state(snapshot, known, now) == "compliance":
        _check_extension(snapshot, lock, known)
        lock = structs.replace(lock, cool_off=known.cool_off)
    return structs.replace(snapshot, lock=lock)


def _check_extension(snapshot: CloudSnapshot, wanted: SnapshotLock, known: SnapshotLock) -> None:
    before, after = lock_times(snapshot, known).ends, lock_times(snapshot, wanted).ends
    shorter = wanted.days < known.days if before is None or after is None else after < before
    if wanted.mode is not LockMode.COMPLIANCE or wanted.cool_off or shorter:
        text = f"The lock of '{snapshot.id}' is in compliance mode and can only be extended."
        raise Ec2ErrorResponse("OperationNotPermitted", text)


def remove_lock(snapshot: CloudSnapshot, now: datetime) -> CloudSnapshot:
    if snapshot.lock is None:
        raise Ec2ErrorResponse("IncorrectState", f"The snapshot '{snapshot.id}' is not locked.")
    if lock_state(snapshot, snapshot.lock, now) == "compliance":
        text = f"The snapshot '{snapshot.id}' is locked in compliance mode and cannot be unlocked."
        raise Ec2ErrorResponse("OperationNotPermitted", text)
    return structs.replace(snapshot, lock=None)
