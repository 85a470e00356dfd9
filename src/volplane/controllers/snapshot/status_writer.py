"""Writes that the controllers of snapshots and of group snapshots share.

Custom resources have no strategic merge patch, so lists (finalizers) are written only over the version that
was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from volplane.api.meta import Resource
from volplane.api.snapshot import SnapshotError
from volplane.base import clock, trace
from volplane.loops.controller import Controller, RetryableError
from volplane.rules.waits import Wait, WaitReason

COMPONENT = "snapshot-controller"

T = TypeVar("T", bound=Resource)
V = TypeVar("V")
S = TypeVar("S")


class SnapshotWriter(Controller[str, V, S]):
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

    async def delete_content(self, obj: Resource) -> None:
        with trace.span(COMPONENT, "delete content", f"content/{obj.name}"):
            await self.client.delete(type(obj), obj.name, obj.namespace, uid=obj.uid, missing_ok=True)

    async def report_error(
        self,
        obj: Resource,
        error: SnapshotError | None,
        reason: str,
        message: str,
        *,
        unready: bool,
        final: bool,
    ) -> None:
        """Write an error and record an event, unless it is the same as the last one (`error`)."""
        if error is None or error.message != message:
            status: dict[str, Any] = {"error": {"time": clock.stamp(), "message": message}}
            if unready:
                status["readyToUse"] = False
            self.events.warning(obj, reason, message)
            await self.set_status(obj, status)
        if not final:
            raise RetryableError(message)
        self.queue.later(obj.key, Wait(WaitReason.SNAPSHOT_INVALID, message=message))
