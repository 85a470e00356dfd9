"""The VolumeAttachment of a FlexVolume on a node.

The attach/detach controller creates it, and the FlexVolume controller acts on it. A PersistentVolume is named
in the source. An inline volume of a pod is written as a CSI source, the only one that API servers accept
there: `volumeHandle` is the unique name, `volumeAttributes` are the options. In both cases the annotation has
the unique name, so that a volume can be detached after its PersistentVolume is gone.
"""

from __future__ import annotations

from msgspec import structs

from volplane.api import names
from volplane.api.annotations import FLEX_READ_ONLY_ANNOTATION, FLEX_VOLUME_ANNOTATION
from volplane.api.core import CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec
from volplane.api.meta import ObjectMeta
from volplane.api.storage import VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec
from volplane.rules.access import ONCE
from volplane.volumes.flex.options import ATTACHER, FlexVolume, read_source


def attached_flex_volume(attachment: VolumeAttachment) -> list[str]:
    """The unique name of the FlexVolume that is attached; an index function."""
    if attachment.spec.attacher != ATTACHER:
        return []
    name = attachment.metadata.annotations.get(FLEX_VOLUME_ANNOTATION)
    return [name] if name else []


def split_unique_name(volume: str) -> tuple[str, str]:
    """vendor/driver/name → vendor/driver and name."""
    driver, _, name = volume.rpartition("/")
    return driver, name


def build_attachment(flex: FlexVolume, node: str, *, inline: bool) -> VolumeAttachment:
    annotations = {FLEX_VOLUME_ANNOTATION: flex.unique_name}
    if flex.read_only and not inline:
        annotations[FLEX_READ_ONLY_ANNOTATION] = "true"
    return VolumeAttachment(
        metadata=ObjectMeta(name=names.flex_attachment_name(flex.unique_name, node), annotations=annotations),
        spec=VolumeAttachmentSpec(
            attacher=ATTACHER,
            node_name=node,
            source=VolumeAttachmentSource(inline_volume_spec=_inline_spec(flex))
            if inline
            else VolumeAttachmentSource(persistent_volume_name=flex.name),
        ),
    )


def _inline_spec(flex: FlexVolume) -> PersistentVolumeSpec:
    source = CSIPersistentVolumeSource(
        driver=ATTACHER,
        volume_handle=flex.unique_name,
        fs_type=flex.fs_type,
        read_only=flex.read_only,
        volume_attributes=flex.options,
    )
    return PersistentVolumeSpec(access_modes=(ONCE,), csi=source)


def read_attachment(attachment: VolumeAttachment, volume: PersistentVolume | None) -> FlexVolume | None:
    """The FlexVolume to attach; `volume` is the PersistentVolume that the source names. None: not known."""
    driver, name = split_unique_name(next(iter(attached_flex_volume(attachment)), ""))
    inline = attachment.spec.source.inline_volume_spec
    if not driver:
        return None
    if inline is not None:
        csi = inline.csi or CSIPersistentVolumeSource()
        return FlexVolume(name, driver, csi.fs_type, csi.read_only, csi.volume_attributes)
    if volume is None or volume.spec.flex_volume is None:
        return None
    read_only = attachment.metadata.annotations.get(FLEX_READ_ONLY_ANNOTATION) == "true"
    # The driver that attaches is the one that will detach.
    return structs.replace(read_source(volume.spec.flex_volume, name, read_only=read_only), driver=driver)
