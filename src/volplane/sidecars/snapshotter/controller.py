"""Creates and deletes snapshots for the VolumeSnapshotContents of one driver.

A call to the driver is marked on the content before it is made. A snapshot that is not ready yet is no
failure, but it is polled with the pauses of one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NoReturn, assert_never

from msgspec import Struct, structs

from volplane.api.core import SecretReference
from volplane.api.snapshot import VolumeSnapshotClass, VolumeSnapshotContent
from volplane.client.client import Client
from volplane.csi import v1
from volplane.csi.outcome import CallError, classify
from volplane.loops.controller import Continue, RetryableError
from volplane.loops.events import EventRecorder
from volplane.rules import snapshots
from volplane.rules.waits import Wait
from volplane.sidecars import DriverClient, read_secrets
from volplane.sidecars.snapshotter import plan as plans
from volplane.sidecars.snapshotter.plan import (
    DeleteDriverSnapshot,
    PollSnapshotStatus,
    RemoveContentFinalizer,
    RemoveCreationMark,
    ReportSnapshotError,
    TakeSnapshot,
)
from volplane.sidecars.snapshotter.rpc_base import COMPONENT, SnapshotRpcController, quote, to_nanoseconds
from volplane.sidecars.snapshotter.settings import SnapshotterOptions

log = logging.getLogger(__name__)

CREATION_FAILED, UPDATE_FAILED = "SnapshotCreationFailed", "SnapshotContentCheckandUpdateFailed"


class SnapshotContentView(Struct, frozen=True):
    content: VolumeSnapshotContent
    snapshot_class: VolumeSnapshotClass | None


class SnapshotContentController(SnapshotRpcController[SnapshotContentView, plans.Step]):
    name = COMPONENT
    creation_mark = snapshots.BEING_CREATED
    finalizer = snapshots.CONTENT_BOUND

    def __init__(
        self,
        client: Client,
        driver: DriverClient,
        settings: SnapshotterOptions,
        *,
        events: EventRecorder,
        node: str | None = None,
    ) -> None:
        super().__init__(client, driver, settings, events=events)
        self.facts = plans.SnapshotterDriverInfo(
            driver.name,
            prefix=settings.snapshot_name_prefix,
            uuid_length=settings.snapshot_name_uuid_length,
            extra_metadata=settings.extra_create_metadata,
            node=node,
        )

    def setup(self) -> None:
        self.contents = self.watch(VolumeSnapshotContent, self.keys_of_content)
        self.classes = self.watch(VolumeSnapshotClass, self.keys_of_class)
        self.by_class = self.contents.index("class", _class_of)

    def keys_of_content(
        self, old: VolumeSnapshotContent | None, new: VolumeSnapshotContent | None
    ) -> Iterator[str]:
        content = new or old
        if content is not None and (old is new or plans.relevant_fields(old) != plans.relevant_fields(new)):
            yield content.name

    def keys_of_class(
        self, old: VolumeSnapshotClass | None, new: VolumeSnapshotClass | None
    ) -> Iterator[str]:
        if new is not None and old is None:
            yield from (c.name for c in self.by_class[new.name] if not snapshots.is_ready(c))

    def view(self, key: str) -> SnapshotContentView | None:
        content = self.contents.get(key)
        if content is None:
            return None
        return SnapshotContentView(content, self.classes.get(content.spec.volume_snapshot_class_name or ""))

    def plan(self, view: SnapshotContentView) -> Iterator[plans.Step | Wait]:
        return plans.plan(view.content, view.snapshot_class, self.facts)

    async def act(
        self, key: str, view: SnapshotContentView, step: plans.Step
    ) -> Continue[SnapshotContentView] | None:
        content = view.content
        match step:
            case TakeSnapshot():
                await self._take(content, step)
            case PollSnapshotStatus(handle, secret):
                await self._look(content, handle, secret)
            case DeleteDriverSnapshot(handle, secret):
                deleted = await self._delete(content, handle, secret)
                return Continue(structs.replace(view, content=deleted))
            case RemoveCreationMark():
                await self.set_creation_mark(content, present=False)
            case RemoveContentFinalizer():
                await self.remove_finalizer(content)
            case ReportSnapshotError(message, first):
                await self._report_failure(content, message, first=first)
            case _:
                assert_never(step)
        return None

    # --- taking

    async def _take(self, content: VolumeSnapshotContent, step: TakeSnapshot) -> None:
        try:
            credentials = await self.read_credentials(content, step.secret)
        except RetryableError as error:
            why = f"failed to get input parameters to create snapshot for content {content.name}: "
            await self._fail(content, why + quote(error), first=step.first)
        await self.set_creation_mark(content, present=True)
        request = v1.CreateSnapshotRequest(
            source_volume_id=step.volume, name=step.name, secrets=credentials, parameters=step.parameters
        )
        log.info("Creating snapshot", extra={"content": content.name, "volumeHandle": step.volume})
        try:
            reply = await self.call("CreateSnapshot", request, content)
        except CallError as error:
            if classify(error).is_final:
                await self.set_creation_mark(content, present=False)
            why = f"failed to take snapshot of the volume {step.volume}: {quote(error)}"
            await self._fail(content, why, first=step.first)
        await self._write_status(content, reply.snapshot)
        await self.set_creation_mark(content, present=False)
        self.plan_again(
            self.contents.get(content.name),
            f"snapshot of content {content.name}",
            ready=reply.snapshot.ready_to_use,
        )

    async def _look(
        self, content: VolumeSnapshotContent, handle: str, secret: SecretReference | None
    ) -> None:
        snapshot = v1.Snapshot(snapshot_id=handle, ready_to_use=True)
        if "LIST_SNAPSHOTS" in self.driver.controller:  # without it, the handle has to be enough
            try:
                request = v1.ListSnapshotsRequest(
                    snapshot_id=handle, secrets=await read_secrets(self.client, secret)
                )
                page = await self.call("ListSnapshots", request, content)
            except (CallError, RetryableError) as error:
                await self._fail(content, str(error), first=False)
            if not page.entries:
                await self._fail(content, f"can not find snapshot for snapshotID {handle}", first=False)
            snapshot = page.entries[0].snapshot
        await self._write_status(content, snapshot)
        self.plan_again(
            self.contents.get(content.name),
            f"snapshot of content {content.name}",
            ready=snapshot.ready_to_use,
        )

    async def _write_status(self, content: VolumeSnapshotContent, snapshot: v1.Snapshot) -> None:
        """Write what the driver returned; handle, time and size are set once."""
        now = content.status
        status: dict[str, Any] = {"readyToUse": snapshot.ready_to_use}
        if now is None or now.snapshot_handle is None:
            status["snapshotHandle"] = snapshot.snapshot_id
        if now is None or now.creation_time is None:
            status["creationTime"] = to_nanoseconds(snapshot.creation_time)
        if snapshot.size_bytes > 0 and (now is None or now.restore_size is None):
            status["restoreSize"] = snapshot.size_bytes
        if snapshot.group_snapshot_id and (now is None or now.volume_group_snapshot_handle is None):
            status["volumeGroupSnapshotHandle"] = snapshot.group_snapshot_id
        if snapshot.ready_to_use and now is not None and now.error is not None:
            status["error"] = None
        await self.set_status(content, status)

    async def _fail(self, content: VolumeSnapshotContent, why: str, *, first: bool) -> NoReturn:
        await self._report_failure(content, why, first=first)
        raise RetryableError(why)

    async def _report_failure(self, content: VolumeSnapshotContent, why: str, *, first: bool) -> None:
        error = content.status.error if content.status is not None else None
        reason, text = (
            (CREATION_FAILED, "Failed to create snapshot")
            if first
            else (UPDATE_FAILED, "Failed to check and update snapshot content")
        )
        await self.report_error(content, error, reason, f"{text}: {why}")

    # --- going

    async def _delete(
        self, content: VolumeSnapshotContent, handle: str, secret: SecretReference | None
    ) -> VolumeSnapshotContent:
        try:
            credentials = await self.read_credentials(content, secret)
        except RetryableError:
            self.events.warning(content, "SnapshotDeleteError", "Failed to get snapshot credentials")
            raise
        request = v1.DeleteSnapshotRequest(snapshot_id=handle, secrets=credentials)
        try:
            await self.call("DeleteSnapshot", request, content)
        except CallError as error:
            self.events.warning(content, "SnapshotDeleteError", "Failed to delete snapshot")
            raise RetryableError(f'failed to delete snapshot "{content.name}", err: {error}') from error
        log.info("Snapshot deleted", extra={"content": content.name, "snapshotHandle": handle})
        gone = dict.fromkeys(("snapshotHandle", "readyToUse", "creationTime", "restoreSize"))
        return await self.set_status(content, gone) or content


def _class_of(content: VolumeSnapshotContent) -> list[str]:
    name = content.spec.volume_snapshot_class_name
    return [name] if name is not None else []
