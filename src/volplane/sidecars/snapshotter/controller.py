"""Calls CreateSnapshot, ListSnapshots and DeleteSnapshot for the VolumeSnapshotContents of one driver."""

from __future__ import annotations

from typing import Any

from volplane.api.snapshot import VolumeSnapshotClass, VolumeSnapshotContent
from volplane.client.client import Client
from volplane.csi import v1
from volplane.loops.controller import RetryableError
from volplane.loops.events import EventRecorder
from volplane.rules import snapshots
from volplane.sidecars.base import DriverClient, read_secrets
from volplane.sidecars.snapshotter.content_controller import COMPONENT, ContentController, to_nanoseconds
from volplane.sidecars.snapshotter.plan import (
    DeleteDriverSnapshot,
    PollSnapshotStatus,
    SnapshotterDriverInfo,
    TakeSnapshot,
)
from volplane.sidecars.snapshotter.settings import SnapshotterOptions


class SnapshotContentController(ContentController[VolumeSnapshotContent, VolumeSnapshotClass, v1.Snapshot]):
    name = COMPONENT
    kind = snapshots.SNAPSHOT
    content_type = VolumeSnapshotContent
    class_type = VolumeSnapshotClass
    deleted_fields = ("snapshotHandle", "readyToUse", "creationTime", "restoreSize")

    def __init__(
        self,
        client: Client,
        driver: DriverClient,
        settings: SnapshotterOptions,
        *,
        events: EventRecorder,
        node: str | None = None,
    ) -> None:
        info = SnapshotterDriverInfo(
            driver.name,
            prefix=settings.snapshot_name_prefix,
            uuid_length=settings.snapshot_name_uuid_length,
            extra_metadata=settings.extra_create_metadata,
            node=node,
        )
        super().__init__(client, driver, settings, info, events=events)

    async def create_snapshot(
        self, content: VolumeSnapshotContent, step: TakeSnapshot, credentials: dict[str, str]
    ) -> v1.Snapshot:
        request = v1.CreateSnapshotRequest(
            source_volume_id=next(iter(step.volumes), ""),
            name=step.name,
            secrets=credentials,
            parameters=step.parameters,
        )
        reply: v1.CreateSnapshotResponse = await self.call("CreateSnapshot", request, content)
        return reply.snapshot

    async def poll_snapshot(self, content: VolumeSnapshotContent, step: PollSnapshotStatus) -> v1.Snapshot:
        if "LIST_SNAPSHOTS" not in self.driver.controller:  # there is no way to ask: the handle has to do
            return v1.Snapshot(snapshot_id=step.handle, ready_to_use=True)
        credentials = await read_secrets(self.client, step.secret)
        request = v1.ListSnapshotsRequest(snapshot_id=step.handle, secrets=credentials)
        page: v1.ListSnapshotsResponse = await self.call("ListSnapshots", request, content)
        if not page.entries:
            raise RetryableError(f"can not find snapshot for snapshotID {step.handle}")
        return page.entries[0].snapshot

    async def delete_snapshot(
        self, content: VolumeSnapshotContent, step: DeleteDriverSnapshot, credentials: dict[str, str]
    ) -> None:
        request = v1.DeleteSnapshotRequest(snapshot_id=step.handle, secrets=credentials)
        await self.call("DeleteSnapshot", request, content)

    def status_from(self, content: VolumeSnapshotContent, reply: v1.Snapshot) -> dict[str, Any]:
        now = content.status
        status: dict[str, Any] = {}
        if now is None or now.snapshot_handle is None:
            status["snapshotHandle"] = reply.snapshot_id
        if now is None or now.creation_time is None:
            status["creationTime"] = to_nanoseconds(reply.creation_time)
        if reply.size_bytes > 0 and (now is None or now.restore_size is None):
            status["restoreSize"] = reply.size_bytes
        if reply.group_snapshot_id and (now is None or now.volume_group_snapshot_handle is None):
            status["volumeGroupSnapshotHandle"] = reply.group_snapshot_id
        return status
