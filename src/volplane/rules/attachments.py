"""VolumeAttachments: index functions by volume and by node, and the changes that wake an attacher."""

from __future__ import annotations

from volplane.api.storage import VolumeAttachment


def attached_volume(attachment: VolumeAttachment) -> list[str]:
    """The PersistentVolume that the attachment names; an inline volume has no name."""
    name = attachment.spec.source.persistent_volume_name
    return [name] if name else []


def attached_node(attachment: VolumeAttachment) -> list[str]:
    return [attachment.spec.node_name]


def is_relevant_change(old: VolumeAttachment | None, new: VolumeAttachment | None) -> bool:
    """A field has changed that wakes the attachment. Errors that it writes must not cut backoff short."""
    if old is None or new is None or old is new:
        return True
    return _relevant_fields(old) != _relevant_fields(new)


def _relevant_fields(attachment: VolumeAttachment) -> tuple[object, ...]:
    return attachment.uid, attachment.is_deleting, attachment.spec, attachment.status.attached
