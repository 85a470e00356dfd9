"""The objects that are made for a group: its content, and a snapshot with content for each volume. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from volplane.api import kinds
from volplane.api.annotations import GROUP_SNAPSHOT_HANDLE_ANNOTATION
from volplane.api.core import PersistentVolume
from volplane.api.meta import ObjectMeta, OwnerReference
from volplane.api.snapshot import (
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeGroupSnapshotContentSource,
    VolumeGroupSnapshotContentSpec,
    VolumeSnapshot,
    VolumeSnapshotContent,
    VolumeSnapshotContentSource,
    VolumeSnapshotContentSpec,
    VolumeSnapshotInfo,
    VolumeSnapshotSource,
    VolumeSnapshotSpec,
)
from volplane.controllers.snapshot.content import InvalidSnapshotSource, content_metadata, reference
from volplane.rules import snapshots


def driver_of(group: VolumeGroupSnapshot, volume: PersistentVolume) -> str:
    if volume.spec.csi is None:
        raise InvalidSnapshotSource(
            f"snapshotting non-CSI volumes is not supported, group snapshot:{group.key}"
        )
    return volume.spec.csi.driver


def make_group_content(
    group: VolumeGroupSnapshot, group_class: VolumeGroupSnapshotClass, volumes: Sequence[PersistentVolume]
) -> VolumeGroupSnapshotContent:
    """Raises Unfit, BadClass and BadTemplate."""
    handles = []
    for volume in volumes:
        driver = driver_of(group, volume)
        if driver != group_class.driver:
            raise InvalidSnapshotSource(
                f"Volume CSI driver ({driver}) mismatch with VolumeGroupSnapshotClass ({group_class.driver}) "
                f"{group.key}: {volume.name}"
            )
        assert volume.spec.csi is not None
        handles.append(volume.spec.csi.volume_handle)
    spec = VolumeGroupSnapshotContentSpec(
        volume_group_snapshot_ref=reference(group),
        deletion_policy=group_class.deletion_policy,
        driver=group_class.driver,
        volume_group_snapshot_class_name=group_class.name,
        source=VolumeGroupSnapshotContentSource(volume_handles=tuple(sorted(handles))),
    )
    return VolumeGroupSnapshotContent(metadata=content_metadata(group, group_class), spec=spec)


def _hash(group: VolumeGroupSnapshot, info: VolumeSnapshotInfo) -> str:
    return hashlib.sha256((group.uid + info.volume_handle).encode()).hexdigest()


def member_name(group: VolumeGroupSnapshot, info: VolumeSnapshotInfo) -> str:
    return f"snapshot-{_hash(group, info)}"


def make_member(
    group: VolumeGroupSnapshot, info: VolumeSnapshotInfo, volume: PersistentVolume | None
) -> VolumeSnapshot:
    kind = kinds.of(VolumeGroupSnapshot)
    owner = OwnerReference(api_version=kind.api_version, kind=kind.kind, name=group.name, uid=group.uid)
    ref = volume.spec.claim_ref if volume is not None else None
    metadata = ObjectMeta(
        name=member_name(group, info),
        namespace=group.namespace,
        owner_references=(owner,),
        finalizers=(snapshots.IN_GROUP,),
    )
    source = VolumeSnapshotSource(persistent_volume_claim_name=ref.name if ref is not None else "")
    return VolumeSnapshot(metadata=metadata, spec=VolumeSnapshotSpec(source=source))


def make_member_content(
    snapshot: VolumeSnapshot,
    info: VolumeSnapshotInfo,
    content: VolumeGroupSnapshotContent,
    volume: PersistentVolume | None,
) -> VolumeSnapshotContent:
    """The group's handle on it tells the snapshotter that it is neither taken nor deleted alone."""
    assert content.status is not None
    notes = {GROUP_SNAPSHOT_HANDLE_ANNOTATION: content.status.volume_group_snapshot_handle or ""}
    notes |= snapshots.secret_annotations(snapshots.SNAPSHOT, snapshots.annotated_secret(content))
    spec = VolumeSnapshotContentSpec(
        volume_snapshot_ref=reference(snapshot),
        deletion_policy=content.spec.deletion_policy,
        driver=content.spec.driver,
        source=VolumeSnapshotContentSource(volume_handle=info.volume_handle),
        source_volume_mode=volume.spec.volume_mode if volume is not None else None,
    )
    metadata = ObjectMeta(
        name=snapshot.name.replace("snapshot-", "snapcontent-", 1),
        annotations=notes,
        finalizers=(snapshots.CONTENT_BOUND,),
    )
    return VolumeSnapshotContent(metadata=metadata, spec=spec)
