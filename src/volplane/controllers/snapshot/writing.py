"""What snapshots and groups of them have in common: how their state, their errors and their contents are
written.

The subtle thing: custom resources know no strategic patch, so lists (finalizers) are written over the very
version that was seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from volplane.api.meta import Resource
from volplane.api.snapshot import SnapshotError
from volplane.base import clock, trace
from volplane.loops.controller import Controller, RetryableError
from volplane.rules.steps import UNTIL_CHANGED

COMPONENT = "snapshot-controller"

T = TypeVar("T", bound=Resource)


class Writer(Controller[str]):
    async def settle(self, obj: T, finalizers: tuple[str, ...], spec: Mapping[str, Any] | None = None) -> T:
        """Finalizers, and with them what of the spec is decided."""
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

    async def tell(self, obj: Resource, status: Mapping[str, Any]) -> None:
        with trace.span(COMPONENT, "status", f"snapshot/{obj.key}"):
            await self.patch(obj, {"status": status}, subresource="status")

    async def drop(self, obj: Resource) -> None:
        with trace.span(COMPONENT, "delete content", f"content/{obj.name}"):
            await self.client.delete(type(obj), obj.name, obj.namespace, uid=obj.uid, missing_ok=True)

    async def fail(
        self,
        obj: Resource,
        error: SnapshotError | None,
        reason: str,
        message: str,
        *,
        unready: bool,
        final: bool,
    ) -> None:
        """Told once: the same again is neither written nor said. `error` is what was told last."""
        if error is None or error.message != message:
            status: dict[str, Any] = {"error": {"time": clock.stamp(), "message": message}}
            if unready:
                status["readyToUse"] = False
            self.events.warning(obj, reason, message)
            await self.tell(obj, status)
        if not final:
            raise RetryableError(message)
        self.queue.later(obj.key, UNTIL_CHANGED, message)
