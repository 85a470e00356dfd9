"""What a VolumeGroupSnapshotContent needs next of its driver. The rules are those of single contents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from volplane.api.core import SecretReference
from volplane.api.snapshot import VolumeGroupSnapshotClass, VolumeGroupSnapshotContent
from volplane.rules import groups, snapshots
from volplane.rules.snapshots import InvalidSnapshotClass
from volplane.rules.templates import InvalidTemplate
from volplane.rules.waits import Wait, WaitReason
from volplane.sidecars.snapshotter.plan import ReportSnapshotError


class SnapshotterDriverInfo(Struct, frozen=True):
    name: str
    prefix: str = "groupsnapshot"
    uuid_length: int = -1
    extra_metadata: bool = False


class TakeSnapshot(Struct, frozen=True):
    name: str
    volumes: tuple[str, ...]
    parameters: Mapping[str, str]
    secret: SecretReference | None
    first: bool  # nothing was ever answered


class PollSnapshotStatus(Struct, frozen=True):
    """Ask how a group is that was there before."""

    handle: str
    members: tuple[str, ...]
    secret: SecretReference | None


class DeleteDriverSnapshot(Struct, frozen=True):
    handle: str
    members: tuple[str, ...]
    secret: SecretReference | None


class RemoveCreationMark(Struct, frozen=True):
    pass


class RemoveContentFinalizer(Struct, frozen=True):
    pass


Step = (
    TakeSnapshot
    | PollSnapshotStatus
    | DeleteDriverSnapshot
    | RemoveCreationMark
    | RemoveContentFinalizer
    | ReportSnapshotError
)


def plan(
    content: VolumeGroupSnapshotContent,
    group_class: VolumeGroupSnapshotClass | None,
    driver: SnapshotterDriverInfo,
) -> Iterator[Step | Wait]:
    if content.spec.driver != driver.name:
        return
    for step in _plan(content, group_class, driver):
        yield step
        if isinstance(step, ReportSnapshotError):
            yield step.wait


def _plan(
    content: VolumeGroupSnapshotContent,
    group_class: VolumeGroupSnapshotClass | None,
    driver: SnapshotterDriverInfo,
) -> Iterator[Step | Wait]:
    if may_delete(content):
        yield from _plan_deletion(content)
    elif groups.is_ready(content):
        if groups.BEING_CREATED in content.metadata.annotations:
            yield RemoveCreationMark()
        elif content.is_deleting:
            yield Wait(WaitReason.SNAPSHOT_DELETION_REQUEST)
    elif (given := content.spec.source.group_snapshot_handles) is not None:
        handle, members = given.volume_group_snapshot_handle, given.volume_snapshot_handles
        yield _plan_poll(content, handle, members, group_class)
    else:
        yield _plan_creation(content, group_class, driver)


def may_delete(content: VolumeGroupSnapshotContent) -> bool:
    if not content.is_deleting:
        return False
    given = content.spec.source.group_snapshot_handles is not None
    if given and not content.spec.volume_group_snapshot_ref.uid:
        return True  # nobody ever named it
    notes = content.metadata.annotations
    return groups.BEING_CREATED not in notes and groups.BEING_DELETED in notes


def _plan_deletion(content: VolumeGroupSnapshotContent) -> Iterator[Step]:
    handle = content.status.volume_group_snapshot_handle if content.status is not None else None
    if content.spec.deletion_policy == snapshots.DELETE and handle is not None:
        yield DeleteDriverSnapshot(handle, member_handles(content), secret_reference(content))
    if groups.CONTENT_BOUND in content.metadata.finalizers:
        yield RemoveContentFinalizer()


def member_handles(content: VolumeGroupSnapshotContent) -> tuple[str, ...]:
    """The driver's names for the snapshots in the group."""
    told = content.status.volume_snapshot_info_list if content.status is not None else ()
    if told:
        return tuple(info.snapshot_handle for info in told)
    given = content.spec.source.group_snapshot_handles
    return given.volume_snapshot_handles if given is not None else ()


def _plan_creation(
    content: VolumeGroupSnapshotContent, found: VolumeGroupSnapshotClass | None, driver: SnapshotterDriverInfo
) -> TakeSnapshot | ReportSnapshotError:
    first = content.status is None
    if found is None:
        return ReportSnapshotError(_missing_class_message(content), first)
    try:
        parameters = snapshots.for_driver(found.parameters)
    except InvalidSnapshotClass as error:
        return ReportSnapshotError(f"failed to remove CSI Parameters of prefixed keys: {error}", first)
    ref = content.spec.volume_group_snapshot_ref
    if driver.extra_metadata:
        parameters[f"{snapshots.PREFIX}volumegroupsnapshot/name"] = ref.name
        parameters[f"{snapshots.PREFIX}volumegroupsnapshot/namespace"] = ref.namespace
        parameters[f"{snapshots.PREFIX}volumegroupsnapshotcontent/name"] = content.name
    name = snapshots.snapshot_name_for_driver(driver.prefix, driver.uuid_length, ref.uid)
    return TakeSnapshot(
        name, content.spec.source.volume_handles, parameters, secret_reference(content), first
    )


def _missing_class_message(content: VolumeGroupSnapshotContent) -> str:
    name = content.spec.volume_group_snapshot_class_name
    why = (
        f"failed to take group snapshot {content.name} without a group snapshot class"
        if name is None
        else f'volumegroupsnapshotclass.groupsnapshot.storage.k8s.io "{name}" not found'
    )
    asked = "failed to get input parameters to create group snapshot for group snapshot content"
    return f'{asked} {content.name}: "{why}"'


def _plan_poll(
    content: VolumeGroupSnapshotContent,
    handle: str,
    known: tuple[str, ...],
    found: VolumeGroupSnapshotClass | None,
) -> PollSnapshotStatus | ReportSnapshotError:
    name = content.spec.volume_group_snapshot_class_name
    if name is None:
        return PollSnapshotStatus(handle, known, None)
    if found is None:
        why = f'volumegroupsnapshotclass.groupsnapshot.storage.k8s.io "{name}" not found'
        return ReportSnapshotError(
            f"failed to get group snapshot class {name} for content {content.name}: {why}", False
        )
    try:
        tokens = {"volumegroupsnapshotcontent.name": content.name}
        return PollSnapshotStatus(
            handle, known, snapshots.secret(snapshots.GROUP_GET, found.parameters, tokens)
        )
    except (InvalidSnapshotClass, InvalidTemplate) as error:
        return ReportSnapshotError(
            f"failed to get secret reference for content {content.name}: {error}", False
        )


def secret_reference(content: VolumeGroupSnapshotContent) -> SecretReference | None:
    notes = content.metadata.annotations
    name, namespace = notes.get(groups.SECRET_NAME), notes.get(groups.SECRET_NAMESPACE)
    if name is None or namespace is None:
        return None
    return SecretReference(name=name, namespace=namespace)


def relevant_fields(content: VolumeGroupSnapshotContent | None) -> object:
    """The fields whose change matters. Our own writes must not cut a pause short."""
    if content is None:
        return None
    notes = {k: v for k, v in content.metadata.annotations.items() if k != groups.BEING_CREATED}
    return content.uid, content.is_deleting, notes, content.spec
