"""The steps that snapshots and group snapshots share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from volplane.rules.snapshots import AnyContent


class SetFinalizers(Struct, frozen=True):
    """Set the finalizers, and the class if it was missing."""

    finalizers: tuple[str, ...]
    class_name: str | None = None


class CreateContent(Struct, frozen=True):
    content: AnyContent


class AddContentFinalizer(Struct, frozen=True):
    """Keep the content until its snapshotter has deleted the snapshot."""

    content: AnyContent
    finalizers: tuple[str, ...]


class BindContent(Struct, frozen=True):
    """Write the uid of the snapshot into a pre-provisioned content."""


class CopyStatus(Struct, frozen=True):
    """Copy the status of the content to the snapshot."""

    status: Mapping[str, Any]


class ReportError(Struct, frozen=True):
    """Write an error into the status, with an event."""

    reason: str
    message: str
    unready: bool = True
    final: bool = False  # not retried: only a change of an object helps


class AnnotateBeingDeleted(Struct, frozen=True):
    """Tell the snapshotter of the content that its snapshot is being deleted."""


class DeleteContent(Struct, frozen=True):
    """Delete the content of a snapshot that is being deleted."""


SnapshotStep = (
    SetFinalizers
    | CreateContent
    | BindContent
    | CopyStatus
    | ReportError
    | AnnotateBeingDeleted
    | DeleteContent
)
