"""Volumes that pods have without a claim and that a CSI driver attaches: in-tree volumes, translated."""

from __future__ import annotations

from volplane.api import names
from volplane.api.core import PersistentVolume, Pod
from volplane.api.storage import VolumeAttachment
from volplane.client.cache import Cache
from volplane.controllers.attachdetach.facts import unique_name
from volplane.rules.csi_translation import list_inline_volumes
from volplane.rules.pods import has_released_volumes


def inline_names(pod: Pod) -> list[str]:
    """The unique names of the pod's inline volumes; an index function."""
    return [name for volume in list_inline_volumes(pod) for name in unique_name(volume)]


def inline_attachment(attachment: VolumeAttachment) -> list[str]:
    """The unique name of the volume in the attachment itself; others name a PersistentVolume."""
    spec = attachment.spec.source.inline_volume_spec
    if spec is None or spec.csi is None:
        return []
    return [names.csi_volume_name(spec.csi.driver, spec.csi.volume_handle)]


class InTreePodVolumes:
    """Volumes are named by their unique names."""

    def __init__(self, pods: Cache[Pod], attachments: Cache[VolumeAttachment]) -> None:
        self._users = pods.index("inline volumes", inline_names)
        self._attachments = attachments.index("inline volume", inline_attachment)

    def find(self, key: str) -> PersistentVolume | None:
        """The volume as a pod has it; None if no pod does."""
        found = (volume for pod in self._users[key] for volume in list_inline_volumes(pod))
        return next((volume for volume in found if key in unique_name(volume)), None)

    def users(self, key: str) -> list[Pod]:
        """The pods on nodes that may use the volume."""
        return [pod for pod in self._users[key] if pod.spec.node_name and not has_released_volumes(pod)]

    def attachments(self, key: str) -> list[VolumeAttachment]:
        return self._attachments[key]
