"""Calls the driver's GroupController service for the VolumeGroupSnapshotContents of one driver."""

from __future__ import annotations

from typing import Any

from volplane.api.snapshot import VolumeGroupSnapshotClass, VolumeGroupSnapshotContent
from volplane.client.client import Client
from volplane.csi import v1
from volplane.loops.events import EventRecorder
from volplane.rules import snapshots
from volplane.sidecars.base import DriverClient, read_secrets
from volplane.sidecars.snapshotter.content_controller import ContentController, to_nanoseconds
from volplane.sidecars.snapshotter.plan import (
    DeleteDriverSnapshot,
    PollSnapshotStatus,
    SnapshotterDriverInfo,
    TakeSnapshot,
)
from volplane.sidecars.snapshotter.settings import SnapshotterOptions


class GroupSnapshotContentController(
    ContentController[VolumeGroupSnapshotContent, VolumeGroupSnapshotClass, v1.VolumeGroupSnapshot]
):
    name = "csi-snapshotter-groups"
    kind = snapshots.GROUP_SNAPSHOT
    content_type = VolumeGroupSnapshotContent
    class_type = VolumeGroupSnapshotClass
    deleted_fields = ("volumeGroupSnapshotHandle", "readyToUse", "creationTime", "error")

    def __init__(
        self, client: Client, driver: DriverClient, settings: SnapshotterOptions, *, events: EventRecorder
    ) -> None:
        info = SnapshotterDriverInfo(
            driver.name,
            prefix=settings.groupsnapshot_name_prefix,
            uuid_length=settings.groupsnapshot_name_uuid_length,
            extra_metadata=settings.extra_create_metadata,
        )
        super().__init__(client, driver, settings, info, events=events)

    async def create_snapshot(
        self, content: VolumeGroupSnapshotContent, step: TakeSnapshot, credentials: dict[str, str]
    ) -> v1.VolumeGroupSnapshot:
        request = v1.CreateVolumeGroupSnapshotRequest(
            name=step.name,
            source_volume_ids=step.volumes,
            secrets=credentials,
            parameters=step.parameters,
        )
        reply: v1.CreateVolumeGroupSnapshotResponse = await self.call(
            "CreateVolumeGroupSnapshot", request, content
        )
        return reply.group_snapshot

    async def poll_snapshot(
        self, content: VolumeGroupSnapshotContent, step: PollSnapshotStatus
    ) -> v1.VolumeGroupSnapshot:
        request = v1.GetVolumeGroupSnapshotRequest(
            group_snapshot_id=step.handle,
            snapshot_ids=step.members,
            secrets=await read_secrets(self.client, step.secret),
        )
        reply: v1.GetVolumeGroupSnapshotResponse = await self.call("GetVolumeGroupSnapshot", request, content)
        return reply.group_snapshot

    async def delete_snapshot(
        self, content: VolumeGroupSnapshotContent, step: DeleteDriverSnapshot, credentials: dict[str, str]
    ) -> None:
        request = v1.DeleteVolumeGroupSnapshotRequest(
            group_snapshot_id=step.handle, snapshot_ids=step.members, secrets=credentials
        )
        await self.call("DeleteVolumeGroupSnapshot", request, content)

    def status_from(
        self, content: VolumeGroupSnapshotContent, reply: v1.VolumeGroupSnapshot
    ) -> dict[str, Any]:
        now = content.status
        status: dict[str, Any] = {}
        if now is None or now.volume_group_snapshot_handle is None:
            status["volumeGroupSnapshotHandle"] = reply.group_snapshot_id
        if now is None or now.creation_time is None:
            status["creationTime"] = snapshots.stamp(to_nanoseconds(reply.creation_time))
        if content.spec.source.volume_handles:
            status["volumeSnapshotInfoList"] = [_member_info(snapshot) for snapshot in reply.snapshots]
        return status


def _member_info(snapshot: v1.Snapshot) -> dict[str, Any]:
    return {
        "volumeHandle": snapshot.source_volume_id,
        "snapshotHandle": snapshot.snapshot_id,
        "creationTime": to_nanoseconds(snapshot.creation_time),
        "readyToUse": snapshot.ready_to_use,
        "restoreSize": snapshot.size_bytes,
    }
