"""What snapshots and group snapshots have in common: calls, secrets, errors, marks and finalizers."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from volplane.api.core import SecretReference
from volplane.api.meta import Resource
from volplane.api.snapshot import SnapshotError
from volplane.base import clock, trace
from volplane.client.client import Client
from volplane.loops.controller import Controller, RetryableError
from volplane.loops.events import EventRecorder
from volplane.loops.queue import Backoff
from volplane.rules import snapshots
from volplane.sidecars import DriverClient, read_secrets
from volplane.sidecars.snapshotter.settings import SnapshotterOptions

log = logging.getLogger(__name__)

COMPONENT = "csi-snapshotter"
BILLION = 1_000_000_000

T = TypeVar("T", bound=Resource)
V = TypeVar("V")
S = TypeVar("S")


class SnapshotRpcController(Controller[str, V, S]):
    creation_mark: ClassVar[str]  # the annotation of a content whose snapshot is being created
    finalizer: ClassVar[str]

    def __init__(
        self, client: Client, driver: DriverClient, settings: SnapshotterOptions, *, events: EventRecorder
    ) -> None:
        super().__init__(
            client,
            events=events,
            workers=settings.worker_threads,
            backoff=Backoff(settings.retry_interval_start, settings.retry_interval_max),
            resync=settings.resync_period,
        )
        self.driver, self.settings = driver, settings

    async def call(self, method: str, request: Any, content: Resource) -> Any:
        subject = f"content/{content.name}"
        return await self.driver.call(method, request, timeout=self.settings.timeout, subject=subject)

    async def read_credentials(self, content: Resource, reference: SecretReference | None) -> dict[str, str]:
        """Unlike a volume, a snapshot is not deleted without the secret that its content names."""
        if reference is not None and not (reference.name and reference.namespace):
            why = "err: secret name or namespace not specified"
            raise RetryableError(f'cannot retrieve secrets for snapshot content "{content.name}", {why}')
        try:
            return await read_secrets(self.client, reference)
        except RetryableError as error:
            log.warning("no credentials for content %s: %s", content.name, error)
            raise RetryableError(f'cannot get credentials for snapshot content "{content.name}"') from error

    async def set_creation_mark(self, content: Resource, *, present: bool) -> None:
        """Write the intent before the call: the driver was called, and its outcome is not known yet."""
        if present and self.creation_mark in content.metadata.annotations:
            return
        notes = {self.creation_mark: snapshots.YES if present else None}
        await self.client.patch(
            type(content),
            content.name,
            merge={"metadata": {"annotations": notes}},
            uid=content.uid,
            missing_ok=not present,
        )

    async def set_status(self, content: T, status: Mapping[str, Any]) -> T | None:
        with trace.span(COMPONENT, "status", f"content/{content.name}"):
            return await self.client.patch(
                type(content),
                content.name,
                merge={"status": status},
                subresource="status",
                uid=content.uid,
                missing_ok=True,
            )

    async def report_error(
        self, content: Resource, error: SnapshotError | None, reason: str, message: str
    ) -> None:
        """Written once: the same error again is neither written nor recorded. `error` is the last one."""
        if error is None or error.message != message:
            self.events.warning(content, reason, message)
            status = {"error": {"time": clock.stamp(), "message": message}, "readyToUse": False}
            await self.set_status(content, status)

    async def remove_finalizer(self, content: Resource) -> None:
        left = [f for f in content.metadata.finalizers if f != self.finalizer]
        with trace.span(COMPONENT, "release content", f"content/{content.name}"):
            await self.client.patch(
                type(content),
                content.name,
                merge={"metadata": {"finalizers": left}},
                uid=content.uid,
                revision=content.metadata.resource_version,
                missing_ok=True,
            )

    def plan_again(self, current: Resource | None, what: str, *, ready: bool) -> None:
        """At once when it is being deleted; after a pause when it is not ready yet."""
        if current is not None and current.is_deleting:
            return self.queue.add(current.name)
        if not ready:
            raise RetryableError(f"{what} is not ready to use yet")


def quote(error: Exception) -> str:
    return json.dumps(str(error), ensure_ascii=False)


def to_nanoseconds(created: Timestamp) -> int:
    """The creation time that the driver returned; without one, now."""
    if created.seconds or created.nanos:
        return created.ToNanoseconds()
    return int(clock.wall().timestamp() * BILLION)
