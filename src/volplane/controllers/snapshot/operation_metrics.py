"""The duration of snapshot operations, as upstream measures it: from the first plan to the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from volplane.api.snapshot import VolumeSnapshot
from volplane.base import clock, metrics
from volplane.rules import snapshots

SECONDS = metrics.histogram(
    "snapshot_controller_operation_total_seconds",
    "Total number of seconds spent by the controller on an operation",
    ("driver_name", "operation_name", "operation_status", "snapshot_type"),
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600),
)
IN_FLIGHT = metrics.gauge("snapshot_controller_operations_in_flight", "Total number of operations in flight")

CREATE, READY, DELETE = "CreateSnapshot", "CreateSnapshotAndReady", "DeleteSnapshot"


class SnapshotOperation(Struct, frozen=True):
    driver: str
    kind: str
    since: float


class SnapshotOperations:
    """The operations that have started, by snapshot and name: the memory of the controller."""

    def __init__(self) -> None:
        self._started: dict[tuple[str, str], SnapshotOperation] = {}

    def observe_snapshot(self, old: VolumeSnapshot | None, new: VolumeSnapshot | None) -> None:
        if new is None and old is not None:
            self.forget(old.uid)

    def begin(self, snapshot: VolumeSnapshot, driver: str) -> None:
        if snapshot.is_deleting:
            self._cancel(snapshot.uid)
            self._start(snapshot, DELETE, driver)
        elif not snapshots.is_ready(snapshot):
            self._start(snapshot, READY, driver)
            if snapshot.status is None or snapshot.status.creation_time is None:
                self._start(snapshot, CREATE, driver)

    def end(self, snapshot: VolumeSnapshot, status: Mapping[str, Any]) -> None:
        """Finish what a new status of the snapshot completes."""
        if "creationTime" in status:
            self.finish(snapshot, CREATE)
        if status.get("readyToUse") is True:
            self.finish(snapshot, READY)

    def finish(self, snapshot: VolumeSnapshot, name: str, status: str = "success") -> None:
        self._record(snapshot.uid, name, status)

    def forget(self, uid: str) -> None:
        for name in (CREATE, READY, DELETE):
            self._started.pop((uid, name), None)
        IN_FLIGHT.set(len(self._started))

    def _cancel(self, uid: str) -> None:
        for name in (CREATE, READY):
            self._record(uid, name, "cancel")

    def _start(self, snapshot: VolumeSnapshot, name: str, driver: str) -> None:
        given = snapshot.spec.source.volume_snapshot_content_name is not None
        operation = SnapshotOperation(
            driver or "unknown", "pre-provisioned" if given else "dynamic", clock.now()
        )
        self._started.setdefault((snapshot.uid, name), operation)
        IN_FLIGHT.set(len(self._started))

    def _record(self, uid: str, name: str, status: str) -> None:
        found = self._started.pop((uid, name), None)
        if found is not None:
            seconds = clock.now() - found.since
            SECONDS.labels(found.driver, name, status, found.kind).observe(seconds)
            IN_FLIGHT.set(len(self._started))
