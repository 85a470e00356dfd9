"""What a VolumeSnapshotContent or VolumeGroupSnapshotContent needs next from its driver.

An annotation records that the driver was called to create the snapshot and that the outcome is unknown. While
it is set the content is kept, even if it is being deleted: the same call is repeated until it is known
whether there is a snapshot to delete. A content that is being deleted and never had the annotation needs no
call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from volplane.api.core import SecretReference
from volplane.api.snapshot import (
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
)
from volplane.rules import snapshots
from volplane.rules.snapshots import AnyContent, InvalidSnapshotClass
from volplane.rules.templates import InvalidTemplate
from volplane.rules.waits import Wait, WaitReason


class SnapshotterDriverInfo(Struct, frozen=True):
    """What the plan must know of the driver and of the options."""

    name: str
    prefix: str = "snapshot"
    uuid_length: int = -1
    extra_metadata: bool = False
    node: str | None = None  # only contents of this node's volumes; None: all


class TakeSnapshot(Struct, frozen=True):
    """Call the driver to create the snapshot, for the first time or again."""

    name: str
    volumes: tuple[str, ...]  # one, unless it is a group
    parameters: Mapping[str, str]
    secret: SecretReference | None
    first: bool  # the content has no status yet


class PollSnapshotStatus(Struct, frozen=True):
    """Ask the driver for the status of a snapshot that exists."""

    handle: str
    secret: SecretReference | None
    members: tuple[str, ...] = ()  # snapshots of a group


class DeleteDriverSnapshot(Struct, frozen=True):
    handle: str
    secret: SecretReference | None
    members: tuple[str, ...] = ()  # snapshots of a group


class RemoveCreationMark(Struct, frozen=True):
    """The snapshot is ready: remove the annotation of a call with unknown outcome."""


class RemoveContentFinalizer(Struct, frozen=True):
    """The snapshot is deleted, or is to be retained: the content may go."""


class ReportSnapshotError(Struct, frozen=True):
    """The driver cannot be called: write the message into the status. A `Wait` follows."""

    message: str
    first: bool = True


Step = (
    TakeSnapshot
    | PollSnapshotStatus
    | DeleteDriverSnapshot
    | RemoveCreationMark
    | RemoveContentFinalizer
    | ReportSnapshotError
)


def plan(
    content: AnyContent,
    snapshot_class: VolumeSnapshotClass | VolumeGroupSnapshotClass | None,
    driver: SnapshotterDriverInfo,
) -> Iterator[Step | Wait]:
    if not is_ours(content, driver):
        return
    for step in _plan(content, snapshot_class, driver):
        yield step
        if isinstance(step, ReportSnapshotError):
            yield Wait(WaitReason.SNAPSHOT_IMPOSSIBLE, message=step.message, backoff=True)


def _plan(
    content: AnyContent,
    snapshot_class: VolumeSnapshotClass | VolumeGroupSnapshotClass | None,
    driver: SnapshotterDriverInfo,
) -> Iterator[Step | Wait]:
    if may_delete(content):
        yield from _plan_deletion(content)
    elif snapshots.is_ready(content):
        if snapshots.kind_of(content).being_created in content.metadata.annotations:
            yield RemoveCreationMark()
        elif content.is_deleting:
            yield Wait(WaitReason.SNAPSHOT_DELETION_REQUEST)
    elif snapshots.is_preprovisioned(content):
        yield _plan_poll(content, snapshot_class)
    elif isinstance(content, VolumeSnapshotContent) and snapshots.is_group_member(content):
        if (handle := driver_handle(content)) is not None:
            yield PollSnapshotStatus(handle, snapshots.annotated_secret(content))
        else:
            yield Wait(WaitReason.GROUP_SNAPSHOT)
    else:
        yield _plan_creation(content, snapshot_class, driver)


def is_ours(content: AnyContent, driver: SnapshotterDriverInfo) -> bool:
    if content.spec.driver != driver.name:
        return False
    return driver.node is None or content.metadata.labels.get(snapshots.MANAGED_BY) == driver.node


def may_delete(content: AnyContent) -> bool:
    """The content is being deleted, and the outcome of every call for it is known."""
    if not content.is_deleting:
        return False
    if snapshots.is_preprovisioned(content) and not snapshots.snapshot_ref(content).uid:
        return True  # it was never bound to a snapshot
    kind, notes = snapshots.kind_of(content), content.metadata.annotations
    return kind.being_created not in notes and kind.being_deleted in notes


def _plan_deletion(content: AnyContent) -> Iterator[Step]:
    handle = driver_handle(content)
    deletes = content.spec.deletion_policy == snapshots.DELETE and not _is_deleted_with_group(content)
    if deletes and handle is not None:
        yield DeleteDriverSnapshot(handle, snapshots.annotated_secret(content), member_handles(content))
    if snapshots.kind_of(content).content_finalizer in content.metadata.finalizers:
        yield RemoveContentFinalizer()


def _is_deleted_with_group(content: AnyContent) -> bool:
    return (
        isinstance(content, VolumeSnapshotContent)
        and content.status is not None
        and content.status.volume_group_snapshot_handle is not None
    )


def driver_handle(content: AnyContent) -> str | None:
    """The driver's name for the snapshot, as the status has it."""
    if isinstance(content, VolumeSnapshotContent):
        return content.status.snapshot_handle if content.status is not None else None
    return content.status.volume_group_snapshot_handle if content.status is not None else None


