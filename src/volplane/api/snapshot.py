"""snapshot.storage.k8s.io/v1 and groupsnapshot.storage.k8s.io/v1beta2.

Clients use these types; the server knows the kinds only as custom resources, by their definitions. Sizes and
times of a VolumeSnapshot are strings, those of a VolumeSnapshotContent are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from volplane.api.core import ObjectReference
from volplane.api.meta import LabelSelector, Resource
from volplane.api.object import Object


class SnapshotError(Object):
    time: str = ""
    message: str = ""


class VolumeSnapshotSource(Object):
    persistent_volume_claim_name: str | None = None
    volume_snapshot_content_name: str | None = None


class VolumeSnapshotSpec(Object):
    source: VolumeSnapshotSource = VolumeSnapshotSource()
    volume_snapshot_class_name: str | None = None


class VolumeSnapshotStatus(Object):
    bound_volume_snapshot_content_name: str | None = None
    creation_time: str | None = None
    ready_to_use: bool | None = None
    restore_size: str | int | None = None  # a quantity; a number is one too
    error: SnapshotError | None = None
    volume_group_snapshot_name: str | None = None


class VolumeSnapshot(Resource):
    spec: VolumeSnapshotSpec = VolumeSnapshotSpec()
    status: VolumeSnapshotStatus | None = None


class VolumeSnapshotContentSource(Object):
    volume_handle: str | None = None
    snapshot_handle: str | None = None


class VolumeSnapshotContentSpec(Object):
    volume_snapshot_ref: ObjectReference = ObjectReference()
    deletion_policy: str = ""
    driver: str = ""
    volume_snapshot_class_name: str | None = None
    source: VolumeSnapshotContentSource = VolumeSnapshotContentSource()
    source_volume_mode: str | None = None


class VolumeSnapshotContentStatus(Object):
    snapshot_handle: str | None = None
    creation_time: int | None = None  # nanoseconds since 1970
    restore_size: int | None = None  # bytes
    ready_to_use: bool | None = None
    error: SnapshotError | None = None
    volume_group_snapshot_handle: str | None = None


class VolumeSnapshotContent(Resource):
    spec: VolumeSnapshotContentSpec = VolumeSnapshotContentSpec()
    status: VolumeSnapshotContentStatus | None = None


class VolumeSnapshotClass(Resource):
    driver: str = ""
    parameters: Mapping[str, str] = {}
    deletion_policy: str = ""


# Group snapshots


class VolumeGroupSnapshotSource(Object):
    selector: LabelSelector | None = None
    volume_group_snapshot_content_name: str | None = None


class VolumeGroupSnapshotSpec(Object):
    source: VolumeGroupSnapshotSource = VolumeGroupSnapshotSource()
    volume_group_snapshot_class_name: str | None = None


class VolumeGroupSnapshotStatus(Object):
    bound_volume_group_snapshot_content_name: str | None = None
    creation_time: str | None = None
    ready_to_use: bool | None = None
    error: SnapshotError | None = None


class VolumeGroupSnapshot(Resource):
    spec: VolumeGroupSnapshotSpec = VolumeGroupSnapshotSpec()
    status: VolumeGroupSnapshotStatus | None = None


class GroupSnapshotHandles(Object):
    volume_group_snapshot_handle: str = ""
    volume_snapshot_handles: tuple[str, ...] = ()


class VolumeGroupSnapshotContentSource(Object):
    volume_handles: tuple[str, ...] = ()
    group_snapshot_handles: GroupSnapshotHandles | None = None


class VolumeGroupSnapshotContentSpec(Object):
    volume_group_snapshot_ref: ObjectReference = ObjectReference()
    deletion_policy: str = ""
    driver: str = ""
    volume_group_snapshot_class_name: str | None = None
    source: VolumeGroupSnapshotContentSource = VolumeGroupSnapshotContentSource()


class VolumeSnapshotInfo(Object):
    """One member, as the driver reported it."""

    volume_handle: str = ""
    snapshot_handle: str = ""
    creation_time: int | None = None
    ready_to_use: bool | None = None
    restore_size: int | None = None


class VolumeGroupSnapshotContentStatus(Object):
    volume_group_snapshot_handle: str | None = None
    creation_time: str | None = None
    ready_to_use: bool | None = None
    error: SnapshotError | None = None
    volume_snapshot_info_list: tuple[VolumeSnapshotInfo, ...] = ()


class VolumeGroupSnapshotContent(Resource):
    spec: VolumeGroupSnapshotContentSpec = VolumeGroupSnapshotContentSpec()
    status: VolumeGroupSnapshotContentStatus | None = None


class VolumeGroupSnapshotClass(Resource):
    driver: str = ""
    parameters: Mapping[str, str] = {}
    deletion_policy: str = ""
