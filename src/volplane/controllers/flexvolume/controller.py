"""Calls `attach` and `detach` of FlexVolume drivers for the VolumeAttachments of FlexVolumes.

A key is a VolumeAttachment. Calls have no timeout, as upstream; one that hangs keeps its attachment busy, and
no other. An error that is written does not wake the attachment, so that the retry waits for the backoff.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, assert_never

from volplane.api.core import PersistentVolume
from volplane.api.finalizers import FLEX_ATTACHMENT_FINALIZER
from volplane.api.storage import VolumeAttachment
from volplane.base import clock
from volplane.base.backoff import Backoff
from volplane.client.client import Client
from volplane.controllers.flexvolume import plan as p
from volplane.loops.attachment_writer import AttachmentWriter
from volplane.loops.controller import Controller, RetryableError
from volplane.rules.attachments import attached_volume, is_relevant_change
from volplane.rules.steps import CommonStep
from volplane.rules.waits import Wait
from volplane.volumes.flex.attachment import attached_flex_volume, read_attachment, split_unique_name
from volplane.volumes.flex.errors import FlexCallError, FlexNotSupported
from volplane.volumes.flex.options import ATTACHER, DEVICE_PATH, FlexVolume, build_options

if TYPE_CHECKING:  # they run programs; `explain` runs this controller without them
    from volplane.volumes.flex.driver import FlexDriver
    from volplane.volumes.flex.prober import FlexProber

log = logging.getLogger(__name__)


class FlexAttachmentMemory:
    def __init__(self) -> None:
        self.verified: dict[str, float] = {}  # attachment → when it was last known to be attached, loop time

    def observe_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        if new is None and old is not None:
            self.verified.pop(old.name, None)


class FlexAttachments(Controller[str, p.FlexAttachmentView, p.Step]):
    name = "flexvolume-attachment-controller"
    workers = 4096  # each may wait for a driver that hangs, and must not keep others waiting

    def __init__(
        self,
        client: Client,
        flex_prober: FlexProber,
        *,
        sync_period: float = 60.0,
        retry_interval_max: float = 122.0,
    ) -> None:
        """`sync_period`: seconds between two `isattached` of a volume; 0: it is never called."""
        super().__init__(client, backoff=Backoff(0.5, retry_interval_max))
        self.prober, self.sync_period = flex_prober, sync_period
        self.writer = AttachmentWriter(client, self.name, FLEX_ATTACHMENT_FINALIZER)

    def setup(self) -> None:
        self.memory = FlexAttachmentMemory()
        self.attachments = self.watch(
            VolumeAttachment, self.keys_of_attachment, observe=self.memory.observe_attachment
        )
        self.volumes = self.watch(PersistentVolume, self.keys_of_volume)
        self.by_volume = self.attachments.index("volume", attached_volume)
        self.by_driver = self.attachments.index("flex driver", _attaching_driver)
        self.watch_source(self.prober.subscribe, self.keys_of_driver)

    # --- which keys a change wakes

    def keys_of_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> list[str]:
        if new is None or new.spec.attacher != ATTACHER:
            return []
        return [new.name] if is_relevant_change(old, new) else []

    def keys_of_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> list[str]:
        if new is None or old is not None:  # an attachment may wait for a new volume
            return []
        return [a.name for a in self.by_volume[new.name] if a.spec.attacher == ATTACHER]

    def keys_of_driver(self, driver: str) -> list[str]:
        return [attachment.name for attachment in self.by_driver[driver]]

    # --- what to do

    def view(self, key: str) -> p.FlexAttachmentView | None:
        attachment = self.attachments.get(key)
        if attachment is None:
            return None
        unique_name = next(iter(attached_flex_volume(attachment)), "")
        driver, _ = split_unique_name(unique_name)
        volume = self.volumes.get(attachment.spec.source.persistent_volume_name or "")
        found = self.prober.drivers.get(driver)
        return p.FlexAttachmentView(
            attachment=attachment,
            unique_name=unique_name,
            driver=driver,
            flex=read_attachment(attachment, volume),
            missing=self.prober.describe_missing(driver) if found is None else "",
            is_loading=found is None and self.prober.is_loading(driver),
            has_failed=found is None and driver in self.prober.errors,
            sync_period=self.sync_period,
            verify_after=self._verify_after(key, found),
        )

    def _verify_after(self, key: str, driver: FlexDriver | None) -> float | None:
        """Seconds until the driver is asked whether the volume is attached."""
        if driver is None or not self.sync_period or not driver.supports("isattached"):
            return None
        return self.sync_period - (clock.now() - self.memory.verified.get(key, clock.now()))

    def plan(self, view: p.FlexAttachmentView) -> Iterator[p.Step | Wait]:
        return p.plan(view)

    def update_memory(
        self, key: str, view: p.FlexAttachmentView | None, steps: Sequence[p.Step | CommonStep]
    ) -> None:
        if view is not None and view.attachment.status.attached:
            self.memory.verified.setdefault(key, clock.now())
        else:
            self.memory.verified.pop(key, None)

    # --- doing it

    async def act(self, key: str, view: p.FlexAttachmentView, step: p.Step) -> None:
        attachment = view.attachment
        try:
            match step:
                case p.AttachFlexVolume():
                    await self._attach(attachment, step)
                case p.DetachFlexVolume(driver, volume):
                    await self._detach(attachment, driver, volume)
                case p.VerifyFlexVolume(flex):
                    await self._verify(attachment, flex)
                case p.ReloadFlexDriver(driver):
                    await self.prober.retry(driver)
                case p.WriteFlexError(message):
                    await self.writer.write_error(attachment, message)
                case _:
                    assert_never(step)
        except FlexCallError as error:
            await self.writer.write_error(attachment, str(error))
            raise RetryableError(str(error)) from error

    def _driver(self, name: str) -> FlexDriver:
        driver = self.prober.drivers.get(name)
        if driver is None:  # it was removed after the plan
            raise FlexCallError(self.prober.describe_missing(name))
        return driver

    async def _attach(self, attachment: VolumeAttachment, step: p.AttachFlexVolume) -> None:
        driver, options = self._driver(step.flex.driver), build_options(step.flex)
        if not step.intent_written:
            await self.writer.write_intent(attachment)
        subject = f"va/{attachment.name}"
        try:
            await driver.check_volume_name(options, subject=subject)
            reply = await driver.call("attach", options, attachment.spec.node_name, subject=subject)
            device = reply.device
        except FlexNotSupported:
            device = ""  # as if it were attached
        await self.writer.set_attached(attachment, {DEVICE_PATH: device} if device else {})

    async def _detach(self, attachment: VolumeAttachment, driver: str, volume: str) -> None:
        try:
            node, subject = attachment.spec.node_name, f"va/{attachment.name}"
            await self._driver(driver).call("detach", volume, node, subject=subject)
        except FlexNotSupported:
            log.debug("%s: nothing to detach: %s does not support it", attachment.name, driver)
        await self.writer.remove_finalizer(attachment)

    async def _verify(self, attachment: VolumeAttachment, flex: FlexVolume) -> None:
        """An attachment that the driver denies is attached anew. A failed call changes nothing."""
        self.memory.verified[attachment.name] = clock.now()
        options, node = build_options(flex), attachment.spec.node_name
        try:
            reply = await self._driver(flex.driver).call("isattached", options, node)
        except FlexCallError as error:
            log.info("%s: cannot verify: %s", attachment.name, error)
        else:
            if not reply.attached:
                log.warning("%s is not attached to %s any more", flex.unique_name, node)
                await self.writer.set_detached(attachment)


def _attaching_driver(attachment: VolumeAttachment) -> list[str]:
    return [split_unique_name(volume)[0] for volume in attached_flex_volume(attachment)]
