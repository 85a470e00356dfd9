"""Calls ControllerPublishVolume and ControllerUnpublishVolume for the VolumeAttachments of one driver.

There are two controllers: one for attachments, one for volumes that are deleted once nothing attaches them.
An error that the attacher writes does not wake the attachment, so that the retry waits for the backoff.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, assert_never

from msgspec import Struct

from volplane.api.annotations import ATTACHMENT_NODE_ID_ANNOTATION
from volplane.api.core import PersistentVolume
from volplane.api.errors import APIError, Conflict
from volplane.api.storage import CSINode, VolumeAttachment
from volplane.base import trace
from volplane.base.backoff import Backoff
from volplane.client.client import Client
from volplane.csi import convert, v1
from volplane.csi.outcome import BadReply, CallError
from volplane.loops.attachment_writer import AttachmentWriter
from volplane.loops.controller import Controller, RetryableError
from volplane.rules.attachments import attached_volume, is_relevant_change
from volplane.rules.csi_translation import find_csi_source
from volplane.rules.steps import CommonStep
from volplane.rules.waits import Wait
from volplane.sidecars.attacher import plan as plans
from volplane.sidecars.attacher.plan import (
    AddAttacherFinalizer,
    AttachedVolumeView,
    ControllerPublish,
    ControllerUnpublish,
    MarkAttached,
    RemoveAttacherFinalizer,
    ReportAttachError,
)
from volplane.sidecars.attacher.settings import AttacherOptions
from volplane.sidecars.base import DriverClient, read_secrets

log = logging.getLogger(__name__)

COMPONENT = "csi-attacher"


def _node_of(attachment: VolumeAttachment) -> list[str]:
    return [attachment.spec.node_name]


def build_driver_info(driver: DriverClient) -> plans.AttacherDriverInfo:
    """What the plan must know of the driver."""
    return plans.AttacherDriverInfo(
        driver.name,
        attaches="PUBLISH_UNPUBLISH_VOLUME" in driver.controller,
        publishes_readonly="PUBLISH_READONLY" in driver.controller,
    )


class AttachmentView(Struct, frozen=True):
    attachment: VolumeAttachment
    volume: PersistentVolume | None
    node: CSINode | None
    disputed: bool = False  # the driver's own list contradicts the status


class AttacherMemory:
    def __init__(self) -> None:
        self.disputed: set[str] = set()  # attachments whose status the driver's list contradicts

    def observe_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        if new is None and old is not None:
            self.disputed.discard(old.name)


class VolumeAttacher(Controller[str, AttachmentView, plans.Step]):
    name = "csi-attacher"

    def __init__(self, client: Client, driver: DriverClient, settings: AttacherOptions) -> None:
        super().__init__(
            client,
            workers=settings.worker_threads,
            backoff=Backoff(settings.retry_interval_start, settings.retry_interval_max),
            resync=settings.resync,
        )
        self.driver, self.settings = driver, settings
        self.driver_info = build_driver_info(driver)
        self.writer = AttachmentWriter(client, COMPONENT, self.driver_info.finalizer)

    def setup(self) -> None:
        self.memory = AttacherMemory()
        self.attachments = self.watch(
            VolumeAttachment, self.keys_of_attachment, observe=self.memory.observe_attachment
        )
        self.volumes = self.watch(PersistentVolume, self.keys_of_volume)
        self.nodes = self.watch(CSINode, self.keys_of_node)
        self.by_volume = self.attachments.index("volume", attached_volume)
        self.by_node = self.attachments.index("node", _node_of)

    # --- which keys a change wakes

    def keys_of_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> list[str]:
        if new is None or new.spec.attacher != self.driver.name:
            return []
        return [new.name] if is_relevant_change(old, new) else []

    def keys_of_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> list[str]:
        if new is None or old is not None:  # an attachment may wait for a new volume
            return []
        return self._keys_to_reconcile(self.by_volume[new.name])

    def keys_of_node(self, old: CSINode | None, new: CSINode | None) -> list[str]:
        node = new or old
        before, after = (plans.registered_node_id(n, self.driver.name) for n in (old, new))
        if node is None or before == after:
            return []
        return self._keys_to_reconcile(self.by_node[node.name])

    def _keys_to_reconcile(self, attachments: Iterable[VolumeAttachment]) -> list[str]:
        ours = (a for a in attachments if a.spec.attacher == self.driver.name)
        return [a.name for a in ours if not a.status.attached or a.is_deleting]

    # --- what to do

    def view(self, key: str) -> AttachmentView | None:
        attachment = self.attachments.get(key)
        if attachment is None:
            return None
        volume = self.volumes.get(attachment.spec.source.persistent_volume_name or "")
        node = self.nodes.get(attachment.spec.node_name)
        return AttachmentView(attachment, volume, node, key in self.memory.disputed)

    def plan(self, view: AttachmentView) -> Iterator[plans.Step | Wait]:
        return plans.plan(view.attachment, view.volume, view.node, self.driver_info, forced=view.disputed)

    def update_memory(
        self, key: str, view: AttachmentView | None, steps: Sequence[plans.Step | CommonStep]
    ) -> None:
        if not steps:
            self.memory.disputed.discard(key)

    # --- doing it

    async def act(self, key: str, view: AttachmentView, step: plans.Step) -> None:
        try:
            await self._act(view.attachment, step)
        except (RetryableError, CallError, convert.UnsupportedModes) as error:
            await self._write_error(view.attachment, error)
            raise RetryableError(str(error)) from error

    async def _act(self, attachment: VolumeAttachment, step: plans.Step) -> None:
        match step:
            case AddAttacherFinalizer(volume):
                return await self._add_volume_finalizer(volume)
            case ControllerPublish():
                await self._publish(attachment, step)
            case ControllerUnpublish():
                await self._unpublish(attachment, step)
            case MarkAttached():
                await self.writer.set_attached(attachment, {})
            case ReportAttachError(message):
                return await self._write_error(attachment, RetryableError(message))
            case _:
                assert_never(step)
        self.memory.disputed.discard(attachment.name)

    async def _add_volume_finalizer(self, volume: str) -> None:
        with trace.span(COMPONENT, "hold volume", f"pv/{volume}"):
            finalizers = {"metadata": {"finalizers": [self.driver_info.finalizer]}}
            with _as_retryable("could not add PersistentVolume finalizer"):
                await self.client.patch(PersistentVolume, volume, strategic=finalizers)

    async def _publish(self, attachment: VolumeAttachment, step: ControllerPublish) -> None:
        request = await self._publish_request(step)
        intents = [self._add_volume_finalizer(step.hold)] if step.hold else []
        if not step.intent_written:
            intents.append(self._write_intent(attachment, step.node_id))
        # At the same time, so that they can share a commit of the store. The first error is raised.
        for failed in await asyncio.gather(*intents, return_exceptions=True):
            if failed is not None:
                raise failed
        about = _log_fields(attachment, step.handle)
        log.info("Attaching", extra=about)
        reply = await self._call("ControllerPublishVolume", request, attachment)
        await self.writer.set_attached(attachment, dict(reply.publish_context))
        log.info("Attached", extra=about)

    async def _publish_request(self, step: ControllerPublish) -> v1.ControllerPublishVolumeRequest:
        multi_writer = "SINGLE_NODE_MULTI_WRITER" in self.driver.controller
        capability = convert.capability(
            convert.attach_access_mode(step.modes, multi_writer=multi_writer),
            block=step.block,
            fs_type=step.fs_type or self.settings.default_fstype,
            mount_flags=step.mount_options,
        )
        return v1.ControllerPublishVolumeRequest(
            volume_id=step.handle,
            node_id=step.node_id,
            volume_capability=capability,
            readonly=step.read_only,
            secrets=await read_secrets(self.client, step.secret),
            volume_context=step.attributes,
        )

    async def _write_intent(self, attachment: VolumeAttachment, node_id: str) -> None:
        with _as_retryable("could not save VolumeAttachment"):
            await self.writer.write_intent(attachment, {ATTACHMENT_NODE_ID_ANNOTATION: node_id})

    async def _unpublish(self, attachment: VolumeAttachment, step: ControllerUnpublish) -> None:
        request = v1.ControllerUnpublishVolumeRequest(
            volume_id=step.handle, node_id=step.node_id, secrets=await read_secrets(self.client, step.secret)
        )
        about = _log_fields(attachment, step.handle)
        log.info("Detaching", extra=about)
        await self._call("ControllerUnpublishVolume", request, attachment)
        await self.writer.remove_finalizer(attachment)
        log.info("Detached", extra=about)

    async def _write_error(self, attachment: VolumeAttachment, error: Exception) -> None:
        """Write the error to the attachment."""
        detaching = attachment.is_deleting
        log.error(
            "Error detaching" if detaching else "Error attaching",
            extra={**_log_fields(attachment), "err": str(error)},
        )
        with_code = self.settings.feature_gates.get("MutableCSINodeAllocatableCount", False)
        code = int(error.code) if with_code and isinstance(error, CallError) and not detaching else None
        await self.writer.write_error(attachment, str(error), code)

    async def _call(self, method: str, request: Any, attachment: VolumeAttachment) -> Any:
        volume = self.volumes.get(attachment.spec.source.persistent_volume_name or "")
        return await self.driver.call(
            method,
            request,
            timeout=self.settings.timeout,
            subject=f"va/{attachment.name}",
            migrated=volume is None or volume.spec.csi is None,  # only migrated volumes are inline
        )

    # --- the driver's own list

    async def verify_attachments(self) -> None:
        """Compare the driver's list of published volumes with the attachments, at intervals."""
        while True:
            await asyncio.sleep(self.settings.reconcile_sync)
            try:
                published = await self._list_published_nodes()
            except CallError as error:
                log.error("Failed to list published volumes", extra={"err": str(error)})
                continue
            for attachment in self.attachments.all():
                if attachment.spec.attacher == self.driver.name and self._is_disputed(attachment, published):
                    log.warning(
                        "The driver's list contradicts the status, trying again",
                        extra=_log_fields(attachment),
                    )
                    self.memory.disputed.add(attachment.name)
                    self.queue.add(attachment.name)

    def _is_disputed(self, attachment: VolumeAttachment, published: Mapping[str, frozenset[str]]) -> bool:
        source = attachment.spec.source
        volume = self.volumes.get(source.persistent_volume_name or "")
        inline = source.inline_volume_spec
        found = inline.csi if inline is not None else find_csi_source(volume)
        return found is not None and plans.is_disputed(attachment, found.volume_handle, published)

    async def _list_published_nodes(self) -> dict[str, frozenset[str]]:
        published: dict[str, frozenset[str]] = {}
        token, seen = "", set[str]()
        while True:
            request = v1.ListVolumesRequest(max_entries=self.settings.max_entries, starting_token=token)
            page = await self.driver.call("ListVolumes", request, timeout=self.settings.timeout)
            for entry in page.entries:
                published[entry.volume.volume_id] = frozenset(entry.status.published_node_ids)
            if page.next_token in seen:
                raise BadReply(f"ListVolumes: the reply is not valid: next_token {token!r} is repeated")
            token = page.next_token
            if not token:
                return published
            seen.add(token)


