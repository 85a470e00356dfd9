"""What a VolumeSnapshot needs next: a class, a content, the status of its content, or its deletion.

The content is created once, under a name derived from the snapshot's uid, so that a controller that was
restarted finds it again. A snapshot that was taken and whose content is gone is never ready again: a new
content would be a snapshot of another moment under the old name. Ready snapshots are verified again and
again, because the content can be changed or deleted.
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
from volplane.controllers.snapshot.content import InvalidSnapshotSource, make_content, volume_of
from volplane.controllers.snapshot.steps import (
    AnnotateBeingDeleted,
    BindContent,
    CopyStatus,
    DeleteContent,
    ReportError,
    SetFinalizers,
)
from volplane.rules import sizes, snapshots
from volplane.rules.snapshots import InvalidSnapshotClass
from volplane.rules.steps import CommonStep, normal, warning
from volplane.rules.templates import InvalidTemplate
from volplane.rules.waits import Wait, WaitData, WaitReason

VOLUME_MISSING = "VolumeSnapshotContent is missing"


class SnapshotInputs(Struct, frozen=True):
    """The objects that a plan for a snapshot depends on."""

    content: VolumeSnapshotContent | None = None  # the one it names, or that was created for it
    claim: PersistentVolumeClaim | None = None  # its source
    volume: PersistentVolume | None = None
    classes: Mapping[str, VolumeSnapshotClass] = {}
    restoring: tuple[str, ...] = ()  # claims that are being restored from it
    claim_is_used: bool = False  # another snapshot of that claim is not ready yet
    group: str = ""  # the group snapshot that it is part of, while that exists
    node: str = ""  # the node whose snapshotter handles it, with distributed snapshotting


class SnapshotPlanOptions(Struct, frozen=True):
    keep_mode: bool = True  # --prevent-volume-mode-conversion


class AddClaimFinalizer(Struct, frozen=True):
    """Keep the claim until the snapshot is ready."""


class RemoveClaimFinalizer(Struct, frozen=True):
    """The claim is no longer needed."""


class CreateContent(Struct, frozen=True):
    content: VolumeSnapshotContent


class AddContentFinalizer(Struct, frozen=True):
    """Keep the content until its snapshotter has deleted the snapshot."""

    content: VolumeSnapshotContent
    finalizers: tuple[str, ...]


Step = (
    SetFinalizers
    | AddClaimFinalizer
    | RemoveClaimFinalizer
    | CreateContent
    | AddContentFinalizer
    | BindContent
    | CopyStatus
    | ReportError
    | AnnotateBeingDeleted
    | DeleteContent
)


def plan(
    snapshot: VolumeSnapshot, inputs: SnapshotInputs, settings: SnapshotPlanOptions
) -> Iterator[Step | CommonStep]:
    if snapshots.is_ready(snapshot) and _keeps_claim(inputs):
        yield RemoveClaimFinalizer()
    if snapshot.is_deleting:
        yield from _delete(snapshot, inputs)
    elif snapshots.is_ready(snapshot) and snapshots.bound_name(snapshot):
        yield from _verify(snapshot, inputs)
    elif snapshot.spec.source.volume_snapshot_content_name is not None:
        yield from _bind_existing(snapshot, inputs)
    elif snapshots.IN_GROUP in snapshot.metadata.finalizers:
        yield from _join(snapshot, inputs)
    else:
        yield from _take(snapshot, inputs, settings)


def _keeps_claim(inputs: SnapshotInputs) -> bool:
    """The claim has the finalizer, and no other snapshot needs it."""
    claim = inputs.claim
    held = claim is not None and snapshots.CLAIM_AS_SOURCE in claim.metadata.finalizers
    return held and not inputs.claim_is_used


# --- one of a claim's volume


def _take(
    snapshot: VolumeSnapshot, inputs: SnapshotInputs, settings: SnapshotPlanOptions
) -> Iterator[Step | CommonStep]:
    content = inputs.content
    if content is not None:
        if content.spec.source.volume_handle is None:
            which = "is pre-provisioned while expecting a dynamically provisioned one"
            yield ReportError("SnapshotContentMismatch", f"VolumeSnapshotContent {content.name} {which}")
        elif not snapshots.is_bound_to(content, snapshot):
            yield _report_misbound(content)
        else:
            yield from _set_finalizers(snapshot, content)
            yield from _copy_status(snapshot, content)
        return
    if snapshot.status is not None and snapshot.status.creation_time is not None:
        yield ReportError("SnapshotContentMissing", VOLUME_MISSING, final=True)
        return
    chosen = _class(snapshot, inputs)
    if isinstance(chosen, ReportError):
        yield chosen
        return
    yield from _set_finalizers(snapshot, None, chosen.name)
    claim = inputs.claim
    try:
        volume_of(snapshot, claim, inputs.volume)
        made = make_content(snapshot, chosen, inputs.volume, node=inputs.node, keep_mode=settings.keep_mode)
    except (InvalidSnapshotSource, InvalidSnapshotClass, InvalidTemplate) as error:
        failed = f"Failed to create snapshot content with error {error}"
        yield ReportError("SnapshotContentCreationFailed", failed)
        return
    assert claim is not None
    if snapshots.CLAIM_AS_SOURCE not in claim.metadata.finalizers:
        if claim.is_deleting:
            why = f"cannot add finalizer on claim {claim.name} because it is being deleted"
            yield ReportError(
                "SnapshotContentCreationFailed", f"Failed to create snapshot content with error {why}"
            )
            return
        yield AddClaimFinalizer()
    yield CreateContent(made)
    yield normal(
        "CreatingSnapshot", f"Waiting for a snapshot {snapshot.key} to be created by the CSI driver."
    )
    yield from _copy_status(snapshot, made)


def _class(snapshot: VolumeSnapshot, inputs: SnapshotInputs) -> VolumeSnapshotClass | ReportError:
    if (name := snapshot.spec.volume_snapshot_class_name) is not None:
        found = inputs.classes.get(name)
        if found is None:
            why = f'volumesnapshotclass.snapshot.storage.k8s.io "{name}" not found'
            message = f"Failed to get snapshot class with error {why}"
            return ReportError("GetSnapshotClassFailed", message, unready=False)
        return found
    try:
        volume = volume_of(snapshot, inputs.claim, inputs.volume)
        assert volume.spec.csi is not None
        candidates = snapshots.defaults(inputs.classes.values(), volume.spec.csi.driver)
        if len(candidates) == 1:
            return candidates[0]
        why = (
            f"{len(candidates)} default snapshot classes were found"
            if candidates
            else "cannot find default snapshot class"
        )
    except InvalidSnapshotSource as error:
        why = str(error)
    message = f"Failed to set default snapshot class with error {why}"
    return ReportError("SetDefaultSnapshotClassFailed", message, unready=False)


# --- one that was there before


def _bind_existing(snapshot: VolumeSnapshot, inputs: SnapshotInputs) -> Iterator[Step | CommonStep]:
    content = inputs.content
    if content is None:
        yield ReportError("SnapshotContentMissing", VOLUME_MISSING)
    elif content.spec.source.snapshot_handle is None:
        which = "is dynamically provisioned while expecting a pre-provisioned one"
        yield ReportError("SnapshotContentMismatch", f"VolumeSnapshotContent {which}")
    elif not snapshots.is_for(content, snapshot):
        yield _report_misbound(content)
    else:
        yield from _set_finalizers(snapshot, content)
        ref, named = content.spec.volume_snapshot_ref, snapshot.spec.volume_snapshot_class_name
        if not ref.uid or (named is not None and content.spec.volume_snapshot_class_name is None):
            yield BindContent()
        yield from _copy_status(snapshot, content)


def _report_misbound(content: VolumeSnapshotContent) -> ReportError:
    message = f"VolumeSnapshotContent [{content.name}] is bound to a different snapshot"
    return ReportError("SnapshotContentMisbound", message)


# --- one of a group: its content was made with it


def _join(snapshot: VolumeSnapshot, inputs: SnapshotInputs) -> Iterator[Step | CommonStep]:
    content = inputs.content
    if content is None or not snapshots.is_bound_to(content, snapshot):
        yield Wait(WaitReason.GROUP_MEMBER_WITHOUT_CONTENT, WaitData(names=(snapshot.key,)))
        return
    yield from _set_finalizers(snapshot, content)
    yield from _copy_status(snapshot, content, group=inputs.group)


# --- what all have in common


def _set_finalizers(
    snapshot: VolumeSnapshot, content: VolumeSnapshotContent | None, class_name: str | None = None
) -> Iterator[Step | CommonStep]:
    """As source always; bound only if the content is deleted with the snapshot."""
    wanted = [snapshots.AS_SOURCE]
    if content is not None and content.spec.deletion_policy == snapshots.DELETE:
        wanted.append(snapshots.BOUND)
    have = snapshot.metadata.finalizers
    missing = [f for f in wanted if f not in have]
    named = snapshot.spec.volume_snapshot_class_name
    chosen = class_name if class_name is not None and named is None else None
    if missing or chosen is not None:
        yield SetFinalizers((*have, *missing), chosen)


def _copy_status(
    snapshot: VolumeSnapshot, content: VolumeSnapshotContent, *, group: str = ""
) -> Iterator[Step | CommonStep]:
    now = snapshot.status or VolumeSnapshotStatus()
    status = status_changes(now, content)
    if group and now.volume_group_snapshot_name is None:
        status["volumeGroupSnapshotName"] = group
    if not status:
        return
    yield CopyStatus(status)
    if "creationTime" in status:
        message = f"Snapshot {snapshot.key} was successfully created by the CSI driver."
        yield normal("SnapshotCreated", message)
    if status.get("readyToUse") is True:
        yield normal("SnapshotReady", f"Snapshot {snapshot.key} is ready to use.")


def status_changes(now: VolumeSnapshotStatus, content: VolumeSnapshotContent) -> dict[str, Any]:
    """The fields of the content's status to copy. Size and time are set once."""
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
        status["restoreSize"] = sizes.format_size(there.restore_size)
    return status


