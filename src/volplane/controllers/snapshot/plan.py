"""What a VolumeSnapshot needs next: a class, a content, its content's news, or its end.

The content is made once, under a name that follows from the snapshot's uid, so that whoever dies in between
finds it again. A snapshot that was taken and whose content is gone stays unready for good: a content made
anew would be a copy of another moment under the old name. The subtle thing: what is finished is looked at
again and again, because a binding is only as good as its other half.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from volplane.api import quantity
from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.snapshot import (
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
    VolumeSnapshotStatus,
)
from volplane.controllers.snapshot.content import Unfit, make, volume_of
from volplane.rules import sizes, snapshots
from volplane.rules.snapshots import BadClass
from volplane.rules.steps import UNTIL_CHANGED, Say, Wait, normal, warning
from volplane.rules.templates import BadTemplate

VOLUME_MISSING = "VolumeSnapshotContent is missing"


class World(Struct, frozen=True):
    """What there is around a snapshot."""

    content: VolumeSnapshotContent | None = None  # the one it names, or that was made for it
    claim: PersistentVolumeClaim | None = None  # that it is taken of
    volume: PersistentVolume | None = None
    classes: Mapping[str, VolumeSnapshotClass] = {}
    restoring: tuple[str, ...] = ()  # claims that are being filled from it
    claim_is_used: bool = False  # another snapshot of that claim is not ready yet
    group: str = ""  # the group snapshot that it is part of, and that lives
    node: str = ""  # who handles it, where every node handles its own


class Settings(Struct, frozen=True):
    keep_mode: bool = True  # --prevent-volume-mode-conversion


class Settle(Struct, frozen=True):
    """The snapshot's finalizers and class become these."""

    finalizers: tuple[str, ...]
    class_name: str | None = None


class HoldClaim(Struct, frozen=True):
    """The claim stays until the snapshot is ready."""


class FreeClaim(Struct, frozen=True):
    pass


class Make(Struct, frozen=True):
    content: VolumeSnapshotContent


class Bind(Struct, frozen=True):
    """A content from elsewhere becomes this snapshot's."""


class Follow(Struct, frozen=True):
    """The snapshot says what its content says."""

    status: Mapping[str, Any]


class Fail(Struct, frozen=True):
    """Say so on the snapshot, and try again later."""

    reason: str
    message: str
    unready: bool = True
    final: bool = False  # only a change of an object helps


class MarkDeleting(Struct, frozen=True):
    """Tell the content's snapshotter that its snapshot goes."""


class DeleteContent(Struct, frozen=True):
    pass


Step = (
    Settle | HoldClaim | FreeClaim | Make | Bind | Follow | Fail | MarkDeleting | DeleteContent | Say | Wait
)


def plan(snapshot: VolumeSnapshot, world: World, settings: Settings) -> Iterator[Step]:
    if snapshots.is_ready(snapshot) and _holds_claim(world):
        yield FreeClaim()
    if snapshot.is_deleting:
        yield from _end(snapshot, world)
    elif snapshots.is_ready(snapshot) and snapshots.bound_name(snapshot):
        yield from _verify(snapshot, world)
    elif snapshot.spec.source.volume_snapshot_content_name is not None:
        yield from _adopt(snapshot, world)
    elif snapshots.IN_GROUP in snapshot.metadata.finalizers:
        yield from _join(snapshot, world)
    else:
        yield from _take(snapshot, world, settings)


def _holds_claim(world: World) -> bool:
    """The claim is held for snapshots, and no other one needs it."""
    claim = world.claim
    held = claim is not None and snapshots.CLAIM_AS_SOURCE in claim.metadata.finalizers
    return held and not world.claim_is_used


# --- one of a claim's volume


