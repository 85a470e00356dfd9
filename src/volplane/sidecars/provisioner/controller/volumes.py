"""Volumes nobody claims any more: the disk goes first, then the object that stands for it.

The finalizer keeps the object while there is a disk behind it. The subtle thing: attachments are waited
for, as a disk that is still attached cannot be deleted; their end wakes the volume.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import assert_never

from volplane.api.core import PersistentVolume, SecretReference
from volplane.api.storage import StorageClass, VolumeAttachment
from volplane.base import clock, trace
from volplane.client.client import Client
from volplane.csi import v1
from volplane.csi.outcome import CallError
from volplane.loops.controller import Controller, RetryableError
from volplane.loops.events import Recorder
from volplane.loops.queue import Backoff
from volplane.rules import binding
from volplane.sidecars import Driver, secrets
from volplane.sidecars.provisioner import parameters
from volplane.sidecars.provisioner import plan as plans
from volplane.sidecars.provisioner.controller import counts
from volplane.sidecars.provisioner.controller.claims import COMPONENT
from volplane.sidecars.provisioner.controller.facts import facts
from volplane.sidecars.provisioner.controller.turns import Turns
from volplane.sidecars.provisioner.plan import Delete, Hold, Refuse, Release
from volplane.sidecars.provisioner.settings import Settings

log = logging.getLogger(__name__)


def _volume_of(attachment: VolumeAttachment) -> list[str]:
    name = attachment.spec.source.persistent_volume_name
    return [name] if name else []


class Volumes(Controller[str]):
    name = "csi-provisioner-volumes"
    resync = 900.0

    def __init__(
        self,
        client: Client,
        driver: Driver,
        settings: Settings,
        *,
        events: Recorder,
        turns: Turns | None = None,
        changed: Callable[[str], None] = lambda storage_class: None,
    ) -> None:
        self.workers = settings.worker_threads
        self.backoff = Backoff(settings.retry_interval_start, settings.retry_interval_max)
        super().__init__(client, events=events)
        self.driver, self.settings, self.changed = driver, settings, changed
        self._refused: set[str] = set()  # volumes whose last try failed: whatever changes, look again
        self.facts = facts(
            driver, settings, turns.node if turns else "", dict(turns.places) if turns else None
        )

    def setup(self) -> None:
        self.volumes = self.watch(PersistentVolume, self._volume_changed)
        self.classes = self.watch(StorageClass)
        if self.facts.attaches:
            self.attachments = self.watch(VolumeAttachment, self._attachment_changed)
            self.by_volume = self.attachments.index("volume", _volume_of)

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterator[str]:
        if new is None or not plans.is_responsible(new, self.driver.name):
            return
        if old is not new and plans.volume_facts(old) == plans.volume_facts(new):
            return
        if new.name in self._refused or any(True for _ in plans.reclaim(new, (), self.facts)):
            yield new.name

    def _attachment_changed(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> list[str]:
        return _volume_of(old) if old is not None and new is None else []

    async def reconcile(self, key: str) -> None:
        volume = self.volumes.get(key)
        self._refused.discard(key)
        if volume is None:
            return
        attachments = self.by_volume[key] if self.facts.attaches else []
        for step in plans.reclaim(volume, attachments, self.facts):
            match step:
                case Hold():
                    await self._set_finalizer(volume, present=True)
                case Release():
                    await self._set_finalizer(volume, present=False)
                case Delete():
                    await self._delete(volume, step)
                case Refuse(why):
                    self._refuse(volume, why)
                case _:
                    assert_never(step)

    async def _delete(self, volume: PersistentVolume, step: Delete) -> None:
        request = v1.DeleteVolumeRequest(
            volume_id=step.handle, secrets=await self._secrets(self._reference(volume, step))
        )
        storage_class, begun = binding.volume_class(volume), clock.now()
        try:
            await self.driver.call(
                "DeleteVolume", request, timeout=self.settings.timeout, subject=f"pv/{volume.name}"
            )
        except CallError as error:
            counts.delete_failed(storage_class)
            self._refuse(volume, str(error))
        counts.deleted(storage_class, clock.now() - begun)
        self.changed(storage_class)
        log.info("Volume deleted", extra={"PV": volume.name, "volumeHandle": step.handle})
        with trace.span(COMPONENT, "delete volume object", f"pv/{volume.name}"):
            await self.client.delete(PersistentVolume, volume.name, uid=volume.uid, missing_ok=True)
            await self._set_finalizer(volume, present=False)
        log.info("PersistentVolume deleted", extra={"PV": volume.name})

    def _reference(self, volume: PersistentVolume, step: Delete) -> SecretReference | None:
        if step.secret_known:
            return step.secret
        storage_class = self.classes.get(binding.volume_class(volume))
        if storage_class is None:
            return None
        try:
            return parameters.secret(parameters.PROVISIONER, storage_class.parameters, volume.name, None)
        except (parameters.BadParameters, parameters.BadTemplate) as error:
            log.warning("no secret to delete volume %s with: %s", volume.name, error)
            return None

    async def _secrets(self, reference: SecretReference | None) -> dict[str, str]:
        """A secret that is gone must not keep the disk for ever: perhaps the driver can do without."""
        try:
            return await secrets(self.client, reference)
        except RetryableError as error:
            log.warning("deleting without a secret: %s", error)
            return {}

    async def _set_finalizer(self, volume: PersistentVolume, *, present: bool) -> None:
        names = [binding.EXTERNAL_FINALIZER]
        patch = {"finalizers": names} if present else {"$deleteFromPrimitiveList/finalizers": names}
        await self.client.patch(
            PersistentVolume, volume.name, strategic={"metadata": patch}, uid=volume.uid, missing_ok=True
        )

    def _refuse(self, volume: PersistentVolume, why: str) -> None:
        self.events.warning(volume, "VolumeFailedDelete", why)
        self._refused.add(volume.name)
        raise RetryableError(why)
