"""How a driver is asked for snapshots and for groups of them alike: marks, secrets, errors, letting go."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from volplane.api.core import SecretReference
from volplane.api.meta import Resource
from volplane.api.snapshot import SnapshotError
from volplane.base import clock, trace
from volplane.client.client import Client
from volplane.loops.controller import Controller, RetryableError
from volplane.loops.events import Recorder
from volplane.loops.queue import Backoff
from volplane.rules import snapshots
from volplane.sidecars import Driver, secrets
from volplane.sidecars.snapshotter.settings import Settings

log = logging.getLogger(__name__)

COMPONENT = "csi-snapshotter"
BILLION = 1_000_000_000

T = TypeVar("T", bound=Resource)


class Asker(Controller[str]):
    mark_as: ClassVar[str]  # the annotation of a content that the driver was asked for
    finalizer: ClassVar[str]

    def __init__(self, client: Client, driver: Driver, settings: Settings, *, events: Recorder) -> None:
        self.workers = settings.worker_threads
        self.backoff = Backoff(settings.retry_interval_start, settings.retry_interval_max)
        self.resync = settings.resync_period
        super().__init__(client, events=events)
        self.driver, self.settings = driver, settings

    async def call(self, method: str, request: Any, content: Resource) -> Any:
        subject = f"content/{content.name}"
        return await self.driver.call(method, request, timeout=self.settings.timeout, subject=subject)

    async def secrets(self, content: Resource, reference: SecretReference | None) -> dict[str, str]:
        """Unlike a volume, a snapshot does not go without the secret that was noted for it."""
        if reference is not None and not (reference.name and reference.namespace):
            why = "err: secret name or namespace not specified"
            raise RetryableError(f'cannot retrieve secrets for snapshot content "{content.name}", {why}')
        try:
            return await secrets(self.client, reference)
        except RetryableError as error:
            log.warning("no credentials for content %s: %s", content.name, error)
            raise RetryableError(f'cannot get credentials for snapshot content "{content.name}"') from error

    async def mark(self, content: Resource, *, present: bool) -> None:
        """Intent before effect: asked for, and not yet answered for good."""
        if present and self.mark_as in content.metadata.annotations:
            return
        notes = {self.mark_as: snapshots.YES if present else None}
        await self.client.patch(
            type(content),
            content.name,
            merge={"metadata": {"annotations": notes}},
            uid=content.uid,
            missing_ok=not present,
        )

    async def tell(self, content: T, status: Mapping[str, Any]) -> T | None:
        with trace.span(COMPONENT, "told", f"content/{content.name}"):
            return await self.client.patch(
                type(content),
                content.name,
                merge={"status": status},
                subresource="status",
                uid=content.uid,
                missing_ok=True,
            )

    async def fail(self, content: Resource, error: SnapshotError | None, reason: str, told: str) -> NoReturn:
        """Told once: the same again is neither written nor said. `error` is what was told last."""
        if error is None or error.message != told:
            self.events.warning(content, reason, told)
            status = {"error": {"time": clock.stamp(), "message": told}, "readyToUse": False}
            await self.tell(content, status)
        raise RetryableError(told)

    async def release(self, content: Resource) -> None:
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

    def look_again(self, current: Resource | None, told: str, *, ready: bool) -> None:
        """Before it goes, when it is to go; when it may be ready, otherwise."""
        if current is not None and current.is_deleting:
            return self.queue.add(current.name)
        if not ready:
            raise RetryableError(f"{told} is not ready to use yet")


def quoted(error: Exception) -> str:
    return json.dumps(str(error), ensure_ascii=False)


def nanoseconds(told: Timestamp) -> int:
    """The driver's word for when it was taken; without one, now."""
    if told.seconds or told.nanos:
        return told.ToNanoseconds()
    return int(clock.wall().timestamp() * BILLION)
