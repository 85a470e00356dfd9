"""What the plans for snapshots and for group snapshots have in common: class, content, status, finalizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from volplane.api import quantity
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotContent
from volplane.controllers.snapshot.content import InvalidSnapshotSource
from volplane.controllers.snapshot.steps import (
    AddContentFinalizer,
    AnnotateBeingDeleted,
    BindContent,
    CopyStatus,
    CreateContent,
    DeleteContent,
    ReportError,
    SetFinalizers,
)
from volplane.rules import sizes, snapshots
from volplane.rules.snapshots import AnyContent, AnySnapshot, AnySnapshotClass
from volplane.rules.steps import RecordEvent, normal

# --- is it the right content?


def report_missing(snapshot: AnySnapshot, *, final: bool = False) -> ReportError:
    kind = snapshots.kind_of(snapshot)
    return ReportError(f"{kind.reason}ContentMissing", f"{kind.kind}Content is missing", final=final)


def find_dynamic_mismatch(snapshot: AnySnapshot, content: AnyContent) -> ReportError | None:
    """What is wrong with the content of a snapshot that is to be taken."""
    kind = snapshots.kind_of(snapshot)
    if not snapshots.volume_handles(content):
        which = "is pre-provisioned while expecting a dynamically provisioned one"
        return ReportError(f"{kind.reason}ContentMismatch", f"{kind.kind}Content {content.name} {which}")
    return None if snapshots.is_bound_to(content, snapshot) else _report_misbound(snapshot, content)


def _report_misbound(snapshot: AnySnapshot, content: AnyContent) -> ReportError:
    kind = snapshots.kind_of(snapshot)
    message = f"{kind.kind}Content [{content.name}] is bound to a different {kind.noun}"
    return ReportError(f"{kind.reason}ContentMisbound", message)


def bind_existing(
    snapshot: AnySnapshot, content: AnyContent | None
) -> Iterator[SetFinalizers | BindContent | CopyStatus | ReportError | RecordEvent]:
    """Bind a snapshot to the pre-provisioned content that it names."""
    kind = snapshots.kind_of(snapshot)
    if content is None:
        yield report_missing(snapshot)
    elif not snapshots.is_preprovisioned(content):
        which = "is dynamically provisioned while expecting a pre-provisioned one"
        yield ReportError(f"{kind.reason}ContentMismatch", f"{kind.kind}Content {which}")
    elif not snapshots.is_for(content, snapshot):
        yield _report_misbound(snapshot, content)
    else:
        yield from set_finalizers(snapshot, content)
        lacks_class = snapshots.class_name(snapshot) is not None and snapshots.class_name(content) is None
        if not snapshots.snapshot_ref(content).uid or lacks_class:
            yield BindContent()
        yield from copy_status(snapshot, content)


def verify(snapshot: AnySnapshot, content: AnyContent | None) -> Iterator[SetFinalizers | ReportError]:
    """Check that a ready snapshot still has its content."""
    kind = snapshots.kind_of(snapshot)
    if content is None:
        yield report_missing(snapshot, final=True)
    elif not snapshots.is_bound_to(content, snapshot):
        message = f"{kind.kind}Content is not bound to the {kind.kind} correctly"
        yield ReportError(f"{kind.reason}Misbound", message, final=True)
    else:
        yield from set_finalizers(snapshot, content)


# --- a new content


def choose_class(
    snapshot: AnySnapshot, classes: Mapping[str, AnySnapshotClass], find_driver: Callable[[], str]
) -> AnySnapshotClass | ReportError:
    """The class that the snapshot names, else the only default class of the driver."""
    kind = snapshots.kind_of(snapshot)
    if (name := snapshots.class_name(snapshot)) is not None:
        found = classes.get(name)
        if found is None:
            why = f'{kind.class_resource} "{name}" not found'
            message = f"{kind.failed} to get {kind.noun} class with error {why}"
            return ReportError(f"Get{kind.reason}ClassFailed", message, unready=False)
        return found
    try:
        candidates = snapshots.defaults(classes.values(), find_driver())
        if len(candidates) == 1:
            return candidates[0]
        why = (
            f"{len(candidates)} default snapshot classes were found"
            if candidates
            else f"cannot find default {kind.noun} class"
        )
    except InvalidSnapshotSource as error:
        why = str(error)
    message = f"Failed to set default {kind.noun} class with error {why}"
    return ReportError(f"SetDefault{kind.reason}ClassFailed", message, unready=False)


def report_creation_failure(snapshot: AnySnapshot, error: Exception | str) -> ReportError:
    kind = snapshots.kind_of(snapshot)
    message = f"{kind.failed} to create {kind.noun} content with error {error}"
    return ReportError(f"{kind.reason}ContentCreationFailed", message)


def create_content(
    snapshot: AnySnapshot, content: AnyContent
) -> Iterator[CreateContent | CopyStatus | RecordEvent]:
    kind = snapshots.kind_of(snapshot)
    yield CreateContent(content)
    message = f"Waiting for a {kind.noun} {snapshot.key} to be created by the CSI driver."
    yield normal(f"Creating{kind.reason}", message)
    yield from copy_status(snapshot, content)


def plan_content(content: AnyContent) -> Iterator[AddContentFinalizer]:
    """A content that is bound to a snapshot is kept until its snapshotter has deleted the snapshot."""
    if not snapshots.snapshot_ref(content).uid or content.is_deleting:
        return
    have, finalizer = content.metadata.finalizers, snapshots.kind_of(content).content_finalizer
    if finalizer not in have:
        yield AddContentFinalizer(content, (*have, finalizer))


# --- finalizers and status


def set_finalizers(
    snapshot: AnySnapshot, content: AnyContent | None, class_name: str | None = None
) -> Iterator[SetFinalizers]:
    """Add missing finalizers; the one for a bound content only if the content goes with the snapshot."""
    kind = snapshots.kind_of(snapshot)
    wanted = [*kind.source_finalizers, *([kind.bound_finalizer] if is_deleted_with_snapshot(content) else [])]
    have = snapshot.metadata.finalizers
    missing = [f for f in wanted if f not in have]
    chosen = class_name if snapshots.class_name(snapshot) is None else None
    if missing or chosen is not None:
        yield SetFinalizers((*have, *missing), chosen)


def is_deleted_with_snapshot(content: AnyContent | None) -> bool:
    """The content is deleted with its snapshot."""
    return content is not None and content.spec.deletion_policy == snapshots.DELETE


def copy_status(
    snapshot: AnySnapshot, content: AnyContent, *, group: str = ""
) -> Iterator[CopyStatus | RecordEvent]:
    """`group` is the group snapshot that the snapshot is part of."""
    reason = snapshots.kind_of(snapshot).reason
    status = status_changes(snapshot, content)
    if isinstance(snapshot, VolumeSnapshot) and group and not _group_name(snapshot):
        status["volumeGroupSnapshotName"] = group
    if not status:
        return
    yield CopyStatus(status)
    if "creationTime" in status:
        message = f"{reason} {snapshot.key} was successfully created by the CSI driver."
        yield normal(f"{reason}Created", message)
    if status.get("readyToUse") is True:
        yield normal(f"{reason}Ready", f"{reason} {snapshot.key} is ready to use.")


def _group_name(snapshot: VolumeSnapshot) -> str | None:
    return snapshot.status.volume_group_snapshot_name if snapshot.status is not None else None


def status_changes(snapshot: AnySnapshot, content: AnyContent) -> dict[str, Any]:
    """What the snapshot's status lacks of its content's. Size and time are set once."""
    now, there, ready = snapshot.status, content.status, snapshots.is_ready(content)
    status: dict[str, Any] = {}
    if not snapshots.bound_name(snapshot):
        status[snapshots.kind_of(snapshot).bound_field] = content.name
    if now is None or now.ready_to_use is not ready:
        status["readyToUse"] = ready
    old = now.error if now is not None else None
    new = there.error if there is not None and not ready else None
    if (old and (old.time, old.message)) != (new and (new.time, new.message)):
        status["error"] = {"time": new.time, "message": new.message} if new is not None else None
    created = there.creation_time if there is not None else None
    if created is not None and (now is None or now.creation_time is None):
        status["creationTime"] = created if isinstance(created, str) else snapshots.stamp(created)
    if isinstance(snapshot, VolumeSnapshot) and isinstance(content, VolumeSnapshotContent):
        status |= _restore_size_change(snapshot, content)
    return status


def _restore_size_change(snapshot: VolumeSnapshot, content: VolumeSnapshotContent) -> dict[str, str]:
    size = content.status.restore_size if content.status is not None else None
    now = snapshot.status.restore_size if snapshot.status is not None else None
    if size is not None and (now is None or (size and not quantity.value(now))):
        return {"restoreSize": sizes.format_size(size)}
    return {}


# --- deletion


def own_content(snapshot: AnySnapshot, content: AnyContent | None) -> AnyContent | None:
    """The content, unless it is bound to another snapshot: then it is left alone."""
    return content if content is not None and snapshots.is_bound_to(content, snapshot) else None


def delete_content(content: AnyContent | None) -> Iterator[AnnotateBeingDeleted | DeleteContent]:
    if content is None:
        return
    if snapshots.kind_of(content).being_deleted not in content.metadata.annotations:
        yield AnnotateBeingDeleted()
    if is_deleted_with_snapshot(content) and not content.is_deleting:
        yield DeleteContent()


def remove_finalizers(
    snapshot: AnySnapshot, ours: tuple[str, ...], content: AnyContent | None
) -> Iterator[SetFinalizers]:
    """A snapshot that takes its content along keeps its finalizer until the content is gone."""
    bound = snapshots.kind_of(snapshot).bound_finalizer
    have = snapshot.metadata.finalizers
    kept = tuple(f for f in have if f not in ours or (f == bound and is_deleted_with_snapshot(content)))
    if kept != have:
        yield SetFinalizers(kept)
