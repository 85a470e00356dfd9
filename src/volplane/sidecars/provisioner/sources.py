"""The data source of a new volume: a snapshot, another claim's volume, or one that needs a populator.

A source that cannot be used now may be usable later, so every problem raises `SourceNotReady`. A snapshot
that is being deleted can be used while it has our finalizer, because then a restore from it has begun.
"""

from __future__ import annotations

from msgspec import Struct

from volplane.api import quantity
from volplane.api.annotations import ALLOW_VOLUME_MODE_CHANGE_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.finalizers import SNAPSHOT_AS_SOURCE_FINALIZER
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotContent
from volplane.api.storage import StorageClass
from volplane.rules import binding, classes, matching, sizes

SNAPSHOTS = "snapshot.storage.k8s.io"
SNAPSHOT, CLAIM = "VolumeSnapshot", "PersistentVolumeClaim"


class SourceNotReady(ValueError):
    """The source cannot be copied in its present state."""


class SourceReference(Struct, frozen=True):
    """The object that a claim names as its data source."""

    group: str
    kind: str
    namespace: str
    name: str

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"

    @property
    def is_known(self) -> bool:
        """Otherwise a populator fills the volume, and we do not create it."""
        return (self.group, self.kind) in (("", CLAIM), (SNAPSHOTS, SNAPSHOT))


class SourceObjects(Struct, frozen=True):
    """The objects of a source that exist: a snapshot with its content, or a claim with its volume."""

    snapshot: VolumeSnapshot | None = None
    content: VolumeSnapshotContent | None = None
    claim: PersistentVolumeClaim | None = None
    volume: PersistentVolume | None = None


class SourceContent(Struct, frozen=True, omit_defaults=True):
    """The driver's handle of what is copied, and the object that names it."""

    snapshot: str = ""
    volume: str = ""
    name: str = ""  # of the VolumeSnapshot or claim
    namespace: str = ""


def source_reference(claim: PersistentVolumeClaim) -> SourceReference | None:
    source, where = claim.spec.data_source, claim.namespace
    if source is not None:
        return SourceReference(source.api_group or "", source.kind, where, source.name)
    other = claim.spec.data_source_ref
    if other is not None:
        return SourceReference(other.api_group or "", other.kind, other.namespace or where, other.name)
    return None


def source_keys(claim: PersistentVolumeClaim) -> list[str]:
    """The key of its source while the claim waits for a volume; an index function."""
    source = source_reference(claim)
    return [source.key] if source is not None and is_waiting(claim) else []


def is_waiting(claim: PersistentVolumeClaim) -> bool:
    """The volume of the claim may not have been copied yet."""
    return claim.status.phase in ("", "Pending")


def resolve_content(
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
    reference: SourceReference,
    source: SourceObjects,
    *,
    prevent_mode_change: bool = True,
) -> SourceContent:
    """What to copy. Raises SourceNotReady."""
    try:
        if reference.kind == SNAPSHOT:
            handle = _snapshot_handle(claim, storage_class, reference, source, prevent_mode_change)
            return SourceContent(snapshot=handle, name=reference.name, namespace=reference.namespace)
        handle = _clone_handle(claim, storage_class, reference, source)
        return SourceContent(volume=handle, name=reference.name, namespace=reference.namespace)
    except SourceNotReady as error:
        prefix = f"error getting handle for DataSource Type {reference.kind} by Name {reference.name}"
        raise SourceNotReady(f"{prefix}: {error}") from None


