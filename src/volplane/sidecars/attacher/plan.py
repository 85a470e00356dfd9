"""What a VolumeAttachment needs next from its driver.

To attach, the volume gets a finalizer, the attachment gets a finalizer and the node ID in one write, then the
driver is called. Detaching uses the node ID that was written, so it also works when the driver is no longer
registered on the node. After a failed attach the finalizer stays: even a final error may leave something
behind that only ControllerUnpublishVolume cleans up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from volplane.api.annotations import ATTACHMENT_NODE_ID_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeSpec, SecretReference
from volplane.api.names import sanitize_driver
from volplane.api.storage import CSINode, VolumeAttachment
from volplane.rules.csi_translation import UntranslatableObject, translate_volume
from volplane.rules.waits import Wait, WaitData, WaitReason


class AttacherDriverInfo(Struct, frozen=True):
    """What the plan must know of the driver."""

    name: str
    attaches: bool = True  # CONTROLLER_SERVICE and PUBLISH_UNPUBLISH_VOLUME
    publishes_readonly: bool = False

    @property
    def finalizer(self) -> str:
        return "external-attacher/" + sanitize_driver(self.name)


class AddAttacherFinalizer(Struct, frozen=True):
    """Add our finalizer to the volume, which must not be deleted while it may be attached."""

    volume: str


class ControllerPublish(Struct, frozen=True):
    handle: str
    node_id: str
    modes: tuple[str, ...]
    block: bool = False
    fs_type: str = ""
    mount_options: tuple[str, ...] = ()
    read_only: bool = False
    secret: SecretReference | None = None
    attributes: Mapping[str, str] = {}
    intent_written: bool = False  # the attachment has the finalizer and the node ID
    hold: str = ""  # the volume that needs our finalizer before the call


class ControllerUnpublish(Struct, frozen=True):
    handle: str
    node_id: str
    secret: SecretReference | None = None


class MarkAttached(Struct, frozen=True):
    """Set `attached` for a driver that attaches nothing."""


class ReportAttachError(Struct, frozen=True):
    """The driver cannot be called: write the message into attachError or detachError. A `Wait` follows."""

    message: str
    reason: WaitReason = WaitReason.ATTACHMENT_INVALID


Step = AddAttacherFinalizer | ControllerPublish | ControllerUnpublish | MarkAttached | ReportAttachError


def plan(
    attachment: VolumeAttachment,
    volume: PersistentVolume | None,
    node: CSINode | None,
    driver: AttacherDriverInfo,
    *,
    forced: bool = False,  # the driver's list of volumes contradicts the status
) -> Iterator[Step | Wait]:
    for step in _plan(attachment, volume, node, driver, forced=forced):
        yield step
        if isinstance(step, ReportAttachError):
            data = WaitData(node=attachment.spec.node_name, driver=driver.name)
            yield Wait(step.reason, data, message=step.message, backoff=True)


def _plan(
    attachment: VolumeAttachment,
    volume: PersistentVolume | None,
    node: CSINode | None,
    driver: AttacherDriverInfo,
    *,
    forced: bool,
) -> Iterator[Step]:
    if attachment.spec.attacher != driver.name:
        return
    if not driver.attaches:
        if not attachment.is_deleting and not attachment.status.attached:
            yield MarkAttached()
    elif attachment.is_deleting:
        if forced or driver.finalizer in attachment.metadata.finalizers:
            yield _detach(attachment, volume, node, driver)
    elif forced or not attachment.status.attached:
        yield from _attach(attachment, volume, node, driver)


def _attach(
    attachment: VolumeAttachment,
    volume: PersistentVolume | None,
    node: CSINode | None,
    driver: AttacherDriverInfo,
) -> Iterator[Step]:
    source = attachment.spec.source
    spec = _spec(attachment, volume)
    hold = ""
    if isinstance(spec, ReportAttachError):
        yield spec
        return
    if source.persistent_volume_name is not None and volume is not None:
        if volume.is_deleting:
            yield ReportAttachError(f'PersistentVolume "{volume.name}" is marked for deletion')
            return
        if driver.finalizer not in volume.metadata.finalizers:
            hold = volume.name
    assert spec.csi is not None
    node_id = registered_node_id(node, driver.name)
    if not node_id:
        if hold:
            yield AddAttacherFinalizer(hold)
        yield _not_registered(attachment, node, driver)
        return
    yield ControllerPublish(
        handle=spec.csi.volume_handle,
        node_id=node_id,
        modes=spec.access_modes,
        block=spec.volume_mode == "Block",
        fs_type=spec.csi.fs_type,
        mount_options=spec.mount_options,
        read_only=spec.csi.read_only and driver.publishes_readonly,
        secret=spec.csi.controller_publish_secret_ref,
        attributes=spec.csi.volume_attributes,
        intent_written=driver.finalizer in attachment.metadata.finalizers
        and attachment.metadata.annotations.get(ATTACHMENT_NODE_ID_ANNOTATION) == node_id,
        hold=hold,
    )


def _detach(
    attachment: VolumeAttachment,
    volume: PersistentVolume | None,
    node: CSINode | None,
    driver: AttacherDriverInfo,
) -> Step:
    spec = _spec(attachment, volume)
    if isinstance(spec, ReportAttachError):
        return spec
    assert spec.csi is not None
    node_id = registered_node_id(node, driver.name) or attachment.metadata.annotations.get(
        ATTACHMENT_NODE_ID_ANNOTATION, ""
    )
    if not node_id:
        return _not_registered(attachment, node, driver)
    return ControllerUnpublish(spec.csi.volume_handle, node_id, spec.csi.controller_publish_secret_ref)


def _spec(
    attachment: VolumeAttachment, volume: PersistentVolume | None
) -> PersistentVolumeSpec | ReportAttachError:
    """The spec of the volume to attach, which has a CSI source."""
    source = attachment.spec.source
    if source.persistent_volume_name is not None and source.inline_volume_spec is not None:
        return ReportAttachError("both InlineCSIVolumeSource and PersistentVolumeName specified in VA source")
    if source.persistent_volume_name is not None:
        if volume is None:
            message = f'persistentvolume "{source.persistent_volume_name}" not found'
            return ReportAttachError(message, WaitReason.VOLUME_NOT_FOUND)
        try:
            spec = translate_volume(volume).spec
        except UntranslatableObject as error:
            return ReportAttachError(str(error))
    elif source.inline_volume_spec is not None:
        spec = source.inline_volume_spec
    else:
        return ReportAttachError(
            "neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source"
        )
    return spec if spec.csi is not None else ReportAttachError("the volume has no CSI source")


def registered_node_id(node: CSINode | None, driver: str) -> str:
    """The node ID that the driver has registered."""
    drivers = node.spec.drivers if node is not None else ()
    return next((d.node_id for d in drivers if d.name == driver), "")


def _not_registered(
    attachment: VolumeAttachment, node: CSINode | None, driver: AttacherDriverInfo
) -> ReportAttachError:
    name = attachment.spec.node_name
    message = (
        f'csinode.storage.k8s.io "{name}" not found'
        if node is None
        else f"CSINode {name} does not contain driver {driver.name}"
    )
    return ReportAttachError(message, WaitReason.DRIVER_NOT_REGISTERED)


class AttachedVolumeView(Struct, frozen=True):
    volume: PersistentVolume
    attachments: Sequence[VolumeAttachment]
    finalizer: str


class RemoveAttacherFinalizer(Struct, frozen=True):
    """Remove our finalizer from the volume."""


def plan_release(view: AttachedVolumeView) -> Iterator[RemoveAttacherFinalizer | Wait]:
    volume = view.volume
    if may_release(volume, view.attachments, view.finalizer):
        yield RemoveAttacherFinalizer()
    elif volume.is_deleting and view.finalizer in volume.metadata.finalizers:
        nodes = tuple(sorted(attachment.spec.node_name for attachment in view.attachments))
        yield Wait(WaitReason.VOLUME_STILL_ATTACHED, WaitData(volume=volume.name, nodes=nodes))


def may_release(volume: PersistentVolume, attachments: Sequence[VolumeAttachment], finalizer: str) -> bool:
    """The volume is being deleted and has no attachments."""
    return volume.is_deleting and finalizer in volume.metadata.finalizers and not attachments


def is_disputed(attachment: VolumeAttachment, handle: str, published: Mapping[str, frozenset[str]]) -> bool:
    """The driver's list of published volumes contradicts the attachment's status."""
    node_id = attachment.metadata.annotations.get(ATTACHMENT_NODE_ID_ANNOTATION)
    if node_id is None:
        return False
    return attachment.status.attached != (node_id in published.get(handle, frozenset()))
