"""The objects that are created for a group: its content, and a snapshot with content per volume. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from volplane.api import kinds
from volplane.api.core import ObjectReference, PersistentVolume
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
from volplane.rules import groups, snapshots


class InvalidGroupSource(ValueError):
    """No group snapshot can be taken of the volumes now."""


def driver_of(group: VolumeGroupSnapshot, volume: PersistentVolume) -> str:
    if volume.spec.csi is None:
        raise InvalidGroupSource(f"snapshotting non-CSI volumes is not supported, group snapshot:{group.key}")
    return volume.spec.csi.driver


def make_group_content(
    group: VolumeGroupSnapshot, group_class: VolumeGroupSnapshotClass, volumes: Sequence[PersistentVolume]
) -> VolumeGroupSnapshotContent:
    """Raises InvalidGroupSource, InvalidSnapshotClass and InvalidTemplate."""
    handles = []
    for volume in volumes:
        driver = driver_of(group, volume)
        if driver != group_class.driver:
            raise InvalidGroupSource(
                f"Volume CSI driver ({driver}) mismatch with VolumeGroupSnapshotClass ({group_class.driver}) "
                f"{group.key}: {volume.name}"
            )
        assert volume.spec.csi is not None
        handles.append(volume.spec.csi.volume_handle)
    name = groups.content_name(group)
    secret = groups.secret(group_class, name, group)
    notes = {}
    if secret is not None:
        notes = {groups.SECRET_NAME: secret.name, groups.SECRET_NAMESPACE: secret.namespace}
    spec = VolumeGroupSnapshotContentSpec(
        volume_group_snapshot_ref=_reference(group),
        deletion_policy=group_class.deletion_policy,
        driver=group_class.driver,
        volume_group_snapshot_class_name=group_class.name,
        source=VolumeGroupSnapshotContentSource(volume_handles=tuple(sorted(handles))),
    )
    metadata = ObjectMeta(name=name, annotations=notes, finalizers=(groups.CONTENT_BOUND,))
    return VolumeGroupSnapshotContent(metadata=metadata, spec=spec)


def _reference(obj: VolumeGroupSnapshot | VolumeSnapshot) -> ObjectReference:
    kind = kinds.of(type(obj))
    return ObjectReference(
        kind=kind.kind, api_version=kind.api_version, namespace=obj.namespace, name=obj.name, uid=obj.uid
    )


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
    """With the group's handle: the snapshotter neither takes nor deletes it alone."""
    assert content.status is not None
    notes = {snapshots.GROUP_HANDLE: content.status.volume_group_snapshot_handle or ""}
    if (name := content.metadata.annotations.get(groups.SECRET_NAME)) is not None:
        notes[snapshots.SECRET_NAME] = name
        notes[snapshots.SECRET_NAMESPACE] = content.metadata.annotations.get(groups.SECRET_NAMESPACE, "")
    spec = VolumeSnapshotContentSpec(
        volume_snapshot_ref=_reference(snapshot),
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
