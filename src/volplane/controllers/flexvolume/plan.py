"""What the VolumeAttachment of a FlexVolume needs next from its driver.

The finalizer is written before `attach` is called, so that the attachment cannot be deleted without `detach`,
whatever the outcome of the call. A driver that is missing is waited for: the prober wakes the attachment.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from volplane.api.annotations import FLEX_VOLUME_ANNOTATION
from volplane.api.finalizers import FLEX_ATTACHMENT_FINALIZER
from volplane.api.storage import VolumeAttachment
from volplane.rules.steps import TICK
from volplane.rules.waits import Wait, WaitData, WaitReason
from volplane.volumes.flex.options import FlexVolume


class FlexAttachmentView(Struct, frozen=True):
    attachment: VolumeAttachment
    unique_name: str  # of the volume; empty if the attachment does not have it
    driver: str = ""
    flex: FlexVolume | None = None  # None: its PersistentVolume is gone, or is no FlexVolume
    missing: str = ""  # why the driver cannot be called
    is_loading: bool = False  # the prober is loading the driver
    has_failed: bool = False  # its `init` failed
    sync_period: float = 0.0  # seconds between two `isattached`
    verify_after: float | None = None  # seconds until `isattached` is called; None: never

    @property
    def error(self) -> str:
        status = self.attachment.status
        error = status.detach_error if self.attachment.is_deleting else status.attach_error
        return error.message if error is not None else ""


class AttachFlexVolume(Struct, frozen=True):
    flex: FlexVolume
    intent_written: bool = False  # the attachment has the finalizer


class DetachFlexVolume(Struct, frozen=True):
    driver: str
    volume: str


class VerifyFlexVolume(Struct, frozen=True):
    """Ask the driver whether the volume is still attached."""

    flex: FlexVolume


class ReloadFlexDriver(Struct, frozen=True):
    """Call `init` once more."""

    driver: str


class WriteFlexError(Struct, frozen=True):
    """The driver cannot be called: write the message into attachError or detachError. A `Wait` follows."""

    message: str


Step = AttachFlexVolume | DetachFlexVolume | VerifyFlexVolume | ReloadFlexDriver | WriteFlexError


def plan(view: FlexAttachmentView) -> Iterator[Step | Wait]:
    attachment = view.attachment
    if attachment.is_deleting:
        if FLEX_ATTACHMENT_FINALIZER in attachment.metadata.finalizers:
            yield from plan_detach(view)
    elif attachment.status.attached:
        yield from plan_verification(view)
    else:
        yield from plan_attach(view)


def plan_attach(view: FlexAttachmentView) -> Iterator[Step | Wait]:
    source = view.attachment.spec.source.persistent_volume_name or ""
    if not view.unique_name:
        message = f"the VolumeAttachment has no annotation {FLEX_VOLUME_ANNOTATION}"
        yield from _plan_error(view, message, WaitReason.ATTACHMENT_INVALID)
    elif view.flex is None:
        message = f'persistentvolume "{source}" does not exist or has no flexVolume source'
        yield from _plan_error(view, message, WaitReason.VOLUME_NOT_FOUND)
    elif view.missing:
        yield from _plan_missing_driver(view)
    else:
        written = FLEX_ATTACHMENT_FINALIZER in view.attachment.metadata.finalizers
        yield AttachFlexVolume(view.flex, intent_written=written)


def plan_detach(view: FlexAttachmentView) -> Iterator[Step | Wait]:
    if view.missing:
        yield from _plan_missing_driver(view)
    else:
        yield DetachFlexVolume(view.driver, view.unique_name.removeprefix(f"{view.driver}/"))


def plan_verification(view: FlexAttachmentView) -> Iterator[Step | Wait]:
    if view.verify_after is None or view.flex is None or view.missing:
        return
    if view.verify_after <= TICK:
        yield VerifyFlexVolume(view.flex)
        yield Wait(WaitReason.FLEX_VERIFICATION, seconds=view.sync_period)
    else:
        yield Wait(WaitReason.FLEX_VERIFICATION, seconds=view.verify_after)


def _plan_missing_driver(view: FlexAttachmentView) -> Iterator[Step | Wait]:
    data = WaitData(node=view.attachment.spec.node_name, driver=view.driver)
    wait = Wait(WaitReason.FLEX_DRIVER_MISSING, data, message=view.missing, backoff=view.has_failed)
    if not view.is_loading:
        yield from _plan_message(view, view.missing)
        if view.has_failed:
            yield ReloadFlexDriver(view.driver)
    yield wait


def _plan_error(view: FlexAttachmentView, message: str, reason: WaitReason) -> Iterator[Step | Wait]:
    yield from _plan_message(view, message)
    data = WaitData(
        node=view.attachment.spec.node_name,
        volume=view.attachment.spec.source.persistent_volume_name or "",
        driver=view.driver,
    )
    yield Wait(reason, data, message=message)


def _plan_message(view: FlexAttachmentView, message: str) -> Iterator[WriteFlexError]:
    if view.error != message:
        yield WriteFlexError(message)
