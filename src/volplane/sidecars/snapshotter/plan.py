"""What a VolumeSnapshotContent needs next of its driver.

An annotation marks that the driver was called to create the snapshot and that the outcome is not known. As
long as it is there the content stays, even if it is being deleted: the same call is repeated until it is
known whether there is a snapshot to delete. A content that is being deleted and was never marked needs no
call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from volplane.api.core import SecretReference
from volplane.api.snapshot import VolumeSnapshotClass, VolumeSnapshotContent
from volplane.rules import snapshots
from volplane.rules.snapshots import InvalidSnapshotClass
from volplane.rules.templates import InvalidTemplate
from volplane.rules.waits import Wait, WaitReason


class SnapshotterDriverInfo(Struct, frozen=True):
    """What the plan must know of the driver, and of how we were told to work."""

    name: str
    prefix: str = "snapshot"
    uuid_length: int = -1
    extra_metadata: bool = False
    node: str | None = None  # only contents of this node's volumes; None: all


class TakeSnapshot(Struct, frozen=True):
    """Ask for the snapshot, for the first time or again."""

    name: str
    volume: str
    parameters: Mapping[str, str]
    secret: SecretReference | None
    first: bool  # nothing was ever answered


class PollSnapshotStatus(Struct, frozen=True):
    """Ask how a snapshot is that was there before."""

    handle: str
    secret: SecretReference | None


class DeleteDriverSnapshot(Struct, frozen=True):
    handle: str
    secret: SecretReference | None


class RemoveCreationMark(Struct, frozen=True):
    """It is there: nothing is being created any more."""


class RemoveContentFinalizer(Struct, frozen=True):
    """Nothing is behind the content any more, or what is there is to stay."""


class ReportSnapshotError(Struct, frozen=True):
    """The driver cannot be called: write the message to the status. A `Wait` follows."""

    message: str
    first: bool = True

    @property
    def wait(self) -> Wait:
        return Wait(WaitReason.SNAPSHOT_IMPOSSIBLE, message=self.message, backoff=True)


Step = (
    TakeSnapshot
    | PollSnapshotStatus
    | DeleteDriverSnapshot
    | RemoveCreationMark
    | RemoveContentFinalizer
    | ReportSnapshotError
)


def plan(
    content: VolumeSnapshotContent, snapshot_class: VolumeSnapshotClass | None, driver: SnapshotterDriverInfo
) -> Iterator[Step | Wait]:
    if not is_ours(content, driver):
        return
    for step in _plan(content, snapshot_class, driver):
        yield step
        if isinstance(step, ReportSnapshotError):
            yield step.wait


def _plan(
    content: VolumeSnapshotContent, snapshot_class: VolumeSnapshotClass | None, driver: SnapshotterDriverInfo
) -> Iterator[Step | Wait]:
    if may_delete(content):
        yield from _plan_deletion(content)
    elif snapshots.is_ready(content):
        if snapshots.BEING_CREATED in content.metadata.annotations:
            yield RemoveCreationMark()
        elif content.is_deleting:
            yield Wait(WaitReason.SNAPSHOT_DELETION_REQUEST)
    elif content.spec.source.snapshot_handle is not None:
        yield _plan_poll(content, content.spec.source.snapshot_handle, snapshot_class)
    elif snapshots.is_group_member(content):
        if content.status is not None and content.status.snapshot_handle is not None:
            yield PollSnapshotStatus(content.status.snapshot_handle, secret_reference(content))
        else:
            yield Wait(WaitReason.GROUP_SNAPSHOT)
    else:
        yield _plan_creation(content, snapshot_class, driver)


def is_ours(content: VolumeSnapshotContent, driver: SnapshotterDriverInfo) -> bool:
    if content.spec.driver != driver.name:
        return False
    return driver.node is None or content.metadata.labels.get(snapshots.MANAGED_BY) == driver.node


def may_delete(content: VolumeSnapshotContent) -> bool:
    if not content.is_deleting:
        return False
    if content.spec.source.snapshot_handle is not None and not content.spec.volume_snapshot_ref.uid:
        return True  # nobody ever named it
    notes = content.metadata.annotations
    return snapshots.BEING_CREATED not in notes and snapshots.BEING_DELETED in notes


def _plan_deletion(content: VolumeSnapshotContent) -> Iterator[Step]:
    handle = content.status.snapshot_handle if content.status is not None else None
    grouped = content.status is not None and content.status.volume_group_snapshot_handle is not None
    if content.spec.deletion_policy == snapshots.DELETE and handle is not None and not grouped:
        yield DeleteDriverSnapshot(handle, secret_reference(content))
    if snapshots.CONTENT_BOUND in content.metadata.finalizers:
        yield RemoveContentFinalizer()


def _plan_creation(
    content: VolumeSnapshotContent, found: VolumeSnapshotClass | None, driver: SnapshotterDriverInfo
) -> TakeSnapshot | ReportSnapshotError:
    first = content.status is None
    if found is None:
        return ReportSnapshotError(_missing_class_message(content), first)
    try:
        parameters = snapshots.for_driver(found.parameters)
    except InvalidSnapshotClass as error:
        return ReportSnapshotError(f"failed to remove CSI Parameters of prefixed keys: {error}", first)
    ref = content.spec.volume_snapshot_ref
    if driver.extra_metadata:
        parameters[f"{snapshots.PREFIX}volumesnapshot/name"] = ref.name
        parameters[f"{snapshots.PREFIX}volumesnapshot/namespace"] = ref.namespace
        parameters[f"{snapshots.PREFIX}volumesnapshotcontent/name"] = content.name
    name = snapshots.snapshot_name_for_driver(driver.prefix, driver.uuid_length, ref.uid)
    volume = content.spec.source.volume_handle or ""
    return TakeSnapshot(name, volume, parameters, secret_reference(content), first)


def _missing_class_message(content: VolumeSnapshotContent) -> str:
    name = content.spec.volume_snapshot_class_name
    why = (
        f"failed to take snapshot {content.name} without a snapshot class"
        if name is None
        else f'volumesnapshotclass.snapshot.storage.k8s.io "{name}" not found'
    )
    return f'failed to get input parameters to create snapshot for content {content.name}: "{why}"'


def _plan_poll(
    content: VolumeSnapshotContent, handle: str, found: VolumeSnapshotClass | None
) -> PollSnapshotStatus | ReportSnapshotError:
    name = content.spec.volume_snapshot_class_name
    if name is None:
        return PollSnapshotStatus(handle, None)
    if found is None:
        why = f'volumesnapshotclass.snapshot.storage.k8s.io "{name}" not found'
        told = f"failed to get snapshot class {name} for snapshot content {content.name}: {why}"
        return ReportSnapshotError(told, False)
    try:
        tokens = {"volumesnapshotcontent.name": content.name}
        return PollSnapshotStatus(handle, snapshots.secret(snapshots.LIST, found.parameters, tokens))
    except (InvalidSnapshotClass, InvalidTemplate) as error:
        return ReportSnapshotError(
            f"failed to get secret reference for snapshot content {content.name}: {error}", False
        )


def secret_reference(content: VolumeSnapshotContent) -> SecretReference | None:
    """As it was when the content was made: the class may have changed since."""
    notes = content.metadata.annotations
    name, namespace = notes.get(snapshots.SECRET_NAME), notes.get(snapshots.SECRET_NAMESPACE)
    if name is None or namespace is None:
        return None
    return SecretReference(name=name, namespace=namespace)


def relevant_fields(content: VolumeSnapshotContent | None) -> object:
    """The fields whose change matters. Our own writes must not cut a pause short."""
    if content is None:
        return None
    meta = content.metadata
    notes = {k: v for k, v in meta.annotations.items() if k != snapshots.BEING_CREATED}
    return content.uid, content.is_deleting, notes, meta.labels, content.spec
