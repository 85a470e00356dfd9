"""What growing and modifying a volume share: how a driver is asked, and how volume and claim are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.base import clock
from volplane.client.client import Client
from volplane.loops.controller import Controller
from volplane.loops.events import Recorder
from volplane.loops.queue import Backoff
from volplane.sidecars import Driver
from volplane.sidecars.resizer.settings import Settings

COMPONENT = "csi-resizer"


class Asker(Controller[str]):
    def __init__(self, client: Client, driver: Driver, settings: Settings, *, events: Recorder) -> None:
        self.workers = settings.workers
        self.backoff = Backoff(settings.retry_interval_start, settings.retry_interval_max)
        self.resync = settings.resync_period
        super().__init__(client, events=events)
        self.driver, self.settings = driver, settings
        # By a claim's uid: until when the driver is believed that it cannot.
        self._slow: dict[str, float] = {}

    async def call(self, method: str, request: Message, volume: PersistentVolume) -> Any:
        subject = f"pv/{volume.name}"
        return await self.driver.call(method, request, timeout=self.settings.timeout, subject=subject)

    def slow_for(self, claim: PersistentVolumeClaim) -> float:
        """Seconds that a claim still waits after a refusal that asking again does not change."""
        left = self._slow.get(claim.uid, 0.0) - clock.now()
        if left <= 0:
            self.soon(claim)
        return max(left, 0.0)

    def soon(self, claim: PersistentVolumeClaim) -> None:
        self._slow.pop(claim.uid, None)

    def slowly(self, claim: PersistentVolumeClaim, why: str) -> None:
        pause = self.settings.retry_interval_max
        self._slow[claim.uid] = clock.now() + pause
        self.queue.later(claim.key, pause, why)

    async def move(self, claim: PersistentVolumeClaim, patch: Mapping[str, Any]) -> PersistentVolumeClaim:
        """Only over the state that was planned on: somebody may have gone on with the claim since."""
        return await self.client.patch(
            PersistentVolumeClaim,
            claim.name,
            claim.namespace,
            strategic=patch,
            subresource="status",
            uid=claim.uid,
            revision=claim.metadata.resource_version,
        )

    async def tell_claim(self, claim: PersistentVolumeClaim, patch: Mapping[str, Any]) -> None:
        await self.client.patch(
            PersistentVolumeClaim,
            claim.name,
            claim.namespace,
            strategic=patch,
            subresource="status",
            uid=claim.uid,
            missing_ok=True,
        )

    async def tell_volume(self, volume: PersistentVolume, patch: Mapping[str, Any]) -> None:
        await self.client.patch(
            PersistentVolume, volume.name, strategic=patch, uid=volume.uid, missing_ok=True
        )