def _verify(snapshot: VolumeSnapshot, inputs: SnapshotInputs) -> Iterator[Step | CommonStep]:
    content = inputs.content
    if content is None:
        yield ReportError("SnapshotContentMissing", VOLUME_MISSING, final=True)
    elif not snapshots.is_bound_to(content, snapshot):
        message = "VolumeSnapshotContent is not bound to the VolumeSnapshot correctly"
        yield ReportError("SnapshotMisbound", message, final=True)
    else:
        yield from _set_finalizers(snapshot, content)


# --- the end


def _delete(snapshot: VolumeSnapshot, inputs: SnapshotInputs) -> Iterator[Step | CommonStep]:
    ours = (snapshots.AS_SOURCE, snapshots.BOUND, snapshots.IN_GROUP)
    have = snapshot.metadata.finalizers
    if not any(f in have for f in ours):
        return
    content = inputs.content
    if content is not None and not snapshots.is_bound_to(content, snapshot):
        content = None  # bound to another snapshot: not touched
    if content is not None and inputs.restoring:
        yield warning("SnapshotDeletePending", "Snapshot is being used to restore a PVC")
        data = WaitData(names=(snapshot.key,), claims=tuple(inputs.restoring))
        yield Wait(WaitReason.SNAPSHOT_RESTORING, data)
        return
    if inputs.group:
        message = (
            f"deletion of the individual volume snapshot {snapshot.key} is not allowed as it belongs to "
            f"group snapshot {snapshot.namespace}/{inputs.group}. Deleting the group snapshot will trigger "
            "the deletion of all the individual volume snapshots that are part of the group."
        )
        yield warning("SnapshotDeletePending", message)
        yield Wait(WaitReason.DELETED_WITH_GROUP, WaitData(names=(inputs.group,)), message=message)
        return
    goes_along = content is not None and content.spec.deletion_policy == snapshots.DELETE
    if content is not None:
        if snapshots.BEING_DELETED not in content.metadata.annotations:
            yield AnnotateBeingDeleted()
        if goes_along and not content.is_deleting:
            yield DeleteContent()
    # The claim is not copied any more, or its finalizer could not be removed later.
    if _keeps_claim(inputs) and not (goes_along and _is_being_taken(content)):
        yield RemoveClaimFinalizer()
    kept = tuple(f for f in have if f not in ours or (f == snapshots.BOUND and goes_along))
    if kept != have:
        yield SetFinalizers(kept)
    if content is not None and goes_along:
        yield Wait(WaitReason.CONTENT_DELETION, WaitData(names=(content.name,)))


def _is_being_taken(content: VolumeSnapshotContent | None) -> bool:
    return content is not None and snapshots.BEING_CREATED in content.metadata.annotations


def plan_content(content: VolumeSnapshotContent) -> Iterator[AddContentFinalizer]:
    """A content that is bound to a snapshot is kept until its snapshotter has deleted the snapshot."""
    if not content.spec.volume_snapshot_ref.uid or content.is_deleting:
        return
    have = content.metadata.finalizers
    if snapshots.CONTENT_BOUND not in have:
        yield AddContentFinalizer(content, (*have, snapshots.CONTENT_BOUND))
