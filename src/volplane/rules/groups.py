"""Group snapshots and their contents: which belongs to which, and their annotations. See `snapshots`."""

from __future__ import annotations

from collections.abc import Iterable

from volplane.api.core import SecretReference
from volplane.api.snapshot import VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent
from volplane.rules import snapshots

_DOMAIN = "groupsnapshot.storage.kubernetes.io/"

IS_DEFAULT = _DOMAIN + "is-default-class"
BEING_CREATED = _DOMAIN + "volumegroupsnapshot-being-created"
BEING_DELETED = _DOMAIN + "volumegroupsnapshot-being-deleted"
SECRET_NAME = _DOMAIN + "deletion-secret-name"
SECRET_NAMESPACE = _DOMAIN + "deletion-secret-namespace"

BOUND = _DOMAIN + "volumegroupsnapshot-bound-protection"
CONTENT_BOUND = _DOMAIN + "volumegroupsnapshotcontent-bound-protection"


def content_name(group: VolumeGroupSnapshot) -> str:
    return f"groupsnapcontent-{group.uid}"


def bound_name(group: VolumeGroupSnapshot) -> str:
    return (group.status.bound_volume_group_snapshot_content_name or "") if group.status is not None else ""


def named_content(group: VolumeGroupSnapshot) -> str:
    """Its content: the one it is bound to or names, else the one created for it."""
    named = group.spec.source.volume_group_snapshot_content_name
    return bound_name(group) or named or content_name(group)


def group_key(content: VolumeGroupSnapshotContent) -> str:
    ref = content.spec.volume_group_snapshot_ref
    return f"{ref.namespace}/{ref.name}"


def is_for(content: VolumeGroupSnapshotContent, group: VolumeGroupSnapshot) -> bool:
    """Whether the content refers to this group, with its uid or without one."""
    ref = content.spec.volume_group_snapshot_ref
    return (ref.namespace, ref.name) == (group.namespace, group.name) and ref.uid in ("", group.uid)


def is_bound_to(content: VolumeGroupSnapshotContent, group: VolumeGroupSnapshot) -> bool:
    return is_for(content, group) and content.spec.volume_group_snapshot_ref.uid == group.uid


def is_ready(obj: VolumeGroupSnapshot | VolumeGroupSnapshotContent) -> bool:
    return obj.status is not None and obj.status.ready_to_use is True


def defaults(classes: Iterable[VolumeGroupSnapshotClass], driver: str) -> list[VolumeGroupSnapshotClass]:
    return [c for c in classes if c.driver == driver and c.metadata.annotations.get(IS_DEFAULT) == "true"]


def secret(
    group_class: VolumeGroupSnapshotClass, content: str, group: VolumeGroupSnapshot
) -> SecretReference | None:
    return snapshots.secret(
        snapshots.GROUP_SNAPSHOTTER,
        group_class.parameters,
        {"volumegroupsnapshotcontent.name": content, "volumegroupsnapshot.namespace": group.namespace},
        own={"volumegroupsnapshot.name": group.name},
    )
