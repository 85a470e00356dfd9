"""Deletes released volumes: first at the driver, then the PersistentVolume.

A finalizer keeps the object until the driver has deleted the volume. A volume that is attached cannot be
deleted, so the deletion of the last VolumeAttachment wakes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import assert_never

from volplane.api.core import PersistentVolume, SecretReference
from volplane.api.finalizers import EXTERNAL_PROVISIONER_FINALIZER
from volplane.api.storage import StorageClass, VolumeAttachment
from volplane.base import clock, trace
from volplane.base.backoff import Backoff
from volplane.client.client import Client
from volplane.csi import v1
from volplane.csi.outcome import CallError
from volplane.loops.controller import Controller, RetryableError
from volplane.loops.events import EventRecorder
from volplane.rules import binding
from volplane.rules.attachments import attached_volume
from volplane.rules.steps import CommonStep
from volplane.rules.waits import Wait
from volplane.sidecars.base import DriverClient, read_secrets
from volplane.sidecars.provisioner import parameters
from volplane.sidecars.provisioner import plan as plans
from volplane.sidecars.provisioner.controller import provision_metrics
from volplane.sidecars.provisioner.controller.claims import COMPONENT
from volplane.sidecars.provisioner.controller.driver_info import build_driver_info
from volplane.sidecars.provisioner.controller.node_claim_race import NodeClaimRace
from volplane.sidecars.provisioner.plan import (
    AddReclaimFinalizer,
    DeleteVolume,
    ReclaimStep,
    ReclaimView,
    RefuseDeletion,
    RemoveReclaimFinalizer,
)
from volplane.sidecars.provisioner.settings import ProvisionerOptions

log = logging.getLogger(__name__)


class ReclaimMemory:
    def __init__(self) -> None:
        self.failed: set[str] = set()  # volumes whose last deletion failed: every change wakes them


class ReleasedVolumeDeleter(Controller[str, ReclaimView, ReclaimStep]):
    name = "csi-provisioner-volumes"
    resync = 900.0

    def __init__(
        self,
        client: Client,
        driver: DriverClient,
        settings: ProvisionerOptions,
        *,
        events: EventRecorder,
        node_race: NodeClaimRace | None = None,
        on_capacity_change: Callable[[str], None] = lambda storage_class: None,
    ) -> None:
        super().__init__(
            client,
            events=events,
            workers=settings.worker_threads,
            backoff=Backoff(settings.retry_interval_start, settings.retry_interval_max),
        )
        self.driver, self.settings, self.on_capacity_change = driver, settings, on_capacity_change
        self.driver_info = build_driver_info(
            driver,
            settings,
            node_race.node if node_race else "",
            dict(node_race.segments) if node_race else None,
        )

    def setup(self) -> None:
        self.memory = ReclaimMemory()
        self.volumes = self.watch(PersistentVolume, self.keys_of_volume)
        self.classes = self.watch(StorageClass)
        if self.driver_info.attaches:
            self.attachments = self.watch(VolumeAttachment, self.keys_of_attachment)
            self.by_volume = self.attachments.index("volume", attached_volume)

    def keys_of_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> Iterator[str]:
        if new is None or not plans.is_responsible(new, self.driver.name):
            return
        if old is not new and plans.relevant_volume_fields(old) == plans.relevant_volume_fields(new):
            return
        if new.name in self.memory.failed or any(True for _ in plans.plan_reclaim(new, (), self.driver_info)):
            yield new.name

    def keys_of_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> list[str]:
        return attached_volume(old) if old is not None and new is None else []

    def view(self, key: str) -> ReclaimView | None:
        volume = self.volumes.get(key)
        if volume is None:
            return None
        return ReclaimView(volume, self.by_volume[key] if self.driver_info.attaches else [])

    def plan(self, view: ReclaimView) -> Iterator[ReclaimStep | Wait]:
        return plans.plan_reclaim(view.volume, view.attachments, self.driver_info)

    def update_memory(
        self, key: str, view: ReclaimView | None, steps: Sequence[ReclaimStep | CommonStep]
    ) -> None:
        self.memory.failed.discard(key)

    async def act(self, key: str, view: ReclaimView, step: ReclaimStep) -> None:
        volume = view.volume
        match step:
            case AddReclaimFinalizer():
                await self._set_finalizer(volume, present=True)
            case RemoveReclaimFinalizer():
                await self._set_finalizer(volume, present=False)
            case DeleteVolume():
                await self._delete(volume, step)
            case RefuseDeletion(message):
                self._record_failure(volume, message)
            case _:
                assert_never(step)

    async def _delete(self, volume: PersistentVolume, step: DeleteVolume) -> None:
        request = v1.DeleteVolumeRequest(
            volume_id=step.handle, secrets=await self._read_secrets(self._secret_reference(volume, step))
        )
        storage_class, started = binding.volume_class(volume), clock.now()
        try:
            await self.driver.call(
                "DeleteVolume",
                request,
                timeout=self.settings.timeout,
                subject=f"pv/{volume.name}",
                migrated=volume.spec.csi is None,
            )
        except CallError as error:
            provision_metrics.count_delete_failure(storage_class)
            self._record_failure(volume, str(error))
            raise RetryableError(str(error)) from error
        provision_metrics.count_deleted(storage_class, clock.now() - started)
        self.on_capacity_change(storage_class)
        log.info("Volume deleted", extra={"PV": volume.name, "volumeHandle": step.handle})
        with trace.span(COMPONENT, "delete volume object", f"pv/{volume.name}"):
            await self.client.delete(PersistentVolume, volume.name, uid=volume.uid, missing_ok=True)
            await self._set_finalizer(volume, present=False)
        log.info("PersistentVolume deleted", extra={"PV": volume.name})

    def _secret_reference(self, volume: PersistentVolume, step: DeleteVolume) -> SecretReference | None:
        if step.secret_known:
            return step.secret
        storage_class = self.classes.get(binding.volume_class(volume))
        if storage_class is None:
            return None
        try:
            return parameters.secret_reference(
                parameters.PROVISIONER, storage_class.parameters, volume.name, None
            )
        except (parameters.BadParameters, parameters.InvalidTemplate) as error:
            log.warning("cannot find the secret for deleting volume %s: %s", volume.name, error)
            return None

    async def _read_secrets(self, reference: SecretReference | None) -> dict[str, str]:
        """Read the secret, if it exists: the driver may be able to delete the volume without it."""
        try:
            return await read_secrets(self.client, reference)
        except RetryableError as error:
            log.warning("deleting the volume without its secret: %s", error)
            return {}

    async def _set_finalizer(self, volume: PersistentVolume, *, present: bool) -> None:
        names = [EXTERNAL_PROVISIONER_FINALIZER]
        patch = {"finalizers": names} if present else {"$deleteFromPrimitiveList/finalizers": names}
        await self.client.patch(
            PersistentVolume, volume.name, strategic={"metadata": patch}, uid=volume.uid, missing_ok=True
        )

    def _record_failure(self, volume: PersistentVolume, message: str) -> None:
        self.events.warning(volume, "VolumeFailedDelete", message)
        self.memory.failed.add(volume.name)
