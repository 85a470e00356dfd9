"""What a VolumeGroupSnapshot needs next: a class, a content, its members, its content's news, or its end.

The members are ordinary snapshots with contents, made from what the driver answered for the group, under
names that follow from the group's uid and the volume, so that nothing is made twice. The subtle thing: they
belong to the group and end with it, never alone.
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
from volplane.controllers.snapshot.groups.objects import Unfit, driver_of, make, member_name
from volplane.rules import groups
from volplane.rules.snapshots import BadClass
from volplane.rules.steps import UNTIL_CHANGED, Say, Wait, normal, warning
from volplane.rules.templates import BadTemplate

MISSING = "VolumeGroupSnapshotContent is missing"


class World(Struct, frozen=True):
    """What there is around a group."""

    content: VolumeGroupSnapshotContent | None = None  # the one it names, or that was made for it
    volumes: tuple[PersistentVolume, ...] = ()  # of the claims that its selector finds
    unfit: str = ""  # why there are none
    classes: Mapping[str, VolumeGroupSnapshotClass] = {}
    members: Mapping[str, VolumeSnapshot] = {}  # by name
    restoring: tuple[str, ...] = ()  # members that claims are being filled from


class Settle(Struct, frozen=True):
    """The group's finalizers and class become these."""

    finalizers: tuple[str, ...]
    class_name: str | None = None


class Make(Struct, frozen=True):
    content: VolumeGroupSnapshotContent


class Bind(Struct, frozen=True):
    """A content from elsewhere becomes this group's."""


class Follow(Struct, frozen=True):
    """The group says what its content says."""

    status: Mapping[str, Any]


class MakeMember(Struct, frozen=True):
    info: VolumeSnapshotInfo


class Fail(Struct, frozen=True):
    reason: str
    message: str
    unready: bool = True
    final: bool = False


class MarkDeleting(Struct, frozen=True):
    pass


class DeleteContent(Struct, frozen=True):
    pass


class DeleteMember(Struct, frozen=True):
    member: VolumeSnapshot


Step = (
    Settle
    | Make
    | Bind
    | Follow
    | MakeMember
    | Fail
    | MarkDeleting
    | DeleteContent
    | DeleteMember
    | Say
    | Wait
)


def plan(group: VolumeGroupSnapshot, world: World) -> Iterator[Step]:
    if group.is_deleting:
        yield from _end(group, world)
    elif groups.is_ready(group) and groups.bound_name(group):
        yield from _verify(group, world)
    elif group.spec.source.volume_group_snapshot_content_name is not None:
        yield from _adopt(group, world)
    else:
        yield from _take(group, world)


def _take(group: VolumeGroupSnapshot, world: World) -> Iterator[Step]:
    content = world.content
    if content is not None:
        if not content.spec.source.volume_handles:
            which = "is pre-provisioned while expecting a dynamically provisioned one"
            yield Fail("GroupSnapshotContentMismatch", f"VolumeGroupSnapshotContent {content.name} {which}")
        elif not groups.is_bound_to(content, group):
            yield _misbound(content)
        else:
            yield from _settle(group, content)
            yield from _members(group, content, world)
            yield from _follow(group, content)
        return
    chosen = _class(group, world)
    if isinstance(chosen, Fail):
        yield chosen
        return
    yield from _settle(group, None, chosen.name)
    try:
        if world.unfit:
            raise Unfit(world.unfit)
        made = make(group, chosen, world.volumes)
    except (Unfit, BadClass, BadTemplate) as error:
        told = f"failed to create group snapshot content with error {error}"
        yield Fail("GroupSnapshotContentCreationFailed", told)
        return
    yield Make(made)
    told = f"Waiting for a group snapshot {group.key} to be created by the CSI driver."
    yield normal("CreatingGroupSnapshot", told)
    yield from _follow(group, made)


def _class(group: VolumeGroupSnapshot, world: World) -> VolumeGroupSnapshotClass | Fail:
    if (name := group.spec.volume_group_snapshot_class_name) is not None:
        found = world.classes.get(name)
        if found is None:
            why = f'volumegroupsnapshotclass.groupsnapshot.storage.k8s.io "{name}" not found'
            told = f"failed to get group snapshot class with error {why}"
            return Fail("GetGroupSnapshotClassFailed", told, unready=False)
        return found
    why = world.unfit
    if not why:
        try:
            candidates = groups.defaults(world.classes.values(), driver_of(group, world.volumes[0]))
        except Unfit as error:
            why = str(error)
        else:
            if len(candidates) == 1:
                return candidates[0]
            why = "cannot find default group snapshot class"
            if candidates:
                why = f"{len(candidates)} default snapshot classes were found"
    told = f"Failed to set default group snapshot class with error {why}"
    return Fail("SetDefaultGroupSnapshotClassFailed", told, unready=False)


