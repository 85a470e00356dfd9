"""Index functions of VolumeAttachments: by volume and by node."""

from __future__ import annotations

from volplane.api.storage import VolumeAttachment


def attached_volume(attachment: VolumeAttachment) -> list[str]:
    """The PersistentVolume that the attachment names; an inline volume has no name."""
    name = attachment.spec.source.persistent_volume_name
    return [name] if name else []


def attached_node(attachment: VolumeAttachment) -> list[str]:
    return [attachment.spec.node_name]
