"""What a VolumeGroupSnapshot needs next: a class, a content, its members, a status, or its deletion.

The members are ordinary snapshots with contents, created from what the driver returned for the group, under
names derived from the group's uid and the volume, so that none is created twice. They belong to the group and
are deleted with it, never alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from volplane.api.core import PersistentVolume
from volplane.api.snapshot import (
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeGroupSnapshotStatus,
    VolumeSnapshot,
    VolumeSnapshotInfo,
)
from volplane.controllers.snapshot.groups.objects import (
    InvalidGroupSource,
    driver_of,
    make_group_content,
    member_name,
)
from volplane.controllers.snapshot.steps import (
    AnnotateBeingDeleted,
    BindContent,
    CopyStatus,
    DeleteContent,
    ReportError,
    SetFinalizers,
)
from volplane.rules import groups
from volplane.rules.snapshots import InvalidSnapshotClass
from volplane.rules.steps import CommonStep, normal, warning
from volplane.rules.templates import InvalidTemplate
from volplane.rules.waits import Wait, WaitData, WaitReason

MISSING = "VolumeGroupSnapshotContent is missing"


class GroupSnapshotInputs(Struct, frozen=True):
    """The objects that a plan for a group snapshot depends on."""

    content: VolumeGroupSnapshotContent | None = None  # the one it names, or that was created for it
    volumes: tuple[PersistentVolume, ...] = ()  # of the claims that its selector finds
    unfit: str = ""  # why there are none
    classes: Mapping[str, VolumeGroupSnapshotClass] = {}
    members: Mapping[str, VolumeSnapshot] = {}  # by name
    restoring: tuple[str, ...] = ()  # members that claims are being restored from


class CreateGroupContent(Struct, frozen=True):
    content: VolumeGroupSnapshotContent


class AddGroupContentFinalizer(Struct, frozen=True):
    """Keep the content until its snapshotter has deleted the group snapshot."""

    content: VolumeGroupSnapshotContent
    finalizers: tuple[str, ...]


class CreateMember(Struct, frozen=True):
    """Create the VolumeSnapshot of one volume of the group, with its content."""

    info: VolumeSnapshotInfo


class DeleteMember(Struct, frozen=True):
    member: VolumeSnapshot


Step = (
    SetFinalizers
    | CreateGroupContent
    | AddGroupContentFinalizer
    | BindContent
    | CopyStatus
    | CreateMember
    | ReportError
    | AnnotateBeingDeleted
    | DeleteContent
    | DeleteMember
)


def plan(group: VolumeGroupSnapshot, inputs: GroupSnapshotInputs) -> Iterator[Step | CommonStep]:
    if group.is_deleting:
        yield from _delete(group, inputs)
    elif groups.is_ready(group) and groups.bound_name(group):
        yield from _verify(group, inputs)
    elif group.spec.source.volume_group_snapshot_content_name is not None:
        yield from _bind_existing(group, inputs)
    else:
        yield from _take(group, inputs)


def _take(group: VolumeGroupSnapshot, inputs: GroupSnapshotInputs) -> Iterator[Step | CommonStep]:
    content = inputs.content
    if content is not None:
        if not content.spec.source.volume_handles:
            which = "is pre-provisioned while expecting a dynamically provisioned one"
            yield ReportError(
                "GroupSnapshotContentMismatch", f"VolumeGroupSnapshotContent {content.name} {which}"
            )
        elif not groups.is_bound_to(content, group):
            yield _report_misbound(content)
        else:
            yield from _set_finalizers(group, content)
            yield from _members(group, content, inputs)
            yield from _copy_status(group, content)
        return
    chosen = _class(group, inputs)
    if isinstance(chosen, ReportError):
        yield chosen
        return
    yield from _set_finalizers(group, None, chosen.name)
    try:
        if inputs.unfit:
            raise InvalidGroupSource(inputs.unfit)
        made = make_group_content(group, chosen, inputs.volumes)
    except (InvalidGroupSource, InvalidSnapshotClass, InvalidTemplate) as error:
        message = f"failed to create group snapshot content with error {error}"
        yield ReportError("GroupSnapshotContentCreationFailed", message)
        return
    yield CreateGroupContent(made)
    message = f"Waiting for a group snapshot {group.key} to be created by the CSI driver."
    yield normal("CreatingGroupSnapshot", message)
    yield from _copy_status(group, made)


def _class(group: VolumeGroupSnapshot, inputs: GroupSnapshotInputs) -> VolumeGroupSnapshotClass | ReportError:
    if (name := group.spec.volume_group_snapshot_class_name) is not None:
        found = inputs.classes.get(name)
        if found is None:
            why = f'volumegroupsnapshotclass.groupsnapshot.storage.k8s.io "{name}" not found'
            message = f"failed to get group snapshot class with error {why}"
            return ReportError("GetGroupSnapshotClassFailed", message, unready=False)
        return found
    why = inputs.unfit
    if not why:
        try:
            candidates = groups.defaults(inputs.classes.values(), driver_of(group, inputs.volumes[0]))
        except InvalidGroupSource as error:
            why = str(error)
        else:
            if len(candidates) == 1:
                return candidates[0]
            why = "cannot find default group snapshot class"
            if candidates:
                why = f"{len(candidates)} default snapshot classes were found"
    message = f"Failed to set default group snapshot class with error {why}"
    return ReportError("SetDefaultGroupSnapshotClassFailed", message, unready=False)


def _bind_existing(group: VolumeGroupSnapshot, inputs: GroupSnapshotInputs) -> Iterator[Step | CommonStep]:
    content = inputs.content
    if content is None:
        yield ReportError("GroupSnapshotContentMissing", MISSING)
    elif content.spec.source.group_snapshot_handles is None:
        which = "is dynamically provisioned while expecting a pre-provisioned one"
        yield ReportError("GroupSnapshotContentMismatch", f"VolumeGroupSnapshotContent {which}")
    elif not groups.is_for(content, group):
        yield _report_misbound(content)
    else:
        yield from _set_finalizers(group, content)
        if not content.spec.volume_group_snapshot_ref.uid:
            yield BindContent()
        yield from _copy_status(group, content)


def _report_misbound(content: VolumeGroupSnapshotContent) -> ReportError:
    message = f"VolumeGroupSnapshotContent [{content.name}] is bound to a different group snapshot"
    return ReportError("GroupSnapshotContentMisbound", message)


def _set_finalizers(
    group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent | None, class_name: str | None = None
) -> Iterator[Step | CommonStep]:
    have = group.metadata.finalizers
    missing: tuple[str, ...] = ()
    if content is not None and content.spec.deletion_policy == "Delete" and groups.BOUND not in have:
        missing = (groups.BOUND,)
    chosen = class_name if group.spec.volume_group_snapshot_class_name is None else None
    if missing or chosen is not None:
        yield SetFinalizers((*have, *missing), chosen)


def _members(
    group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent, inputs: GroupSnapshotInputs
) -> Iterator[Step | CommonStep]:
    """Before the group is ready, so that a ready group has all its members."""
    if content.status is None or content.status.volume_group_snapshot_handle is None:
        return
    for info in content.status.volume_snapshot_info_list:
        member = inputs.members.get(member_name(group, info))
        if member is None or member.status is None:
            yield CreateMember(info)


def _copy_status(
    group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent
) -> Iterator[Step | CommonStep]:
    now, there = group.status or VolumeGroupSnapshotStatus(), content.status
    ready = there is not None and there.ready_to_use is True
    status: dict[str, Any] = {}
    if now.bound_volume_group_snapshot_content_name is None:
        status["boundVolumeGroupSnapshotContentName"] = content.name
    if now.ready_to_use is not ready:
        status["readyToUse"] = ready
    error = there.error if there is not None and not ready else None
    if (now.error and now.error.message) != (error and error.message):
        status["error"] = {"time": error.time, "message": error.message} if error is not None else None
    if there is not None and now.creation_time is None and there.creation_time is not None:
        status["creationTime"] = there.creation_time
    if not status:
        return
    yield CopyStatus(status)
    if "creationTime" in status:
        message = f"GroupSnapshot {group.key} was successfully created by the CSI driver."
        yield normal("GroupSnapshotCreated", message)
    if status.get("readyToUse") is True:
        yield normal("GroupSnapshotReady", f"GroupSnapshot {group.key} is ready to use.")


def _verify(group: VolumeGroupSnapshot, inputs: GroupSnapshotInputs) -> Iterator[Step | CommonStep]:
    content = inputs.content
    if content is None:
        yield ReportError("GroupSnapshotContentMissing", MISSING, final=True)
    elif not groups.is_bound_to(content, group):
        message = "VolumeGroupSnapshotContent is not bound to the VolumeGroupSnapshot correctly"
        yield ReportError("GroupSnapshotMisbound", message, final=True)
    else:
        yield from _set_finalizers(group, content)


def _delete(group: VolumeGroupSnapshot, inputs: GroupSnapshotInputs) -> Iterator[Step | CommonStep]:
    content = inputs.content
    if content is not None and not groups.is_bound_to(content, group):
        content = None  # bound to another group: not touched
    if inputs.restoring:
        message = (
            f"Snapshot {inputs.restoring[0]} belonging to VolumeGroupSnapshot {group.key} is being used to "
            "restore a PVC"
        )
        yield warning("SnapshotDeletePending", message)
        yield Wait(WaitReason.SNAPSHOT_RESTORING, WaitData(names=(inputs.restoring[0],)), message=message)
        return
    goes_along = content is not None and content.spec.deletion_policy == "Delete"
    if content is not None:
        if groups.BEING_DELETED not in content.metadata.annotations:
            yield AnnotateBeingDeleted()
        if goes_along and not content.is_deleting:
            yield DeleteContent()
    for member in inputs.members.values():
        if not member.is_deleting:
            yield DeleteMember(member)
    have = group.metadata.finalizers
    if not goes_along and groups.BOUND in have:
        yield SetFinalizers(tuple(f for f in have if f != groups.BOUND))


def plan_content(content: VolumeGroupSnapshotContent) -> Iterator[AddGroupContentFinalizer]:
    """A content that is bound to a group is kept until its snapshotter has deleted the group snapshot."""
    if not content.spec.volume_group_snapshot_ref.uid or content.is_deleting:
        return
    have = content.metadata.finalizers
    if groups.CONTENT_BOUND not in have:
        yield AddGroupContentFinalizer(content, (*have, groups.CONTENT_BOUND))