def _take(snapshot: VolumeSnapshot, world: World, settings: Settings) -> Iterator[Step]:
    content = world.content
    if content is not None:
        if content.spec.source.volume_handle is None:
            which = "is pre-provisioned while expecting a dynamically provisioned one"
            yield Fail("SnapshotContentMismatch", f"VolumeSnapshotContent {content.name} {which}")
        elif not snapshots.is_bound_to(content, snapshot):
            yield _misbound(content)
        else:
            yield from _settle(snapshot, content)
            yield from _follow(snapshot, content)
        return
    if snapshot.status is not None and snapshot.status.creation_time is not None:
        yield Fail("SnapshotContentMissing", VOLUME_MISSING, final=True)
        return
    chosen = _class(snapshot, world)
    if isinstance(chosen, Fail):
        yield chosen
        return
    yield from _settle(snapshot, None, chosen.name)
    claim = world.claim
    try:
        volume_of(snapshot, claim, world.volume)
        made = make(snapshot, chosen, world.volume, node=world.node, keep_mode=settings.keep_mode)
    except (Unfit, BadClass, BadTemplate) as error:
        failed = f"Failed to create snapshot content with error {error}"
        yield Fail("SnapshotContentCreationFailed", failed)
        return
    assert claim is not None
    if snapshots.CLAIM_AS_SOURCE not in claim.metadata.finalizers:
        if claim.is_deleting:
            why = f"cannot add finalizer on claim {claim.name} because it is being deleted"
            yield Fail("SnapshotContentCreationFailed", f"Failed to create snapshot content with error {why}")
            return
        yield HoldClaim()
    yield Make(made)
    yield normal(
        "CreatingSnapshot", f"Waiting for a snapshot {snapshot.key} to be created by the CSI driver."
    )
    yield from _follow(snapshot, made)


def _class(snapshot: VolumeSnapshot, world: World) -> VolumeSnapshotClass | Fail:
    if (name := snapshot.spec.volume_snapshot_class_name) is not None:
        found = world.classes.get(name)
        if found is None:
            why = f'volumesnapshotclass.snapshot.storage.k8s.io "{name}" not found'
            told = f"Failed to get snapshot class with error {why}"
            return Fail("GetSnapshotClassFailed", told, unready=False)
        return found
    try:
        volume = volume_of(snapshot, world.claim, world.volume)
        assert volume.spec.csi is not None
        candidates = snapshots.defaults(world.classes.values(), volume.spec.csi.driver)
        if len(candidates) == 1:
            return candidates[0]
        why = (
            f"{len(candidates)} default snapshot classes were found"
            if candidates
            else "cannot find default snapshot class"
        )
    except Unfit as error:
        why = str(error)
    told = f"Failed to set default snapshot class with error {why}"
    return Fail("SetDefaultSnapshotClassFailed", told, unready=False)


# --- one that was there before


def _adopt(snapshot: VolumeSnapshot, world: World) -> Iterator[Step]:
    content = world.content
    if content is None:
        yield Fail("SnapshotContentMissing", VOLUME_MISSING)
    elif content.spec.source.snapshot_handle is None:
        which = "is dynamically provisioned while expecting a pre-provisioned one"
        yield Fail("SnapshotContentMismatch", f"VolumeSnapshotContent {which}")
    elif not snapshots.is_for(content, snapshot):
        yield _misbound(content)
    else:
        yield from _settle(snapshot, content)
        ref, named = content.spec.volume_snapshot_ref, snapshot.spec.volume_snapshot_class_name
        if not ref.uid or (named is not None and content.spec.volume_snapshot_class_name is None):
            yield Bind()
        yield from _follow(snapshot, content)


def _misbound(content: VolumeSnapshotContent) -> Fail:
    told = f"VolumeSnapshotContent [{content.name}] is bound to a different snapshot"
    return Fail("SnapshotContentMisbound", told)


# --- one of a group: its content was made with it


def _join(snapshot: VolumeSnapshot, world: World) -> Iterator[Step]:
    content = world.content
    if content is None or not snapshots.is_bound_to(content, snapshot):
        yield Wait(UNTIL_CHANGED, f"detected group snapshot member {snapshot.key} with no content")
        return
    yield from _settle(snapshot, content)
    yield from _follow(snapshot, content, group=world.group)


# --- what all have in common


def _settle(
    snapshot: VolumeSnapshot, content: VolumeSnapshotContent | None, class_name: str | None = None
) -> Iterator[Step]:
    """As source always; bound only where the content is to go with the snapshot."""
    wanted = [snapshots.AS_SOURCE]
    if content is not None and content.spec.deletion_policy == snapshots.DELETE:
        wanted.append(snapshots.BOUND)
    have = snapshot.metadata.finalizers
    missing = [f for f in wanted if f not in have]
    named = snapshot.spec.volume_snapshot_class_name
    chosen = class_name if class_name is not None and named is None else None
    if missing or chosen is not None:
        yield Settle((*have, *missing), chosen)