def _snapshot_handle(
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
    reference: SourceReference,
    source: SourceObjects,
    prevent_mode_change: bool,
) -> str:
    snapshot, content = source.snapshot, source.content
    if snapshot is None:
        raise SourceNotReady(f'volumesnapshot "{reference.namespace}/{reference.name}" not found')
    if snapshot.is_deleting and SNAPSHOT_AS_SOURCE_FINALIZER not in snapshot.metadata.finalizers:
        raise SourceNotReady(f"snapshot {snapshot.name} is being deleted")
    status = snapshot.status
    if status is None or not status.bound_volume_snapshot_content_name:
        raise SourceNotReady(f"snapshot {snapshot.name} is not bound to a content")
    if content is None:
        raise SourceNotReady(f"volumesnapshotcontent {status.bound_volume_snapshot_content_name} not found")
    ref = content.spec.volume_snapshot_ref
    if (ref.uid, ref.namespace, ref.name) != (snapshot.uid, snapshot.namespace, snapshot.name):
        raise SourceNotReady(
            f"content {content.name} belongs to another snapshot, {ref.namespace}/{ref.name}"
        )
    driver = classes.driver_name(storage_class.provisioner)
    if content.spec.driver != driver:
        raise SourceNotReady(f"snapshot {snapshot.name} is of driver {content.spec.driver}, not {driver}")
    if not status.ready_to_use:
        raise SourceNotReady(f"snapshot {snapshot.name} is not ready to use")
    handle = content.status.snapshot_handle if content.status is not None else None
    if not handle:
        raise SourceNotReady(f"content {content.name} has no snapshot handle yet")
    _check_size(claim, status.restore_size)
    if prevent_mode_change:
        _check_mode(claim, content)
    return handle


def _check_size(claim: PersistentVolumeClaim, restore_size: str | int | None) -> None:
    if restore_size is None:
        return
    least, asked = quantity.value(str(restore_size)), sizes.requested_size(claim)
    if asked < least:
        raise SourceNotReady(
            f"requested volume size {asked} is less than the size {least} of the source snapshot"
        )


def _check_mode(claim: PersistentVolumeClaim, content: VolumeSnapshotContent) -> None:
    before = content.spec.source_volume_mode
    if before is None or before == matching.mode(claim):
        return
    if content.metadata.annotations.get(ALLOW_VOLUME_MODE_CHANGE_ANNOTATION) != "true":
        raise SourceNotReady(
            f"requested volume {claim.key} modifies the mode of the source volume from {before} to "
            f"{matching.mode(claim)}, and {ALLOW_VOLUME_MODE_CHANGE_ANNOTATION} is not set "
            f"on content {content.name}"
        )


def _clone_handle(
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
    reference: SourceReference,
    source: SourceObjects,
) -> str:
    origin, volume = source.claim, source.volume
    if origin is None:
        raise SourceNotReady(f'persistentvolumeclaim "{reference.namespace}/{reference.name}" not found')
    if origin.status.phase != "Bound":
        raise SourceNotReady(f"claim {origin.name} is {origin.status.phase or 'Pending'}, not Bound")
    if origin.is_deleting:
        raise SourceNotReady(f"claim {origin.name} is being deleted")
    if binding.claim_class(origin) is None or binding.claim_class(claim) is None:
        raise SourceNotReady("the claim and the one it clones must both have a storage class")
    have, asked = sizes.requested_size(origin), sizes.requested_size(claim)
    if asked < have:
        raise SourceNotReady(
            f"requested volume size {asked} is less than the size {have} of the cloned claim"
        )
    if volume is None:
        raise SourceNotReady(f"volume {origin.spec.volume_name} of claim {origin.name} not found")
    if volume.status.phase != "Bound" or not binding.is_pair(origin, volume):
        raise SourceNotReady(f"volume {volume.name} is not bound to claim {origin.name}")
    driver = classes.driver_name(storage_class.provisioner)
    if volume.spec.csi is None or volume.spec.csi.driver != driver:
        raise SourceNotReady(f"volume {volume.name} is not one of driver {driver}")
    if matching.mode(volume) != matching.mode(claim):
        raise SourceNotReady(
            f"volume {volume.name} has mode {matching.mode(volume)}, not {matching.mode(claim)}"
        )
    return volume.spec.csi.volume_handle
