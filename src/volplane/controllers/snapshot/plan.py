"""What a VolumeSnapshot needs next: a class, a content, the status of its content, or its deletion.

The content is created once, under a name derived from the snapshot's uid, so that a controller that was
restarted finds it again. A snapshot that was taken and whose content is gone is never ready again: a new
content would be a snapshot of another moment under the old name. Ready snapshots are verified again and
again, because the content can be changed or deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from volplane.api.core import PersistentVolume, PersistentVolumeClaim
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent
from volplane.controllers.snapshot import common_plan as common
from volplane.controllers.snapshot.content import InvalidSnapshotSource, make_content, volume_of
from volplane.controllers.snapshot.steps import AddContentFinalizer, ReportError, SnapshotStep
from volplane.rules import snapshots
from volplane.rules.snapshots import AnyContent, InvalidSnapshotClass
from volplane.rules.steps import CommonStep, warning
from volplane.rules.templates import InvalidTemplate
from volplane.rules.waits import Wait, WaitData, WaitReason


class SnapshotInputs(Struct, frozen=True):
    """The objects that a plan for a snapshot depends on."""

    content: VolumeSnapshotContent | None = None  # the one it names, or that was created for it
    claim: PersistentVolumeClaim | None = None  # its source
    volume: PersistentVolume | None = None
    classes: Mapping[str, VolumeSnapshotClass] = {}
    restoring: tuple[str, ...] = ()  # claims that are being filled from it
    claim_is_used: bool = False  # another snapshot of that claim is not ready yet
    group: str = ""  # the group snapshot that it is part of, while that exists
    node: str = ""  # who handles it, where every node handles its own


class SnapshotPlanOptions(Struct, frozen=True):
    keep_mode: bool = True  # --prevent-volume-mode-conversion


class AddClaimFinalizer(Struct, frozen=True):
    """Keep the claim until the snapshot is ready."""


class RemoveClaimFinalizer(Struct, frozen=True):
    """The claim is no longer needed."""


Step = SnapshotStep | AddContentFinalizer | AddClaimFinalizer | RemoveClaimFinalizer


def plan(
    snapshot: VolumeSnapshot, inputs: SnapshotInputs, settings: SnapshotPlanOptions
) -> Iterator[Step | CommonStep]:
    if snapshots.is_ready(snapshot) and _keeps_claim(inputs):
        yield RemoveClaimFinalizer()
    if snapshot.is_deleting:
        yield from _delete(snapshot, inputs)
    elif snapshots.is_ready(snapshot) and snapshots.bound_name(snapshot):
        yield from common.verify(snapshot, inputs.content)
    elif snapshots.source_content_name(snapshot) is not None:
        yield from common.bind_existing(snapshot, inputs.content)
    elif snapshots.IN_GROUP in snapshot.metadata.finalizers:
        yield from _join(snapshot, inputs)
    else:
        yield from _take(snapshot, inputs, settings)


def _keeps_claim(inputs: SnapshotInputs) -> bool:
    """The claim has the finalizer, and no other snapshot needs it."""
    claim = inputs.claim
    held = claim is not None and snapshots.CLAIM_AS_SOURCE in claim.metadata.finalizers
    return held and not inputs.claim_is_used


# --- a snapshot of a claim's volume


def _take(
    snapshot: VolumeSnapshot, inputs: SnapshotInputs, settings: SnapshotPlanOptions
) -> Iterator[Step | CommonStep]:
    content = inputs.content
    if content is not None:
        if (mismatch := common.find_dynamic_mismatch(snapshot, content)) is not None:
            yield mismatch
            return
        yield from common.set_finalizers(snapshot, content)
        yield from common.copy_status(snapshot, content)
        return
    if snapshot.status is not None and snapshot.status.creation_time is not None:
        yield common.report_missing(snapshot, final=True)
        return
    chosen = common.choose_class(snapshot, inputs.classes, lambda: _find_driver(snapshot, inputs))
    if isinstance(chosen, ReportError):
        yield chosen
        return
    yield from common.set_finalizers(snapshot, None, chosen.name)
    claim = inputs.claim
    try:
        volume = volume_of(snapshot, claim, inputs.volume)
        made = make_content(snapshot, chosen, volume, node=inputs.node, keep_mode=settings.keep_mode)
    except (InvalidSnapshotSource, InvalidSnapshotClass, InvalidTemplate) as error:
        yield common.report_creation_failure(snapshot, error)
        return
    assert claim is not None
    if snapshots.CLAIM_AS_SOURCE not in claim.metadata.finalizers:
        if claim.is_deleting:
            why = f"cannot add finalizer on claim {claim.name} because it is being deleted"
            yield common.report_creation_failure(snapshot, why)
            return
        yield AddClaimFinalizer()
    yield from common.create_content(snapshot, made)


def _find_driver(snapshot: VolumeSnapshot, inputs: SnapshotInputs) -> str:
    source = volume_of(snapshot, inputs.claim, inputs.volume).spec.csi
    assert source is not None
    return source.driver


# --- a member of a group: its content was created with it


def _join(snapshot: VolumeSnapshot, inputs: SnapshotInputs) -> Iterator[Step | CommonStep]:
    content = inputs.content
    if content is None or not snapshots.is_bound_to(content, snapshot):
        yield Wait(WaitReason.GROUP_MEMBER_WITHOUT_CONTENT, WaitData(names=(snapshot.key,)))
        return
    yield from common.set_finalizers(snapshot, content)
    yield from common.copy_status(snapshot, content, group=inputs.group)


# --- deletion


def _delete(snapshot: VolumeSnapshot, inputs: SnapshotInputs) -> Iterator[Step | CommonStep]:
    ours = (snapshots.AS_SOURCE, snapshots.BOUND, snapshots.IN_GROUP)
    if not any(f in snapshot.metadata.finalizers for f in ours):
        return
    content = common.own_content(snapshot, inputs.content)
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
    yield from common.delete_content(content)
    is_deleted_with_snapshot = common.is_deleted_with_snapshot(content)
    # Keep the claim only while the driver may still copy it; the deletion of the content wakes us then.
    if _keeps_claim(inputs) and not (is_deleted_with_snapshot and _is_being_taken(content)):
        yield RemoveClaimFinalizer()
    yield from common.remove_finalizers(snapshot, ours, content)
    if content is not None and is_deleted_with_snapshot:
        yield Wait(WaitReason.CONTENT_DELETION, WaitData(names=(content.name,)))


def _is_being_taken(content: AnyContent | None) -> bool:
    return content is not None and snapshots.BEING_CREATED in content.metadata.annotations