def _follow(snapshot: VolumeSnapshot, content: VolumeSnapshotContent, *, group: str = "") -> Iterator[Step]:
    now = snapshot.status or VolumeSnapshotStatus()
    status = news(now, content)
    if group and now.volume_group_snapshot_name is None:
        status["volumeGroupSnapshotName"] = group
    if not status:
        return
    yield Follow(status)
    if "creationTime" in status:
        told = f"Snapshot {snapshot.key} was successfully created by the CSI driver."
        yield normal("SnapshotCreated", told)
    if status.get("readyToUse") is True:
        yield normal("SnapshotReady", f"Snapshot {snapshot.key} is ready to use.")


def news(now: VolumeSnapshotStatus, content: VolumeSnapshotContent) -> dict[str, Any]:
    """What of the content the snapshot does not say yet. Size and time are set once."""
    there = content.status
    ready = there is not None and there.ready_to_use is True
    status: dict[str, Any] = {}
    if now.bound_volume_snapshot_content_name is None:
        status["boundVolumeSnapshotContentName"] = content.name
    if now.ready_to_use is not ready:
        status["readyToUse"] = ready
    error = there.error if there is not None and not ready else None
    if (now.error and (now.error.time, now.error.message)) != (error and (error.time, error.message)):
        status["error"] = {"time": error.time, "message": error.message} if error is not None else None
    if there is None:
        return status
    if now.creation_time is None and there.creation_time is not None:
        status["creationTime"] = snapshots.stamp(there.creation_time)
    size = quantity.value(now.restore_size or 0)
    if there.restore_size is not None and (now.restore_size is None or (not size and there.restore_size)):
        status["restoreSize"] = sizes.text(there.restore_size)
    return status


def _verify(snapshot: VolumeSnapshot, world: World) -> Iterator[Step]:
    content = world.content
    if content is None:
        yield Fail("SnapshotContentMissing", VOLUME_MISSING, final=True)
    elif not snapshots.is_bound_to(content, snapshot):
        told = "VolumeSnapshotContent is not bound to the VolumeSnapshot correctly"
        yield Fail("SnapshotMisbound", told, final=True)
    else:
        yield from _settle(snapshot, content)


# --- the end


def _end(snapshot: VolumeSnapshot, world: World) -> Iterator[Step]:
    ours = (snapshots.AS_SOURCE, snapshots.BOUND, snapshots.IN_GROUP)
    have = snapshot.metadata.finalizers
    if not any(f in have for f in ours):
        return
    content = world.content
    if content is not None and not snapshots.is_bound_to(content, snapshot):
        content = None  # another one's: nothing of it is touched
    if content is not None and world.restoring:
        yield warning("SnapshotDeletePending", "Snapshot is being used to restore a PVC")
        why = f"snapshot {snapshot.key} is being restored into {', '.join(world.restoring)}"
        yield Wait(UNTIL_CHANGED, why)
        return
    if world.group:
        told = (
            f"deletion of the individual volume snapshot {snapshot.key} is not allowed as it belongs to "
            f"group snapshot {snapshot.namespace}/{world.group}. Deleting the group snapshot will trigger "
            "the deletion of all the individual volume snapshots that are part of the group."
        )
        yield warning("SnapshotDeletePending", told)
        yield Wait(UNTIL_CHANGED, told)
        return
    goes_along = content is not None and content.spec.deletion_policy == snapshots.DELETE
    if content is not None:
        if snapshots.BEING_DELETED not in content.metadata.annotations:
            yield MarkDeleting()
        if goes_along and not content.is_deleting:
            yield DeleteContent()
    # Nothing of the claim is copied any more, or nobody will be there to let it go later.
    if _holds_claim(world) and not (goes_along and _is_being_taken(content)):
        yield FreeClaim()
    kept = tuple(f for f in have if f not in ours or (f == snapshots.BOUND and goes_along))
    if kept != have:
        yield Settle(kept)
    if goes_along:
        yield Wait(UNTIL_CHANGED, f"its content {content.name if content else ''} goes first")


def _is_being_taken(content: VolumeSnapshotContent | None) -> bool:
    return content is not None and snapshots.BEING_CREATED in content.metadata.annotations


def plan_content(content: VolumeSnapshotContent) -> Iterator[Settle]:
    """A content that belongs to a snapshot is held until its snapshotter has done with it."""
    if not content.spec.volume_snapshot_ref.uid or content.is_deleting:
        return
    have = content.metadata.finalizers
    if snapshots.CONTENT_BOUND not in have:
        yield Settle((*have, snapshots.CONTENT_BOUND))