def member_handles(content: AnyContent) -> tuple[str, ...]:
    """The driver's names for the snapshots of a group."""
    if isinstance(content, VolumeSnapshotContent):
        return ()
    members = content.status.volume_snapshot_info_list if content.status is not None else ()
    if members:
        return tuple(info.snapshot_handle for info in members)
    given = content.spec.source.group_snapshot_handles
    return given.volume_snapshot_handles if given is not None else ()


def _plan_creation(
    content: AnyContent,
    snapshot_class: VolumeSnapshotClass | VolumeGroupSnapshotClass | None,
    driver: SnapshotterDriverInfo,
) -> TakeSnapshot | ReportSnapshotError:
    first = content.status is None
    if snapshot_class is None:
        return ReportSnapshotError(_missing_class_message(content), first)
    try:
        parameters = snapshots.for_driver(snapshot_class.parameters)
    except InvalidSnapshotClass as error:
        return ReportSnapshotError(f"failed to remove CSI Parameters of prefixed keys: {error}", first)
    ref, token = snapshots.snapshot_ref(content), snapshots.kind_of(content).token
    if driver.extra_metadata:
        parameters[f"{snapshots.PREFIX}{token}/name"] = ref.name
        parameters[f"{snapshots.PREFIX}{token}/namespace"] = ref.namespace
        parameters[f"{snapshots.PREFIX}{token}content/name"] = content.name
    name = snapshots.snapshot_name_for_driver(driver.prefix, driver.uuid_length, ref.uid)
    volumes, secret = snapshots.volume_handles(content), snapshots.annotated_secret(content)
    return TakeSnapshot(name, volumes, parameters, secret, first)


def input_error(content: AnyContent) -> str:
    """How errors begin that keep the driver from being called to create the snapshot."""
    noun = snapshots.kind_of(content).noun
    which = "content" if isinstance(content, VolumeSnapshotContent) else f"{noun} content"
    return f"failed to get input parameters to create {noun} for {which} {content.name}"


def _missing_class_message(content: AnyContent) -> str:
    noun, name = snapshots.kind_of(content).noun, snapshots.class_name(content)
    why = (
        f"failed to take {noun} {content.name} without a {noun} class"
        if name is None
        else _class_not_found(content, name)
    )
    return f'{input_error(content)}: "{why}"'


def _class_not_found(content: AnyContent, name: str) -> str:
    return f'{snapshots.kind_of(content).class_resource} "{name}" not found'


def _plan_poll(
    content: AnyContent, snapshot_class: VolumeSnapshotClass | VolumeGroupSnapshotClass | None
) -> PollSnapshotStatus | ReportSnapshotError:
    kind, name = snapshots.kind_of(content), snapshots.class_name(content)
    handle, members = _source_handles(content)
    if name is None:
        return PollSnapshotStatus(handle, None, members)
    which = f"{kind.noun} content {content.name}"
    if snapshot_class is None:
        why = _class_not_found(content, name)
        return ReportSnapshotError(f"failed to get {kind.noun} class {name} for {which}: {why}", False)
    try:
        tokens = {f"{kind.token}content.name": content.name}
        secret = snapshots.secret(kind.poll_secret, snapshot_class.parameters, tokens)
    except (InvalidSnapshotClass, InvalidTemplate) as error:
        return ReportSnapshotError(f"failed to get secret reference for {which}: {error}", False)
    return PollSnapshotStatus(handle, secret, members)


def _source_handles(content: AnyContent) -> tuple[str, tuple[str, ...]]:
    """The handle that a pre-provisioned content names, and those of a group's snapshots."""
    if isinstance(content, VolumeGroupSnapshotContent):
        given = content.spec.source.group_snapshot_handles
        assert given is not None
        return given.volume_group_snapshot_handle, given.volume_snapshot_handles
    assert content.spec.source.snapshot_handle is not None
    return content.spec.source.snapshot_handle, ()


def relevant_fields(content: AnyContent | None) -> object:
    """The fields whose change wakes the content. Our own writes must not cut a backoff short."""
    if content is None:
        return None
    meta, mark = content.metadata, snapshots.kind_of(content).being_created
    notes = {key: value for key, value in meta.annotations.items() if key != mark}
    return content.uid, content.is_deleting, notes, meta.labels, content.spec
