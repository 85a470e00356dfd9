"""The snapshotter at work: contents of one driver become snapshots, and go again.

What is asked of the driver is marked on the content before. The subtle thing: a snapshot that is not ready
yet is no failure, but it is looked at again like one, later and later.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from volplane.api.core import SecretReference
from volplane.api.snapshot import VolumeSnapshotClass, VolumeSnapshotContent
from volplane.base import clock, trace
from volplane.client.client import Client
from volplane.csi import v1
from volplane.csi.outcome import CallError, classify
from volplane.loops.controller import Controller, Refused
from volplane.loops.events import Recorder
from volplane.loops.queue import Backoff
from volplane.rules import snapshots
from volplane.sidecars import Driver, secrets
from volplane.sidecars.snapshotter import plan as plans
from volplane.sidecars.snapshotter.plan import Delete, Fail, Look, Release, Take, Unmark
from volplane.sidecars.snapshotter.settings import Settings

log = logging.getLogger(__name__)

COMPONENT = "csi-snapshotter"
FIRST, LATER = "SnapshotCreationFailed", "SnapshotContentCheckandUpdateFailed"
BILLION = 1_000_000_000


class Contents(Controller[str]):
    name = COMPONENT

    def __init__(
        self, client: Client, driver: Driver, settings: Settings, *, events: Recorder, node: str | None = None
    ) -> None:
        self.workers = settings.worker_threads
        self.backoff = Backoff(settings.retry_interval_start, settings.retry_interval_max)
        self.resync = settings.resync_period
        super().__init__(client, events=events)
        self.driver, self.settings = driver, settings
        self.facts = plans.Driver(
            driver.name,
            prefix=settings.snapshot_name_prefix,
            uuid_length=settings.snapshot_name_uuid_length,
            extra_metadata=settings.extra_create_metadata,
            node=node,
        )

    def setup(self) -> None:
        self.contents = self.watch(VolumeSnapshotContent, self._content_changed)
        self.classes = self.watch(VolumeSnapshotClass, self._class_changed)
        self.by_class = self.contents.index("class", _class_of)

    def _content_changed(
        self, old: VolumeSnapshotContent | None, new: VolumeSnapshotContent | None
    ) -> Iterator[str]:
        if new is not None and (old is new or plans.facts(old) != plans.facts(new)):
            yield new.name

    def _class_changed(
        self, old: VolumeSnapshotClass | None, new: VolumeSnapshotClass | None
    ) -> Iterator[str]:
        if new is not None and old is None:
            yield from (c.name for c in self.by_class[new.name] if not snapshots.is_ready(c))

    async def reconcile(self, key: str) -> None:
        content = self.contents.get(key)
        if content is None:
            return
        found = self.classes.get(content.spec.volume_snapshot_class_name or "")
        for step in plans.plan(content, found, self.facts):
            match step:
                case Take():
                    await self._take(content, step)
                case Look(handle, secret):
                    await self._look(content, handle, secret)
                case Delete(handle, secret):
                    content = await self._delete(content, handle, secret)
                case Unmark():
                    await self._mark(content, present=False)
                case Release():
                    await self._release(content)
                case Fail(why, first):
                    await self._fail(content, why, first=first)
                case _:
                    assert_never(step)

    # --- taking

    async def _take(self, content: VolumeSnapshotContent, step: Take) -> None:
        try:
            credentials = await self._secrets(content, step.secret)
        except Refused as error:
            why = f"failed to get input parameters to create snapshot for content {content.name}: "
            return await self._fail(content, why + _quoted(error), first=step.first)
        await self._mark(content, present=True)
        request = v1.CreateSnapshotRequest(
            source_volume_id=step.volume, name=step.name, secrets=credentials, parameters=step.parameters
        )
        log.info("Creating snapshot", extra={"content": content.name, "volumeHandle": step.volume})
        try:
            reply = await self._call("CreateSnapshot", request, content)
        except CallError as error:
            if classify(error).settled:
                await self._mark(content, present=False)
            why = f"failed to take snapshot of the volume {step.volume}: {_quoted(error)}"
            return await self._fail(content, why, first=step.first)
        await self._tell(content, reply.snapshot)
        await self._mark(content, present=False)
        self._look_again(content, ready=reply.snapshot.ready_to_use)

    async def _look(
        self, content: VolumeSnapshotContent, handle: str, secret: SecretReference | None
    ) -> None:
        snapshot = v1.Snapshot(snapshot_id=handle, ready_to_use=True)
        if "LIST_SNAPSHOTS" in self.driver.controller:  # without it, its word has to be enough
            try:
                request = v1.ListSnapshotsRequest(
                    snapshot_id=handle, secrets=await secrets(self.client, secret)
                )
                page = await self._call("ListSnapshots", request, content)
            except (CallError, Refused) as error:
                return await self._fail(content, str(error), first=False)
            if not page.entries:
                return await self._fail(
                    content, f"can not find snapshot for snapshotID {handle}", first=False
                )
            snapshot = page.entries[0].snapshot
        await self._tell(content, snapshot)
        self._look_again(content, ready=snapshot.ready_to_use)

    def _look_again(self, content: VolumeSnapshotContent, *, ready: bool) -> None:
        """Before it goes, when it is to go; when it may be ready, otherwise."""
        current = self.contents.get(content.name)
        if current is not None and current.is_deleting:
            return self.queue.add(content.name)
        if not ready:
            raise Refused(f"snapshot of content {content.name} is not ready to use yet")

    async def _tell(self, content: VolumeSnapshotContent, snapshot: v1.Snapshot) -> None:
        """What the driver said, as far as it is news; handle, time and size are set once."""
        now = content.status
        status: dict[str, Any] = {"readyToUse": snapshot.ready_to_use}
        if now is None or now.snapshot_handle is None:
            status["snapshotHandle"] = snapshot.snapshot_id
        if now is None or now.creation_time is None:
            status["creationTime"] = _nanoseconds(snapshot)
        if snapshot.size_bytes > 0 and (now is None or now.restore_size is None):
            status["restoreSize"] = snapshot.size_bytes
        if snapshot.group_snapshot_id and (now is None or now.volume_group_snapshot_handle is None):
            status["volumeGroupSnapshotHandle"] = snapshot.group_snapshot_id
        if snapshot.ready_to_use and now is not None and now.error is not None:
            status["error"] = None
        with trace.span(COMPONENT, "told", f"content/{content.name}"):
            await self._patch_status(content, status)

    async def _fail(self, content: VolumeSnapshotContent, why: str, *, first: bool) -> None:
        reason = FIRST if first else LATER
        told = f"Failed to create snapshot: {why}" if first else _later(why)
        error = content.status.error if content.status is not None else None
        if error is None or error.message != told:
            self.events.warning(content, reason, told)
            status = {"error": {"time": clock.stamp(), "message": told}, "readyToUse": False}
            await self._patch_status(content, status)
        raise Refused(told)

    # --- going

    async def _delete(
        self, content: VolumeSnapshotContent, handle: str, secret: SecretReference | None
    ) -> VolumeSnapshotContent:
        try:
            credentials = await self._secrets(content, secret)
        except Refused:
            self.events.warning(content, "SnapshotDeleteError", "Failed to get snapshot credentials")
            raise
        request = v1.DeleteSnapshotRequest(snapshot_id=handle, secrets=credentials)
        try:
            await self._call("DeleteSnapshot", request, content)
        except CallError as error:
            self.events.warning(content, "SnapshotDeleteError", "Failed to delete snapshot")
            raise Refused(f'failed to delete snapshot "{content.name}", err: {error}') from error
        log.info("Snapshot deleted", extra={"content": content.name, "snapshotHandle": handle})
        gone = dict.fromkeys(("snapshotHandle", "readyToUse", "creationTime", "restoreSize"))
        return await self._patch_status(content, gone) or content

    async def _release(self, content: VolumeSnapshotContent) -> None:
        left = [f for f in content.metadata.finalizers if f != snapshots.CONTENT_BOUND]
        with trace.span(COMPONENT, "release content", f"content/{content.name}"):
            await self.client.patch(
                VolumeSnapshotContent,
                content.name,
                merge={"metadata": {"finalizers": left}},
                uid=content.uid,
                revision=content.metadata.resource_version,
                missing_ok=True,
            )

    # --- what all have in common

    async def _secrets(
        self, content: VolumeSnapshotContent, reference: SecretReference | None
    ) -> dict[str, str]:
        if reference is not None and not (reference.name and reference.namespace):
            why = "err: secret name or namespace not specified"
            raise Refused(f'cannot retrieve secrets for snapshot content "{content.name}", {why}')
        try:
            return await secrets(self.client, reference)
        except Refused as error:
            log.warning("no credentials for content %s: %s", content.name, error)
            raise Refused(f'cannot get credentials for snapshot content "{content.name}"') from error

    async def _mark(self, content: VolumeSnapshotContent, *, present: bool) -> None:
        """Intent before effect: asked for, and not yet answered for good."""
        if present and snapshots.BEING_CREATED in content.metadata.annotations:
            return
        notes = {snapshots.BEING_CREATED: snapshots.YES if present else None}
        await self.client.patch(
            VolumeSnapshotContent,
            content.name,
            merge={"metadata": {"annotations": notes}},
            uid=content.uid,
            missing_ok=not present,
        )

    async def _patch_status(
        self, content: VolumeSnapshotContent, status: Mapping[str, Any]
    ) -> VolumeSnapshotContent | None:
        return await self.client.patch(
            VolumeSnapshotContent,
            content.name,
            merge={"status": status},
            subresource="status",
            uid=content.uid,
            missing_ok=True,
        )

    async def _call(self, method: str, request: Any, content: VolumeSnapshotContent) -> Any:
        subject = f"content/{content.name}"
        return await self.driver.call(method, request, timeout=self.settings.timeout, subject=subject)


def _class_of(content: VolumeSnapshotContent) -> list[str]:
    name = content.spec.volume_snapshot_class_name
    return [name] if name is not None else []


def _nanoseconds(snapshot: v1.Snapshot) -> int:
    told = snapshot.creation_time
    if snapshot.HasField("creation_time") and (told.seconds or told.nanos):
        return int(told.seconds * BILLION + told.nanos)
    return int(clock.wall().timestamp() * BILLION)


def _later(why: str) -> str:
    return f"Failed to check and update snapshot content: {why}"


def _quoted(error: Exception) -> str:
    return json.dumps(str(error), ensure_ascii=False)
