"""The content that is created for a snapshot. Pure."""

from __future__ import annotations

from volplane.api import kinds
from volplane.api.core import ObjectReference, PersistentVolume, PersistentVolumeClaim
from volplane.api.meta import ObjectMeta
from volplane.api.snapshot import (
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
    VolumeSnapshotContentSource,
    VolumeSnapshotContentSpec,
)
from volplane.rules import binding, snapshots


class InvalidSnapshotSource(ValueError):
    """No snapshot can be taken of the source now."""


def volume_of(
    snapshot: VolumeSnapshot, claim: PersistentVolumeClaim | None, volume: PersistentVolume | None
) -> PersistentVolume:
    """The volume to copy: bound to the claim, and a CSI volume. Raises InvalidSnapshotSource."""
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


def make_content(
    snapshot: VolumeSnapshot,
    snapshot_class: VolumeSnapshotClass,
    volume: PersistentVolume | None,
    *,
    node: str = "",
    keep_mode: bool = True,
) -> VolumeSnapshotContent:
    """Raises InvalidSnapshotClass and InvalidTemplate for a secret that cannot be named."""
    assert volume is not None
    assert volume.spec.csi is not None
    name = snapshots.content_name(snapshot)
    secret = snapshots.secret(
        snapshots.SNAPSHOTTER,
        snapshot_class.parameters,
        {"volumesnapshotcontent.name": name, "volumesnapshot.namespace": snapshot.namespace},
        own={"volumesnapshot.name": snapshot.name},
    )
    notes = {}
    if secret is not None:
        notes = {snapshots.SECRET_NAME: secret.name, snapshots.SECRET_NAMESPACE: secret.namespace}
    # With the finalizer from its creation, so that it cannot be deleted before the next plan.
    metadata = ObjectMeta(
        name=name,
        annotations=notes,
        labels={snapshots.MANAGED_BY: node} if node else {},
        finalizers=(snapshots.CONTENT_BOUND,),
    )
    kind = kinds.of(VolumeSnapshot)
    ref = ObjectReference(
        kind=kind.kind,
        api_version=kind.api_version,
        namespace=snapshot.namespace,
        name=snapshot.name,
        uid=snapshot.uid,
        resource_version=snapshot.metadata.resource_version,
    )
    spec = VolumeSnapshotContentSpec(
        volume_snapshot_ref=ref,
        deletion_policy=snapshot_class.deletion_policy,
        driver=snapshot_class.driver,
        volume_snapshot_class_name=snapshot_class.name,
        source=VolumeSnapshotContentSource(volume_handle=volume.spec.csi.volume_handle),
        source_volume_mode=volume.spec.volume_mode if keep_mode else None,
    )
    return VolumeSnapshotContent(metadata=metadata, spec=spec)
