"""What a VolumeGroupSnapshot needs next: a class, a content, its members, a status, or its deletion.

The members are ordinary snapshots with contents, created from what the driver returned for the group, under
names derived from the group's uid and the volume, so that none is created twice. They belong to the group and
are deleted with it, never alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from volplane.api.core import PersistentVolume
from volplane.api.snapshot import (
    VolumeGroupSnapshot,
    VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent,
    VolumeSnapshot,
    VolumeSnapshotInfo,
)
from volplane.controllers.snapshot import common_plan as common
from volplane.controllers.snapshot.content import InvalidSnapshotSource
from volplane.controllers.snapshot.groups.objects import driver_of, make_group_content, member_name
from volplane.controllers.snapshot.steps import AddContentFinalizer, ReportError, SnapshotStep
from volplane.rules import groups, snapshots
from volplane.rules.snapshots import InvalidSnapshotClass
from volplane.rules.steps import CommonStep, warning
from volplane.rules.templates import InvalidTemplate
from volplane.rules.waits import Wait, WaitData, WaitReason


class GroupSnapshotInputs(Struct, frozen=True):
    """The objects that a plan for a group snapshot depends on."""

    content: VolumeGroupSnapshotContent | None = None  # the one it names, or that was created for it
    volumes: tuple[PersistentVolume, ...] = ()  # of the claims that its selector finds
    unfit: str = ""  # why there are none
    classes: Mapping[str, VolumeGroupSnapshotClass] = {}
    members: Mapping[str, VolumeSnapshot] = {}  # by name
    restoring: tuple[str, ...] = ()  # members that claims are being filled from


class CreateMember(Struct, frozen=True):
    """Create the VolumeSnapshot of one volume of the group, with its content."""

    info: VolumeSnapshotInfo


class DeleteMember(Struct, frozen=True):
    member: VolumeSnapshot


Step = SnapshotStep | AddContentFinalizer | CreateMember | DeleteMember


def plan(group: VolumeGroupSnapshot, inputs: GroupSnapshotInputs) -> Iterator[Step | CommonStep]:
    if group.is_deleting:
        yield from _delete(group, inputs)
    elif snapshots.is_ready(group) and snapshots.bound_name(group):
        yield from common.verify(group, inputs.content)
    elif snapshots.source_content_name(group) is not None:
        yield from common.bind_existing(group, inputs.content)
    else:
        yield from _take(group, inputs)


def _take(group: VolumeGroupSnapshot, inputs: GroupSnapshotInputs) -> Iterator[Step | CommonStep]:
    content = inputs.content
    if content is not None:
        if (mismatch := common.find_dynamic_mismatch(group, content)) is not None:
            yield mismatch
            return
        yield from common.set_finalizers(group, content)
        yield from _members(group, content, inputs)
        yield from common.copy_status(group, content)
        return
    chosen = common.choose_class(group, inputs.classes, lambda: _find_driver(group, inputs))
    if isinstance(chosen, ReportError):
        yield chosen
        return
    yield from common.set_finalizers(group, None, chosen.name)
    try:
        if inputs.unfit:
            raise InvalidSnapshotSource(inputs.unfit)
        made = make_group_content(group, chosen, inputs.volumes)
    except (InvalidSnapshotSource, InvalidSnapshotClass, InvalidTemplate) as error:
        yield common.report_creation_failure(group, error)
        return
    yield from common.create_content(group, made)


def _find_driver(group: VolumeGroupSnapshot, inputs: GroupSnapshotInputs) -> str:
    if inputs.unfit:
        raise InvalidSnapshotSource(inputs.unfit)
    return driver_of(group, inputs.volumes[0])


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


def _delete(group: VolumeGroupSnapshot, inputs: GroupSnapshotInputs) -> Iterator[Step | CommonStep]:
    content = common.own_content(group, inputs.content)
    if inputs.restoring:
        message = (
            f"Snapshot {inputs.restoring[0]} belonging to VolumeGroupSnapshot {group.key} is being used to "
            "restore a PVC"
        )
        yield warning("SnapshotDeletePending", message)
        yield Wait(WaitReason.SNAPSHOT_RESTORING, WaitData(names=(inputs.restoring[0],)), message=message)
        return
    yield from common.delete_content(content)
    for member in inputs.members.values():
        if not member.is_deleting:
            yield DeleteMember(member)
    yield from common.remove_finalizers(group, (groups.BOUND,), content)