def _adopt(group: VolumeGroupSnapshot, world: World) -> Iterator[Step]:
    content = world.content
    if content is None:
        yield Fail("GroupSnapshotContentMissing", MISSING)
    elif content.spec.source.group_snapshot_handles is None:
        which = "is dynamically provisioned while expecting a pre-provisioned one"
        yield Fail("GroupSnapshotContentMismatch", f"VolumeGroupSnapshotContent {which}")
    elif not groups.is_for(content, group):
        yield _misbound(content)
    else:
        yield from _settle(group, content)
        if not content.spec.volume_group_snapshot_ref.uid:
            yield Bind()
        yield from _follow(group, content)


def _misbound(content: VolumeGroupSnapshotContent) -> Fail:
    told = f"VolumeGroupSnapshotContent [{content.name}] is bound to a different group snapshot"
    return Fail("GroupSnapshotContentMisbound", told)


def _settle(
    group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent | None, class_name: str | None = None
) -> Iterator[Step]:
    have = group.metadata.finalizers
    missing: tuple[str, ...] = ()
    if content is not None and content.spec.deletion_policy == "Delete" and groups.BOUND not in have:
        missing = (groups.BOUND,)
    chosen = class_name if group.spec.volume_group_snapshot_class_name is None else None
    if missing or chosen is not None:
        yield Settle((*have, *missing), chosen)


def _members(group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent, world: World) -> Iterator[Step]:
    """Before the group is ready, so that a ready one is whole."""
    if content.status is None or content.status.volume_group_snapshot_handle is None:
        return
    for info in content.status.volume_snapshot_info_list:
        member = world.members.get(member_name(group, info))
        if member is None or member.status is None:
            yield MakeMember(info)


def _follow(group: VolumeGroupSnapshot, content: VolumeGroupSnapshotContent) -> Iterator[Step]:
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
    yield Follow(status)
    if "creationTime" in status:
        told = f"GroupSnapshot {group.key} was successfully created by the CSI driver."
        yield normal("GroupSnapshotCreated", told)
    if status.get("readyToUse") is True:
        yield normal("GroupSnapshotReady", f"GroupSnapshot {group.key} is ready to use.")


def _verify(group: VolumeGroupSnapshot, world: World) -> Iterator[Step]:
    content = world.content
    if content is None:
        yield Fail("GroupSnapshotContentMissing", MISSING, final=True)
    elif not groups.is_bound_to(content, group):
        told = "VolumeGroupSnapshotContent is not bound to the VolumeGroupSnapshot correctly"
        yield Fail("GroupSnapshotMisbound", told, final=True)
    else:
        yield from _settle(group, content)


def _end(group: VolumeGroupSnapshot, world: World) -> Iterator[Step]:
    content = world.content
    if content is not None and not groups.is_bound_to(content, group):
        content = None  # another one's: nothing of it is touched
    if world.restoring:
        told = (
            f"Snapshot {world.restoring[0]} belonging to VolumeGroupSnapshot {group.key} is being used to "
            "restore a PVC"
        )
        yield warning("SnapshotDeletePending", told)
        yield Wait(UNTIL_CHANGED, told)
        return
    goes_along = content is not None and content.spec.deletion_policy == "Delete"
    if content is not None:
        if groups.BEING_DELETED not in content.metadata.annotations:
            yield MarkDeleting()
        if goes_along and not content.is_deleting:
            yield DeleteContent()
    for member in world.members.values():
        if not member.is_deleting:
            yield DeleteMember(member)
    have = group.metadata.finalizers
    if not goes_along and groups.BOUND in have:
        yield Settle(tuple(f for f in have if f != groups.BOUND))


def plan_content(content: VolumeGroupSnapshotContent) -> Iterator[Settle]:
    """A content that belongs to a group is held until its snapshotter has done with it."""
    if not content.spec.volume_group_snapshot_ref.uid or content.is_deleting:
        return
    have = content.metadata.finalizers
    if groups.CONTENT_BOUND not in have:
        yield Settle((*have, groups.CONTENT_BOUND))
