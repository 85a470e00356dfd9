"""How many volumes are to be attached, attached and in use, counted when the metrics are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from volplane.api.core import PersistentVolume, PersistentVolumeClaim, Pod
from volplane.api.storage import VolumeAttachment
from volplane.base import metrics
from volplane.base.metrics import Counts
from volplane.controllers.attachdetach.facts import inline_flex_volumes, plugin_of, split, unique_name
from volplane.rules.csi_translation import list_inline_volumes
from volplane.rules.plugin_names import qualify_csi
from volplane.rules.pods import claim_keys, has_released_volumes
from volplane.volumes.flex.attachment import attached_flex_volume

DESIRED, ACTUAL = "desired_state_of_world", "actual_state_of_world"

total_volumes = metrics.computed_gauge(
    "attachdetach_controller_total_volumes", "Number of volumes in A/D Controller", ("plugin_name", "state")
)
volumes_in_use = metrics.computed_gauge(
    "storage_count_attachable_volumes_in_use", "Measure number of volumes in use", ("node", "volume_plugin")
)


class AttachDetachObjects(Struct, frozen=True):
    """Copies of what the caches show."""

    pods: Sequence[Pod]
    claims: Sequence[PersistentVolumeClaim]
    volumes: Sequence[PersistentVolume]
    attachments: Sequence[VolumeAttachment]
    without_attach: frozenset[str] = frozenset()  # drivers whose volumes are not attached


def count_volumes(objects: AttachDetachObjects) -> Counts:
    """Desired: volumes that pods need on a node. Actual: VolumeAttachments, also uncertain ones."""
    desired = {
        (pod.spec.node_name, volume, plugin)
        for pod, driver, volume, plugin in _used_volumes(objects)
        if driver not in objects.without_attach and not has_released_volumes(pod)
    }
    counts: Counter[tuple[str, ...]] = Counter((plugin, DESIRED) for _, _, plugin in desired)
    counts.update((_plugin_of_attachment(attachment), ACTUAL) for attachment in objects.attachments)
    return counts


def count_in_use(objects: AttachDetachObjects) -> Counts:
    """Volumes of pods that have a node, also of pods that have ended, as upstream counts them."""
    counts: Counter[tuple[str, ...]] = Counter()
    counts.update((pod.spec.node_name, plugin) for pod, _, _, plugin in _used_volumes(objects))
    for pod in objects.pods:
        for source in pod.spec.volumes if pod.spec.node_name else ():
            if source.csi is not None:
                counts[pod.spec.node_name, qualify_csi(source.csi.driver)] += 1
    return counts


def _used_volumes(objects: AttachDetachObjects) -> Iterator[tuple[Pod, str, str, str]]:
    """Pods that have a node, with driver, unique name and plugin of each of their volumes."""
    claims = {claim.key: claim for claim in objects.claims}
    volumes = {volume.name: volume for volume in objects.volumes}
    for pod in objects.pods:
        if not pod.spec.node_name:
            continue
        for key in claim_keys(pod):
            claim = claims.get(key)
            volume = volumes.get(claim.spec.volume_name) if claim is not None else None
            if volume is not None:
                yield from _used_volume(pod, volume)
        for volume in list_inline_volumes(pod):
            yield from _used_volume(pod, volume)
        for flex in inline_flex_volumes(pod):
            yield pod, flex.driver, flex.unique_name, flex.driver


def _used_volume(pod: Pod, volume: PersistentVolume) -> Iterator[tuple[Pod, str, str, str]]:
    for name in unique_name(volume):
        driver, _ = split(name) or ("", "")
        yield pod, driver, name, plugin_of(name)


def _plugin_of_attachment(attachment: VolumeAttachment) -> str:
    flex = attached_flex_volume(attachment)
    return plugin_of(flex[0]) if flex else qualify_csi(attachment.spec.attacher)
