"""Snapshots and their contents: which belongs to which, their annotations, and the parameters of classes.

Two roles work on a content: the snapshot controller creates it and requests its deletion, the snapshotter of
the driver calls the driver. Only a content that refers to its snapshot by uid is bound; one without a uid is
a pre-provisioned snapshot that waits for the object that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from msgspec import Struct

from volplane.api import names
from volplane.api.core import PersistentVolumeClaim, SecretReference
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent
from volplane.rules.templates import InvalidTemplate, resolve

GROUP = "snapshot.storage.k8s.io"
_DOMAIN = "snapshot.storage.kubernetes.io/"

IS_DEFAULT = _DOMAIN + "is-default-class"
BEING_CREATED = _DOMAIN + "volumesnapshot-being-created"
BEING_DELETED = _DOMAIN + "volumesnapshot-being-deleted"
SECRET_NAME = _DOMAIN + "deletion-secret-name"
SECRET_NAMESPACE = _DOMAIN + "deletion-secret-namespace"
MANAGED_BY = _DOMAIN + "managed-by"
GROUP_HANDLE = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle"

AS_SOURCE = _DOMAIN + "volumesnapshot-as-source-protection"
BOUND = _DOMAIN + "volumesnapshot-bound-protection"
IN_GROUP = _DOMAIN + "volumesnapshot-in-group-protection"
CONTENT_BOUND = _DOMAIN + "volumesnapshotcontent-bound-protection"
CLAIM_AS_SOURCE = _DOMAIN + "pvc-as-source-protection"

YES = "yes"
DELETE = "Delete"

PREFIX = "csi.storage.k8s.io/"


class InvalidSnapshotClass(ValueError):
    """The class has parameters that can never work."""


# --- what belongs to what


def content_name(snapshot: VolumeSnapshot) -> str:
    """The name of the content that is created for a snapshot."""
    return f"snapcontent-{snapshot.uid}"


def bound_name(snapshot: VolumeSnapshot) -> str:
    return (snapshot.status.bound_volume_snapshot_content_name or "") if snapshot.status is not None else ""


def named_content(snapshot: VolumeSnapshot) -> str:
    """Its content: the one it is bound to or names, else the one created for it."""
    return bound_name(snapshot) or snapshot.spec.source.volume_snapshot_content_name or content_name(snapshot)


def snapshot_key(content: VolumeSnapshotContent) -> str:
    ref = content.spec.volume_snapshot_ref
    return f"{ref.namespace}/{ref.name}"


def is_for(content: VolumeSnapshotContent, snapshot: VolumeSnapshot) -> bool:
    """Whether the content refers to this snapshot, with its uid or without one."""
    ref = content.spec.volume_snapshot_ref
    return (ref.namespace, ref.name) == (snapshot.namespace, snapshot.name) and ref.uid in ("", snapshot.uid)


def is_bound_to(content: VolumeSnapshotContent, snapshot: VolumeSnapshot) -> bool:
    return is_for(content, snapshot) and content.spec.volume_snapshot_ref.uid == snapshot.uid


def is_ready(obj: VolumeSnapshot | VolumeSnapshotContent) -> bool:
    return obj.status is not None and obj.status.ready_to_use is True


def is_group_member(content: VolumeSnapshotContent) -> bool:
    """Whether it was taken with a group, and is deleted with it."""
    return GROUP_HANDLE in content.metadata.annotations or (
        content.status is not None and content.status.volume_group_snapshot_handle is not None
    )


def restored_from(claim: PersistentVolumeClaim) -> list[str]:
    """The snapshot that a claim is restored from; an index function."""
    source = claim.spec.data_source
    if source is None or source.kind != "VolumeSnapshot" or source.api_group != GROUP:
        return []
    return [f"{claim.namespace}/{source.name}"]


# --- classes


def defaults(classes: Iterable[VolumeSnapshotClass], driver: str) -> list[VolumeSnapshotClass]:
    """The default classes for this driver; there should be one."""
    return [c for c in classes if c.driver == driver and c.metadata.annotations.get(IS_DEFAULT) == "true"]


class SnapshotSecretKeys(Struct, frozen=True):
    """The parameters of a class that name a secret."""

    kind: str

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.kind}-secret-name"

    @property
    def namespace(self) -> str:
        return f"{PREFIX}{self.kind}-secret-namespace"


SNAPSHOTTER = SnapshotSecretKeys("snapshotter")
LIST = SnapshotSecretKeys("snapshotter-list")
GROUP_SNAPSHOTTER = SnapshotSecretKeys("group-snapshotter")
GROUP_GET = SnapshotSecretKeys("group-snapshotter-get")
_KNOWN = {key for s in (SNAPSHOTTER, LIST, GROUP_SNAPSHOTTER, GROUP_GET) for key in (s.name, s.namespace)}


def for_driver(parameters: Mapping[str, str]) -> dict[str, str]:
    """The parameters that are passed to the driver."""
    for key in parameters:
        if key.startswith(PREFIX) and key not in _KNOWN:
            raise InvalidSnapshotClass(f"found unknown parameter key {key} with reserved prefix {PREFIX}")
    return {key: value for key, value in parameters.items() if key not in _KNOWN}


def secret(
    keys: SnapshotSecretKeys,
    parameters: Mapping[str, str],
    tokens: Mapping[str, str],
    *,
    own: Mapping[str, str] = {},
) -> SecretReference | None:
    """The secret of a class, None if it has none; `own` are tokens for the name only."""
    name_template, namespace_template = parameters.get(keys.name), parameters.get(keys.namespace)
    if name_template is None and namespace_template is None:
        return None
    if not name_template or not namespace_template:
        raise InvalidSnapshotClass(f"{keys.name} and {keys.namespace} must both be set, and not be empty")
    namespace = resolve(namespace_template, tokens)
    if not names.is_label(namespace):
        raise InvalidTemplate(
            f'"{namespace_template}" resolved to "{namespace}" which is not a valid namespace name'
        )
    name = resolve(name_template, {**tokens, **own})
    if not names.is_subdomain(name):
        raise InvalidTemplate(f'"{name_template}" resolved to "{name}" which is not a valid secret name')
    return SecretReference(name=name, namespace=namespace)


# --- names and times


def snapshot_name_for_driver(prefix: str, length: int, uid: str) -> str:
    """The name passed to the driver: the same at each attempt."""
    return f"{prefix}-{uid}" if length == -1 else f"{prefix}-{uid.replace('-', '')[:length]}"


def stamp(nanoseconds: int) -> str:
    """A content's creation time in the format of a snapshot."""
    moment = datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