class VolumeFinalizerRemover(Controller[str, AttachedVolumeView, RemoveAttacherFinalizer]):
    """Removes our finalizer from volumes that are being deleted, after their last attachment."""

    name = "csi-attacher-volumes"

    def __init__(self, client: Client, driver: DriverClient, settings: AttacherOptions) -> None:
        super().__init__(
            client,
            workers=settings.worker_threads,
            backoff=Backoff(settings.retry_interval_start, settings.retry_interval_max),
            resync=settings.resync,
        )
        self.finalizer = build_driver_info(driver).finalizer

    def setup(self) -> None:
        self.volumes = self.watch(PersistentVolume, self.keys_of_volume)
        self.attachments = self.watch(VolumeAttachment, self.keys_of_attachment)
        self.by_volume = self.attachments.index("volume", attached_volume)

    def keys_of_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> list[str]:
        return [new.name] if new is not None and new.is_deleting else []

    def keys_of_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> list[str]:
        return attached_volume(old) if old is not None and new is None else []

    def view(self, key: str) -> AttachedVolumeView | None:
        volume = self.volumes.get(key)
        if volume is None:
            return None
        return AttachedVolumeView(volume, self.by_volume[key], self.finalizer)

    def plan(self, view: AttachedVolumeView) -> Iterator[RemoveAttacherFinalizer | Wait]:
        return plans.plan_release(view)

    async def act(self, key: str, view: AttachedVolumeView, step: RemoveAttacherFinalizer) -> None:
        removal = {"metadata": {"$deleteFromPrimitiveList/finalizers": [self.finalizer]}}
        with trace.span(COMPONENT, "release volume", f"pv/{key}"):
            await self.client.patch(
                PersistentVolume, key, strategic=removal, uid=view.volume.uid, missing_ok=True
            )
        log.info("Removed finalizer from PersistentVolume", extra={"PersistentVolume": key})


@contextmanager
def _as_retryable(failure: str) -> Iterator[None]:
    """Turn an error of the API server into one that is written to the attachment."""
    try:
        yield
    except Conflict:  # it was changed meanwhile: plan again
        raise
    except APIError as error:
        raise RetryableError(f"{failure}: {error}") from error


def _log_fields(attachment: VolumeAttachment, handle: str = "") -> dict[str, str]:
    about = {
        "VolumeAttachment": attachment.name,
        "PersistentVolume": attachment.spec.source.persistent_volume_name or "",
        "volumeHandle": handle,
        "node": attachment.spec.node_name,
    }
    return {key: value for key, value in about.items() if value}
