"""The content that is created for a snapshot. Pure."""

from __future__ import annotations

from volplane.api import kinds
from volplane.api.core import ObjectReference, PersistentVolume, PersistentVolumeClaim
from volplane.api.meta import ObjectMeta
from volplane.api.snapshot import (
    VolumeGroupSnapshotClass,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
    VolumeSnapshotContentSource,
    VolumeSnapshotContentSpec,
)
from volplane.rules import binding, snapshots
from volplane.rules.snapshots import AnySnapshot


class InvalidSnapshotSource(ValueError):
    """No snapshot can be taken of that, as it is now."""


def volume_of(
    snapshot: VolumeSnapshot, claim: PersistentVolumeClaim | None, volume: PersistentVolume | None
) -> PersistentVolume:
    """The volume to copy: bound to the claim, and with a CSI source. Raises InvalidSnapshotSource."""
    name = snapshot.spec.source.persistent_volume_claim_name or ""
    if claim is None:
        raise InvalidSnapshotSource(
            f'failed to retrieve PVC {name} from the lister: persistentvolumeclaim "{name}" not found'
        )
    if claim.status.phase != "Bound":
        raise InvalidSnapshotSource(
            f"the PVC {claim.name} is not yet bound to a PV, will not attempt to take a snapshot"
        )
    if volume is None:
        bound = claim.spec.volume_name
        raise InvalidSnapshotSource(
            f'failed to retrieve PV {bound} from the API server: persistentvolumes "{bound}" not found'
        )
    if not binding.is_for(volume, claim):
        raise InvalidSnapshotSource("claim in dataSource not bound or invalid")
    if volume.spec.csi is None:
        raise InvalidSnapshotSource(f"snapshotting non-CSI volumes is not supported, snapshot:{snapshot.key}")
    return volume


def reference(obj: AnySnapshot) -> ObjectReference:
    kind = kinds.of(type(obj))
    return ObjectReference(
        kind=kind.kind, api_version=kind.api_version, namespace=obj.namespace, name=obj.name, uid=obj.uid
    )


def content_metadata(
    snapshot: AnySnapshot, snapshot_class: VolumeSnapshotClass | VolumeGroupSnapshotClass, *, node: str = ""
) -> ObjectMeta:
    """Raises InvalidSnapshotClass and InvalidTemplate for a secret that cannot be named."""
    kind, name = snapshots.kind_of(snapshot), snapshots.content_name(snapshot)
    secret = snapshots.secret_of_content(snapshot_class, name, snapshot)
    return ObjectMeta(
        name=name,
        annotations=snapshots.secret_annotations(kind, secret),
        labels={snapshots.MANAGED_BY: node} if node else {},
        finalizers=(kind.content_finalizer,),  # from the start: it cannot be deleted before the next plan
    )


def make_content(
    snapshot: VolumeSnapshot,
    snapshot_class: VolumeSnapshotClass,
    volume: PersistentVolume,
    *,
    node: str = "",
    keep_mode: bool = True,
) -> VolumeSnapshotContent:
    """The content of a dynamically provisioned snapshot. Raises InvalidSnapshotClass and InvalidTemplate."""
    assert volume.spec.csi is not None
    spec = VolumeSnapshotContentSpec(
        volume_snapshot_ref=reference(snapshot),
        deletion_policy=snapshot_class.deletion_policy,
        driver=snapshot_class.driver,
        volume_snapshot_class_name=snapshot_class.name,
        source=VolumeSnapshotContentSource(volume_handle=volume.spec.csi.volume_handle),
        source_volume_mode=volume.spec.volume_mode if keep_mode else None,
    )
    return VolumeSnapshotContent(metadata=content_metadata(snapshot, snapshot_class, node=node), spec=spec)
