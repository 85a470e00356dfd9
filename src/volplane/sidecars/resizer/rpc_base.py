"""What expanding and modifying a volume have in common: calls to the driver, writes to volume and claim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.base import clock
from volplane.base.backoff import Backoff
from volplane.client.client import Client
from volplane.loops.controller import Controller
from volplane.loops.events import EventRecorder
from volplane.rules.waits import Wait, WaitData, WaitReason
from volplane.sidecars.base import DriverClient
from volplane.sidecars.resizer.settings import ResizerOptions

COMPONENT = "csi-resizer"

V = TypeVar("V")
S = TypeVar("S")


class ResizeMemory:
    """What this process remembers of a claim's last attempt, by the claim's uid."""

    def __init__(self) -> None:
        self.final_errors: set[str] = set()  # the last attempt ended with a final error
        self._infeasible: dict[str, float] = {}  # the driver cannot do it: the time of the next try

    def observe_claim(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        if new is None and old is not None:
            self.forget(old)

    def forget(self, claim: PersistentVolumeClaim) -> None:
        self.final_errors.discard(claim.uid)
        self.retry_soon(claim)

    def retry_in(self, claim: PersistentVolumeClaim) -> float:
        """Seconds before the next attempt after an infeasible error."""
        return max(self._infeasible.get(claim.uid, 0.0) - clock.now(), 0.0)

    def retry_soon(self, claim: PersistentVolumeClaim) -> None:
        self._infeasible.pop(claim.uid, None)

    def retry_after(self, claim: PersistentVolumeClaim, seconds: float) -> None:
        self._infeasible[claim.uid] = clock.now() + seconds


class ResizeRpcController(Controller[str, V, S]):
    memory: ResizeMemory

    def __init__(
        self, client: Client, driver: DriverClient, settings: ResizerOptions, *, events: EventRecorder
    ) -> None:
        super().__init__(
            client,
            events=events,
            workers=settings.workers,
            backoff=Backoff(settings.retry_interval_start, settings.retry_interval_max),
            resync=settings.resync_period,
        )
        self.driver, self.settings = driver, settings

    async def call(self, method: str, request: Message, volume: PersistentVolume) -> Any:
        return await self.driver.call(
            method,
            request,
            timeout=self.settings.timeout,
            subject=f"pv/{volume.name}",
            migrated=volume.spec.csi is None,
        )

    def retry_slowly(self, claim: PersistentVolumeClaim, reason: WaitReason, message: str) -> None:
        """The driver can never do this: retry after the longest delay."""
        pause = self.settings.retry_interval_max
        self.memory.retry_after(claim, pause)
        data = WaitData(driver=self.driver.name)
        self.queue.later(claim.key, Wait(reason, data, pause, message=message))

    async def advance_claim(
        self, claim: PersistentVolumeClaim, patch: Mapping[str, Any]
    ) -> PersistentVolumeClaim:
        """Patch the status, if the claim is still the version that was planned."""
        return await self.client.patch(
            PersistentVolumeClaim,
            claim.name,
            claim.namespace,
            strategic=patch,
            subresource="status",
            uid=claim.uid,
            revision=claim.metadata.resource_version,
        )

    async def patch_claim(self, claim: PersistentVolumeClaim, patch: Mapping[str, Any]) -> None:
        await self.client.patch(
            PersistentVolumeClaim,
            claim.name,
            claim.namespace,
            strategic=patch,
            subresource="status",
            uid=claim.uid,
            missing_ok=True,
        )

    async def patch_volume(self, volume: PersistentVolume, patch: Mapping[str, Any]) -> None:
        await self.client.patch(
            PersistentVolume, volume.name, strategic=patch, uid=volume.uid, missing_ok=True
        )
