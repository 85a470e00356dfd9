"""What the controllers of snapshots and of group snapshots have in common: how they write.

Custom resources have no strategic merge patch, so lists (finalizers) are written over the version that was
read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar, assert_never

from volplane.api.errors import APIError, Conflict
from volplane.api.meta import Resource
from volplane.api.snapshot import VolumeGroupSnapshot, VolumeSnapshot
from volplane.base import clock, trace
from volplane.base.backoff import Backoff
from volplane.client.client import Client
from volplane.controllers.snapshot.settings import SnapshotControllerOptions
from volplane.controllers.snapshot.steps import (
    AnnotateBeingDeleted,
    BindContent,
    CopyStatus,
    CreateContent,
    DeleteContent,
    ReportError,
    SetFinalizers,
    SnapshotStep,
)
from volplane.loops.controller import Controller, RetryableError
from volplane.loops.events import EventRecorder
from volplane.rules import snapshots
from volplane.rules.snapshots import AnyContent, AnySnapshot
from volplane.rules.waits import Wait, WaitReason

log = logging.getLogger(__name__)

COMPONENT = "snapshot-controller"

T = TypeVar("T", bound=Resource)
N = TypeVar("N", VolumeSnapshot, VolumeGroupSnapshot)
V = TypeVar("V")
S = TypeVar("S")


class SnapshotWriter(Controller[str, V, S]):
    def __init__(
        self,
        client: Client,
        settings: SnapshotControllerOptions = SnapshotControllerOptions(),  # noqa: B008  (frozen)
        *,
        events: EventRecorder | None = None,
    ) -> None:
        super().__init__(
            client,
            events=events,
            workers=settings.worker_threads,
            backoff=Backoff(settings.retry_interval_start, settings.retry_interval_max),
            resync=settings.resync_period,
        )
        self.settings = settings

    async def act_on_snapshot(self, snapshot: N, content: AnyContent | None, step: SnapshotStep) -> N | None:
        """Carry out a step; return the snapshot where its finalizers were written."""
        kind = snapshots.kind_of(snapshot)
        match step:
            case SetFinalizers(finalizers, class_name):
                spec = {kind.class_field: class_name} if class_name is not None else None
                return await self.set_finalizers(snapshot, finalizers, spec)
            case CreateContent(new):
                await self.create_content(snapshot, new)
            case BindContent():
                assert content is not None
                await self._bind(snapshot, content)
            case CopyStatus(status):
                await self.set_status(snapshot, status)
            case ReportError():
                await self._report_error(snapshot, step)
            case AnnotateBeingDeleted():
                assert content is not None
                annotations = {"annotations": {kind.being_deleted: snapshots.YES}}
                await self.patch(content, {"metadata": annotations})
            case DeleteContent():
                assert content is not None
                await self.delete(content)
            case _:
                assert_never(step)
        return None

    async def create_content(self, snapshot: AnySnapshot, content: AnyContent) -> None:
        subject = snapshots.kind_of(snapshot).reason.lower()
        with trace.span(COMPONENT, "create content", f"{subject}/{snapshot.key}"):
            await self.client.create(content, exists_ok=True)
        log.info("Content created", extra={subject: snapshot.key, "content": content.name})

    async def _bind(self, snapshot: AnySnapshot, content: AnyContent) -> None:
        """Write the snapshot's uid, and its class, into a pre-provisioned content."""
        kind = snapshots.kind_of(snapshot)
        spec: dict[str, Any] = {kind.ref_field: {"uid": snapshot.uid}}
        if (name := snapshots.class_name(snapshot)) is not None:
            spec[kind.class_field] = name
        try:
            await self.patch(content, {"spec": spec}, revision=content.metadata.resource_version)
        except Conflict:
            raise  # it has changed meanwhile: the next plan shows to whom it is bound
        except APIError as error:
            message = f"{kind.reason} failed to bind {kind.kind}Content, {error}"
            await self._report_error(snapshot, ReportError(f"{kind.reason}BindFailed", message))

    async def set_finalizers(
        self, obj: T, finalizers: tuple[str, ...], spec: Mapping[str, Any] | None = None
    ) -> T:
        """Set the finalizers, and with them fields of the spec."""
        patch: dict[str, Any] = {"metadata": {"finalizers": list(finalizers)}}
        if spec:
            patch["spec"] = spec
        written = await self.patch(obj, patch, revision=obj.metadata.resource_version)
        return written if written is not None else obj

    async def patch(
        self, obj: T, patch: Mapping[str, Any], *, revision: str = "", subresource: str = ""
    ) -> T | None:
        return await self.client.patch(
            type(obj),
            obj.name,
            obj.namespace,
            merge=patch,
            uid=obj.uid,
            revision=revision,
            subresource=subresource,
            missing_ok=True,
        )

    async def set_status(self, obj: Resource, status: Mapping[str, Any]) -> None:
        with trace.span(COMPONENT, "status", f"snapshot/{obj.key}"):
            await self.patch(obj, {"status": status}, subresource="status")

    async def delete(self, obj: Resource) -> None:
        with trace.span(COMPONENT, "delete content", f"content/{obj.name}"):
            await self.client.delete(type(obj), obj.name, obj.namespace, uid=obj.uid, missing_ok=True)

    async def _report_error(self, snapshot: AnySnapshot, step: ReportError) -> None:
        """Write an error into the status, with an event; the same error again is written neither way."""
        known = snapshot.status.error if snapshot.status is not None else None
        if known is None or known.message != step.message:
            status: dict[str, Any] = {"error": {"time": clock.stamp(), "message": step.message}}
            if step.unready:
                status["readyToUse"] = False
            self.events.warning(snapshot, step.reason, step.message)
            await self.set_status(snapshot, status)
        if not step.final:
            raise RetryableError(step.message)
        self.queue.later(snapshot.key, Wait(WaitReason.SNAPSHOT_INVALID, message=step.message))


def relevant_fields(snapshot: AnySnapshot | None) -> object:
    """The fields whose change wakes the snapshot. An error that we wrote must not cut the backoff short."""
    if snapshot is None:
        return None
    status = snapshot.status
    reported = (snapshots.bound_name(snapshot), status.ready_to_use) if status is not None else None
    return snapshot.uid, snapshot.is_deleting, snapshot.metadata.finalizers, snapshot.spec, reported
