"""Snapshots and group snapshots with their contents: which belongs to which, and what a class means.

Two roles work on a content: the snapshot controller creates it and marks it for deletion, the snapshotter
beside the driver creates and deletes the snapshot. Only a content that names its snapshot by uid is bound; a
content without a uid is pre-provisioned and waits for the snapshot that names it.

The functions take both kinds. `SnapshotKind` has the names in which the kinds differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TypeAlias, TypeVar

from msgspec import Struct

from volplane.api import names
from volplane.api.annotations import GROUP_SNAPSHOT_HANDLE_ANNOTATION
from volplane.api.core import ObjectReference, PersistentVolumeClaim, SecretReference
from volplane.api.snapshot import (
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
)
from volplane.rules import groups
from volplane.rules.templates import InvalidTemplate, resolve

GROUP = "snapshot.storage.k8s.io"
_DOMAIN = "snapshot.storage.kubernetes.io/"

IS_DEFAULT = _DOMAIN + "is-default-class"
BEING_CREATED = _DOMAIN + "volumesnapshot-being-created"
BEING_DELETED = _DOMAIN + "volumesnapshot-being-deleted"
SECRET_NAME = _DOMAIN + "deletion-secret-name"
SECRET_NAMESPACE = _DOMAIN + "deletion-secret-namespace"
MANAGED_BY = _DOMAIN + "managed-by"

AS_SOURCE = _DOMAIN + "volumesnapshot-as-source-protection"
BOUND = _DOMAIN + "volumesnapshot-bound-protection"
IN_GROUP = _DOMAIN + "volumesnapshot-in-group-protection"
CONTENT_BOUND = _DOMAIN + "volumesnapshotcontent-bound-protection"
CLAIM_AS_SOURCE = _DOMAIN + "pvc-as-source-protection"

YES = "yes"
DELETE = "Delete"

PREFIX = "csi.storage.k8s.io/"


class InvalidSnapshotClass(ValueError):
    """The class asks for something that can never work."""


# --- what belongs to what

AnySnapshot: TypeAlias = VolumeSnapshot | VolumeGroupSnapshot
AnyContent: TypeAlias = VolumeSnapshotContent | VolumeGroupSnapshotContent
AnySnapshotClass = TypeVar("AnySnapshotClass", VolumeSnapshotClass, VolumeGroupSnapshotClass)


def content_name(snapshot: AnySnapshot) -> str:
    """The content that is, or would be, created for a snapshot."""
    return f"{kind_of(snapshot).content_prefix}-{snapshot.uid}"


def source_content_name(snapshot: AnySnapshot) -> str | None:
    """The pre-provisioned content that a snapshot names."""
    if isinstance(snapshot, VolumeSnapshot):
        return snapshot.spec.source.volume_snapshot_content_name
    return snapshot.spec.source.volume_group_snapshot_content_name


def bound_name(snapshot: AnySnapshot) -> str:
    """The content that the status names."""
    if isinstance(snapshot, VolumeSnapshot):
        name = snapshot.status.bound_volume_snapshot_content_name if snapshot.status is not None else None
    else:
        status = snapshot.status
        name = status.bound_volume_group_snapshot_content_name if status is not None else None
    return name or ""


def named_content(snapshot: AnySnapshot) -> str:
    """The content to look at: the one it is bound to or names, else the one created for it."""
    return bound_name(snapshot) or source_content_name(snapshot) or content_name(snapshot)


def class_name(obj: AnySnapshot | AnyContent) -> str | None:
    if isinstance(obj, VolumeSnapshot | VolumeSnapshotContent):
        return obj.spec.volume_snapshot_class_name
    return obj.spec.volume_group_snapshot_class_name


def snapshot_ref(content: AnyContent) -> ObjectReference:
    if isinstance(content, VolumeSnapshotContent):
        return content.spec.volume_snapshot_ref
    return content.spec.volume_group_snapshot_ref


def snapshot_key(content: AnyContent) -> str:
    ref = snapshot_ref(content)
    return f"{ref.namespace}/{ref.name}"


def is_for(content: AnyContent, snapshot: AnySnapshot) -> bool:
    """The content names this snapshot: with its uid, or with none."""
    ref = snapshot_ref(content)
    return (ref.namespace, ref.name) == (snapshot.namespace, snapshot.name) and ref.uid in ("", snapshot.uid)


def is_bound_to(content: AnyContent, snapshot: AnySnapshot) -> bool:
    return is_for(content, snapshot) and snapshot_ref(content).uid == snapshot.uid


def is_ready(obj: AnySnapshot | AnyContent) -> bool:
    return obj.status is not None and obj.status.ready_to_use is True


def volume_handles(content: AnyContent) -> tuple[str, ...]:
    """The volumes that a content is to be taken of; none if it is pre-provisioned."""
    if isinstance(content, VolumeGroupSnapshotContent):
        return content.spec.source.volume_handles
    handle = content.spec.source.volume_handle
    return (handle,) if handle is not None else ()


def is_preprovisioned(content: AnyContent) -> bool:
    """The content names a snapshot that exists at the driver."""
    if isinstance(content, VolumeSnapshotContent):
        return content.spec.source.snapshot_handle is not None
    return content.spec.source.group_snapshot_handles is not None


def is_group_member(content: VolumeSnapshotContent) -> bool:
    """It was taken with its group, and goes with it."""
    return GROUP_SNAPSHOT_HANDLE_ANNOTATION in content.metadata.annotations or (
        content.status is not None and content.status.volume_group_snapshot_handle is not None
    )


def restored_from(claim: PersistentVolumeClaim) -> list[str]:
    """The snapshot that a claim is filled from; an index function."""
    source = claim.spec.data_source
    if source is None or source.kind != "VolumeSnapshot" or source.api_group != GROUP:
        return []
    return [f"{claim.namespace}/{source.name}"]


# --- classes


def defaults(classes: Iterable[AnySnapshotClass], driver: str) -> list[AnySnapshotClass]:
    """The classes that are the default for volumes of this driver; there should be one."""
    return [
        c
        for c in classes
        if c.driver == driver and c.metadata.annotations.get(kind_of(c).is_default) == "true"
    ]


class SnapshotSecretKeys(Struct, frozen=True):
    """Under which parameters a class names a secret."""

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
    """The parameters without those that were meant for us."""
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
    """The secret that a class names, None if it names none; `own` are tokens of the name alone."""
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


# --- in what the kinds differ


class SnapshotKind(Struct, frozen=True):
    """The names of VolumeSnapshots or of VolumeGroupSnapshots, in objects and in messages."""

    noun: str
    kind: str
    reason: str  # how event reasons begin or end: SnapshotReady, CreatingSnapshot
    failed: str  # upstream writes some messages of groups in lower case
    content_prefix: str
    class_resource: str
    # Annotations and finalizers
    is_default: str
    being_created: str
    being_deleted: str
    secret_name: str
    secret_namespace: str
    source_finalizers: tuple[str, ...]  # of every snapshot
    bound_finalizer: str  # of a snapshot that takes its content along
    content_finalizer: str
    # Secrets in the parameters of a class
    snapshotter_secret: SnapshotSecretKeys
    poll_secret: SnapshotSecretKeys
    # Fields
    class_field: str
    ref_field: str
    bound_field: str

    @property
    def token(self) -> str:
        """How tokens in templates, and parameters for the driver, name the kind."""
        return self.kind.lower()


SNAPSHOT = SnapshotKind(
    noun="snapshot",
    kind="VolumeSnapshot",
    reason="Snapshot",
    failed="Failed",
    content_prefix="snapcontent",
    class_resource="volumesnapshotclass.snapshot.storage.k8s.io",
    is_default=IS_DEFAULT,
    being_created=BEING_CREATED,
    being_deleted=BEING_DELETED,
    secret_name=SECRET_NAME,
    secret_namespace=SECRET_NAMESPACE,
    source_finalizers=(AS_SOURCE,),
    bound_finalizer=BOUND,
    content_finalizer=CONTENT_BOUND,
    snapshotter_secret=SNAPSHOTTER,
    poll_secret=LIST,
    class_field="volumeSnapshotClassName",
    ref_field="volumeSnapshotRef",
    bound_field="boundVolumeSnapshotContentName",
)
GROUP_SNAPSHOT = SnapshotKind(
    noun="group snapshot",
    kind="VolumeGroupSnapshot",
    reason="GroupSnapshot",
    failed="failed",
    content_prefix="groupsnapcontent",
    class_resource="volumegroupsnapshotclass.groupsnapshot.storage.k8s.io",
    is_default=groups.IS_DEFAULT,
    being_created=groups.BEING_CREATED,
    being_deleted=groups.BEING_DELETED,
    secret_name=groups.SECRET_NAME,
    secret_namespace=groups.SECRET_NAMESPACE,
    source_finalizers=(),
    bound_finalizer=groups.BOUND,
    content_finalizer=groups.CONTENT_BOUND,
    snapshotter_secret=GROUP_SNAPSHOTTER,
    poll_secret=GROUP_GET,
    class_field="volumeGroupSnapshotClassName",
    ref_field="volumeGroupSnapshotRef",
    bound_field="boundVolumeGroupSnapshotContentName",
)


def kind_of(
    obj: AnySnapshot | AnyContent | VolumeSnapshotClass | VolumeGroupSnapshotClass,
) -> SnapshotKind:
    if isinstance(obj, VolumeSnapshot | VolumeSnapshotContent | VolumeSnapshotClass):
        return SNAPSHOT
    return GROUP_SNAPSHOT


def secret_of_content(
    snapshot_class: VolumeSnapshotClass | VolumeGroupSnapshotClass, content: str, snapshot: AnySnapshot
) -> SecretReference | None:
    """The secret with which a content's snapshot is created and deleted."""
    kind = kind_of(snapshot)
    tokens = {f"{kind.token}content.name": content, f"{kind.token}.namespace": snapshot.namespace}
    own = {f"{kind.token}.name": snapshot.name}
    return secret(kind.snapshotter_secret, snapshot_class.parameters, tokens, own=own)


def secret_annotations(kind: SnapshotKind, reference: SecretReference | None) -> dict[str, str]:
    """How a content carries its secret: the class may change later."""
    if reference is None:
        return {}
    return {kind.secret_name: reference.name, kind.secret_namespace: reference.namespace}


def annotated_secret(content: AnyContent) -> SecretReference | None:
    """The secret that was annotated when the content was created."""
    kind, notes = kind_of(content), content.metadata.annotations
    name, namespace = notes.get(kind.secret_name), notes.get(kind.secret_namespace)
    if name is None or namespace is None:
        return None
    return SecretReference(name=name, namespace=namespace)


# --- names and times


def snapshot_name_for_driver(prefix: str, length: int, uid: str) -> str:
    """The name that a driver knows a snapshot by: the same at each try."""
    return f"{prefix}-{uid}" if length == -1 else f"{prefix}-{uid.replace('-', '')[:length]}"


def stamp(nanoseconds: int) -> str:
    """A content's time as its snapshot shows it."""
    moment = datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
