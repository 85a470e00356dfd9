"""Creates, polls and deletes the snapshots of contents: what snapshots and group snapshots have in common.

The content is annotated before the driver is called. A snapshot that is not ready yet is no error, but is
polled with the backoff of one.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, NoReturn, TypeVar, assert_never

from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import Struct, structs

from volplane.api.core import SecretReference
from volplane.api.snapshot import VolumeGroupSnapshotClass, VolumeSnapshotClass
from volplane.base import clock, trace
from volplane.base.backoff import Backoff
from volplane.client.client import Client
from volplane.csi import v1
from volplane.csi.outcome import CallError, classify
from volplane.loops.controller import Continue, Controller, RetryableError
from volplane.loops.events import EventRecorder
from volplane.rules import snapshots
from volplane.rules.snapshots import AnyContent, SnapshotKind
from volplane.rules.waits import Wait
from volplane.sidecars.base import DriverClient, read_secrets
from volplane.sidecars.snapshotter import plan as plans
from volplane.sidecars.snapshotter.plan import (
    DeleteDriverSnapshot,
    PollSnapshotStatus,
    RemoveContentFinalizer,
    RemoveCreationMark,
    ReportSnapshotError,
    SnapshotterDriverInfo,
    TakeSnapshot,
)
from volplane.sidecars.snapshotter.settings import SnapshotterOptions

log = logging.getLogger(__name__)

COMPONENT = "csi-snapshotter"
BILLION = 1_000_000_000

C = TypeVar("C", bound=AnyContent)
L = TypeVar("L", bound=VolumeSnapshotClass | VolumeGroupSnapshotClass)
R = TypeVar("R", bound=v1.Snapshot | v1.VolumeGroupSnapshot)  # what the driver returns


class ContentView(Struct, Generic[C, L], frozen=True):
    content: C
    snapshot_class: L | None


class ContentController(Controller[str, ContentView[C, L], plans.Step], Generic[C, L, R]):
    """The subclasses know the calls of their kind, and what they return."""

    kind: ClassVar[SnapshotKind]
    content_type: type[C]
    class_type: type[L]
    deleted_fields: ClassVar[tuple[str, ...]]  # status fields to remove with the snapshot

    def __init__(
        self,
        client: Client,
        driver: DriverClient,
        settings: SnapshotterOptions,
        info: SnapshotterDriverInfo,
        *,
        events: EventRecorder,
    ) -> None:
        super().__init__(
            client,
            events=events,
            workers=settings.worker_threads,
            backoff=Backoff(settings.retry_interval_start, settings.retry_interval_max),
            resync=settings.resync_period,
        )
        self.driver, self.settings, self.info = driver, settings, info

    # --- the calls of a kind

    @abstractmethod
    async def create_snapshot(self, content: C, step: TakeSnapshot, credentials: dict[str, str]) -> R: ...

    @abstractmethod
    async def poll_snapshot(self, content: C, step: PollSnapshotStatus) -> R: ...

    @abstractmethod
    async def delete_snapshot(
        self, content: C, step: DeleteDriverSnapshot, credentials: dict[str, str]
    ) -> None: ...

    @abstractmethod
    def status_from(self, content: C, reply: R) -> dict[str, Any]:
        """The fields of the status that the kinds spell differently."""

    # --- which keys a change wakes

    def setup(self) -> None:
        self.contents = self.watch(self.content_type, self.keys_of_content)
        self.classes = self.watch(self.class_type, self.keys_of_class)
        self.by_class = self.contents.index("class", _class_names)

    def keys_of_content(self, old: C | None, new: C | None) -> Iterator[str]:
        content = new or old
        if content is not None and (old is new or plans.relevant_fields(old) != plans.relevant_fields(new)):
            yield content.name

    def keys_of_class(self, old: L | None, new: L | None) -> Iterator[str]:
        if new is not None and old is None:
            yield from (c.name for c in self.by_class[new.name] if not snapshots.is_ready(c))

    # --- what to do

    def view(self, key: str) -> ContentView[C, L] | None:
        content = self.contents.get(key)
        if content is None:
            return None
        return ContentView(content, self.classes.get(snapshots.class_name(content) or ""))

    def plan(self, view: ContentView[C, L]) -> Iterator[plans.Step | Wait]:
        return plans.plan(view.content, view.snapshot_class, self.info)

    # --- doing it

    async def act(
        self, key: str, view: ContentView[C, L], step: plans.Step
    ) -> Continue[ContentView[C, L]] | None:
        content = view.content
        match step:
            case TakeSnapshot():
                await self._take(content, step)
            case PollSnapshotStatus():
                await self._poll(content, step)
            case DeleteDriverSnapshot():
                return Continue(structs.replace(view, content=await self._delete(content, step)))
            case RemoveCreationMark():
                await self._set_creation_mark(content, present=False)
            case RemoveContentFinalizer():
                await self._remove_finalizer(content)
            case ReportSnapshotError(message, first):
                await self._report_error(content, message, first=first)
            case _:
                assert_never(step)
        return None

    async def _take(self, content: C, step: TakeSnapshot) -> None:
        try:
            credentials = await self._read_credentials(content, step.secret)
        except RetryableError as error:
            why = f"{plans.input_error(content)}: {_quote(error)}"
            await self._fail(content, why, first=step.first)
        await self._set_creation_mark(content, present=True)
        volumes = " ".join(step.volumes)
        log.info("Creating %s", self.kind.noun, extra={"content": content.name, "volumeHandle": volumes})
        try:
            reply = await self.create_snapshot(content, step, credentials)
        except CallError as error:
            if classify(error).is_final:
                await self._set_creation_mark(content, present=False)
            source = f"volume {volumes}" if self.kind is snapshots.SNAPSHOT else f"volumes [{volumes}]"
            why = f"failed to take {self.kind.noun} of the {source}: {_quote(error)}"
            await self._fail(content, why, first=step.first)
        await self._write_status(content, reply)
        await self._set_creation_mark(content, present=False)
        self._retry_unless_ready(content, ready=reply.ready_to_use)

    async def _poll(self, content: C, step: PollSnapshotStatus) -> None:
        try:
            reply = await self.poll_snapshot(content, step)
        except (CallError, RetryableError) as error:
            await self._fail(content, str(error), first=False)
        await self._write_status(content, reply)
        self._retry_unless_ready(content, ready=reply.ready_to_use)

    async def _delete(self, content: C, step: DeleteDriverSnapshot) -> C:
        reason = f"{self.kind.reason}DeleteError"
        try:
            credentials = await self._read_credentials(content, step.secret)
        except RetryableError:
            self.events.warning(content, reason, "Failed to get snapshot credentials")
            raise
        try:
            await self.delete_snapshot(content, step, credentials)
        except CallError as error:
            self.events.warning(content, reason, f"Failed to delete {self.kind.noun}")
            raise RetryableError(
                f'failed to delete {self.kind.noun} "{content.name}", err: {error}'
            ) from error
        log.info("Deleted %s", self.kind.noun, extra={"content": content.name, "snapshotHandle": step.handle})
        return await self._set_status(content, dict.fromkeys(self.deleted_fields)) or content

    def _retry_unless_ready(self, content: C, *, ready: bool) -> None:
        """Plan a content that is being deleted at once, and one that is not ready after the backoff."""
        current = self.contents.get(content.name)
        if current is not None and current.is_deleting:
            return self.queue.add(current.name)
        if not ready:
            raise RetryableError(f"{self.kind.noun} of content {content.name} is not ready to use yet")

    # --- reading and writing

    async def call(self, method: str, request: Any, content: C) -> Any:
        subject = f"content/{content.name}"
        return await self.driver.call(method, request, timeout=self.settings.timeout, subject=subject)

    async def _read_credentials(self, content: C, reference: SecretReference | None) -> dict[str, str]:
        """Unlike a volume, a snapshot is not deleted without the secret that its content names."""
        if reference is not None and not (reference.name and reference.namespace):
            why = "err: secret name or namespace not specified"
            raise RetryableError(f'cannot retrieve secrets for snapshot content "{content.name}", {why}')
        try:
            return await read_secrets(self.client, reference)
        except RetryableError as error:
            log.warning("no credentials for content %s: %s", content.name, error)
            raise RetryableError(f'cannot get credentials for snapshot content "{content.name}"') from error

    async def _set_creation_mark(self, content: C, *, present: bool) -> None:
        """Annotate that the driver is called; the outcome is unknown until the annotation is removed."""
        if present and self.kind.being_created in content.metadata.annotations:
            return
        notes = {self.kind.being_created: snapshots.YES if present else None}
        await self.client.patch(
            type(content),
            content.name,
            merge={"metadata": {"annotations": notes}},
            uid=content.uid,
            missing_ok=not present,
        )

    async def _write_status(self, content: C, reply: R) -> None:
        """Write what the driver returned; handle and times are set once."""
        now = content.status
        status: dict[str, Any] = {"readyToUse": reply.ready_to_use, **self.status_from(content, reply)}
        if reply.ready_to_use and now is not None and now.error is not None:
            status["error"] = None
        await self._set_status(content, status)

    async def _set_status(self, content: C, status: Mapping[str, Any]) -> C | None:
        with trace.span(COMPONENT, "status", f"content/{content.name}"):
            return await self.client.patch(
                type(content),
                content.name,
                merge={"status": status},
                subresource="status",
                uid=content.uid,
                missing_ok=True,
            )

    async def _fail(self, content: C, why: str, *, first: bool) -> NoReturn:
        await self._report_error(content, why, first=first)
        raise RetryableError(why)

    async def _report_error(self, content: C, why: str, *, first: bool) -> None:
        """Write an error into the status, with an event. A repeated error is neither written nor recorded."""
        noun, reason = self.kind.noun, self.kind.reason
        reason, message = (
            (f"{reason}CreationFailed", f"Failed to create {noun}: {why}")
            if first
            else (f"{reason}ContentCheckandUpdateFailed", f"Failed to check and update {noun} content: {why}")
        )
        error = content.status.error if content.status is not None else None
        if error is None or error.message != message:
            self.events.warning(content, reason, message)
            status = {"error": {"time": clock.stamp(), "message": message}, "readyToUse": False}
            await self._set_status(content, status)

    async def _remove_finalizer(self, content: C) -> None:
        left = [f for f in content.metadata.finalizers if f != self.kind.content_finalizer]
        with trace.span(COMPONENT, "release content", f"content/{content.name}"):
            await self.client.patch(
                type(content),
                content.name,
                merge={"metadata": {"finalizers": left}},
                uid=content.uid,
                revision=content.metadata.resource_version,
                missing_ok=True,
            )


def _class_names(content: AnyContent) -> list[str]:
    name = snapshots.class_name(content)
    return [name] if name is not None else []


def _quote(error: Exception) -> str:
    return json.dumps(str(error), ensure_ascii=False)


def to_nanoseconds(created: Timestamp) -> int:
    """The creation time that the driver returned; without one, now."""
    if created.seconds or created.nanos:
        return created.ToNanoseconds()
    return int(clock.wall().timestamp() * BILLION)
