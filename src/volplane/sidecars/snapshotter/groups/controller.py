"""Creates and deletes group snapshots: one call for all volumes of a group, one for its deletion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn, assert_never

from msgspec import Struct, structs

from volplane.api.snapshot import VolumeGroupSnapshotClass, VolumeGroupSnapshotContent
from volplane.client.client import Client
from volplane.csi import v1
from volplane.csi.outcome import CallError, classify
from volplane.loops.controller import Continue, RetryableError
from volplane.loops.events import EventRecorder
from volplane.rules import groups, snapshots
from volplane.rules.waits import Wait
from volplane.sidecars import DriverClient, read_secrets
from volplane.sidecars.snapshotter.groups import plan as plans
from volplane.sidecars.snapshotter.groups.plan import (
    DeleteDriverSnapshot,
    PollSnapshotStatus,
    RemoveContentFinalizer,
    RemoveCreationMark,
    TakeSnapshot,
)
from volplane.sidecars.snapshotter.plan import ReportSnapshotError
from volplane.sidecars.snapshotter.rpc_base import SnapshotRpcController, quote, to_nanoseconds
from volplane.sidecars.snapshotter.settings import SnapshotterOptions

CREATION_FAILED, UPDATE_FAILED = "GroupSnapshotCreationFailed", "GroupSnapshotContentCheckandUpdateFailed"


class GroupSnapshotContentView(Struct, frozen=True):
    content: VolumeGroupSnapshotContent
    snapshot_class: VolumeGroupSnapshotClass | None


class GroupSnapshotContentController(SnapshotRpcController[GroupSnapshotContentView, plans.Step]):
    name = "csi-snapshotter-groups"
    creation_mark = groups.BEING_CREATED
    finalizer = groups.CONTENT_BOUND

    def __init__(
        self, client: Client, driver: DriverClient, settings: SnapshotterOptions, *, events: EventRecorder
    ) -> None:
        super().__init__(client, driver, settings, events=events)
        self.facts = plans.SnapshotterDriverInfo(
            driver.name,
            prefix=settings.groupsnapshot_name_prefix,
            uuid_length=settings.groupsnapshot_name_uuid_length,
            extra_metadata=settings.extra_create_metadata,
        )

    def setup(self) -> None:
        self.contents = self.watch(VolumeGroupSnapshotContent, self.keys_of_content)
        self.classes = self.watch(VolumeGroupSnapshotClass, self.keys_of_class)

    def keys_of_content(
        self, old: VolumeGroupSnapshotContent | None, new: VolumeGroupSnapshotContent | None
    ) -> Iterator[str]:
        content = new or old
        if content is not None and (old is new or plans.relevant_fields(old) != plans.relevant_fields(new)):
            yield content.name

    def keys_of_class(
        self, old: VolumeGroupSnapshotClass | None, new: VolumeGroupSnapshotClass | None
    ) -> Iterator[str]:
        if new is not None and old is None:
            yield from (c.name for c in self.contents.all() if not groups.is_ready(c))

    def view(self, key: str) -> GroupSnapshotContentView | None:
        content = self.contents.get(key)
        if content is None:
            return None
        return GroupSnapshotContentView(
            content, self.classes.get(content.spec.volume_group_snapshot_class_name or "")
        )

    def plan(self, view: GroupSnapshotContentView) -> Iterator[plans.Step | Wait]:
        return plans.plan(view.content, view.snapshot_class, self.facts)

    async def act(
        self, key: str, view: GroupSnapshotContentView, step: plans.Step
    ) -> Continue[GroupSnapshotContentView] | None:
        content = view.content
        match step:
            case TakeSnapshot():
                await self._take(content, step)
            case PollSnapshotStatus():
                await self._look(content, step)
            case DeleteDriverSnapshot():
                return Continue(structs.replace(view, content=await self._delete(content, step)))
            case RemoveCreationMark():
                await self.set_creation_mark(content, present=False)
            case RemoveContentFinalizer():
                await self.remove_finalizer(content)
            case ReportSnapshotError(message, first):
                await self._report_failure(content, message, first=first)
            case _:
                assert_never(step)
        return None

    async def _take(self, content: VolumeGroupSnapshotContent, step: TakeSnapshot) -> None:
        try:
            credentials = await self.read_credentials(content, step.secret)
        except RetryableError as error:
            why = f"failed to get input parameters to create group snapshot for {content.name}: "
            await self._fail(content, why + quote(error), first=step.first)
        await self.set_creation_mark(content, present=True)
        request = v1.CreateVolumeGroupSnapshotRequest(
            name=step.name,
            source_volume_ids=step.volumes,
            secrets=credentials,
            parameters=step.parameters,
        )
        try:
            reply = await self.call("CreateVolumeGroupSnapshot", request, content)
        except CallError as error:
            if classify(error).is_final:
                await self.set_creation_mark(content, present=False)
            volumes = f"[{' '.join(step.volumes)}]"
            why = f"failed to take group snapshot of the volumes {volumes}: {quote(error)}"
            await self._fail(content, why, first=step.first)
        await self._write_status(content, reply.group_snapshot)
        await self.set_creation_mark(content, present=False)
        self.plan_again(
            self.contents.get(content.name),
            f"group snapshot of content {content.name}",
            ready=reply.group_snapshot.ready_to_use,
        )

    async def _look(self, content: VolumeGroupSnapshotContent, step: PollSnapshotStatus) -> None:
        try:
            request = v1.GetVolumeGroupSnapshotRequest(
                group_snapshot_id=step.handle,
                snapshot_ids=step.members,
                secrets=await read_secrets(self.client, step.secret),
            )
            reply = await self.call("GetVolumeGroupSnapshot", request, content)
        except (CallError, RetryableError) as error:
            await self._fail(content, str(error), first=False)
        await self._write_status(content, reply.group_snapshot)
        self.plan_again(
            self.contents.get(content.name),
            f"group snapshot of content {content.name}",
            ready=reply.group_snapshot.ready_to_use,
        )

    async def _write_status(self, content: VolumeGroupSnapshotContent, group: v1.VolumeGroupSnapshot) -> None:
        now = content.status
        status: dict[str, Any] = {"readyToUse": group.ready_to_use}
        if now is None or now.volume_group_snapshot_handle is None:
            status["volumeGroupSnapshotHandle"] = group.group_snapshot_id
        if now is None or now.creation_time is None:
            status["creationTime"] = snapshots.stamp(to_nanoseconds(group.creation_time))
        if content.spec.source.volume_handles:
            status["volumeSnapshotInfoList"] = [_info(snapshot) for snapshot in group.snapshots]
        if group.ready_to_use and now is not None and now.error is not None:
            status["error"] = None
        await self.set_status(content, status)

    async def _fail(self, content: VolumeGroupSnapshotContent, why: str, *, first: bool) -> NoReturn:
        await self._report_failure(content, why, first=first)
        raise RetryableError(why)

    async def _report_failure(self, content: VolumeGroupSnapshotContent, why: str, *, first: bool) -> None:
        error = content.status.error if content.status is not None else None
        reason, text = (
            (CREATION_FAILED, "Failed to create group snapshot")
            if first
            else (UPDATE_FAILED, "Failed to check and update group snapshot content")
        )
        await self.report_error(content, error, reason, f"{text}: {why}")

    async def _delete(
        self, content: VolumeGroupSnapshotContent, step: DeleteDriverSnapshot
    ) -> VolumeGroupSnapshotContent:
        try:
            credentials = await self.read_credentials(content, step.secret)
        except RetryableError:
            self.events.warning(content, "GroupSnapshotDeleteError", "Failed to get snapshot credentials")
            raise
        request = v1.DeleteVolumeGroupSnapshotRequest(
            group_snapshot_id=step.handle, snapshot_ids=step.members, secrets=credentials
        )
        try:
            await self.call("DeleteVolumeGroupSnapshot", request, content)
        except CallError as error:
            self.events.warning(content, "GroupSnapshotDeleteError", "Failed to delete group snapshot")
            raise RetryableError(f'failed to delete group snapshot "{content.name}", err: {error}') from error
        gone = dict.fromkeys(("volumeGroupSnapshotHandle", "readyToUse", "creationTime", "error"))
        return await self.set_status(content, gone) or content


def _info(snapshot: v1.Snapshot) -> dict[str, Any]:
    return {
        "volumeHandle": snapshot.source_volume_id,
        "snapshotHandle": snapshot.snapshot_id,
        "creationTime": to_nanoseconds(snapshot.creation_time),
        "readyToUse": snapshot.ready_to_use,
        "restoreSize": snapshot.size_bytes,
    }
