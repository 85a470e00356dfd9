"""Recovery after a start: what must be done so that the machine matches the records again.

The intent of an operation is stored before its effect, so every unfinished operation is recognised by its
state. The result of an attach or detach is stored later than it is answered: a restart carries the intent out
again, and comes to the same result. A creation is undone, because no client has got the volume's id yet; that
of a blank disk has no intent, only a file without a record. Everything else is finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from msgspec import Struct

from volplane.cloud.model import AttachmentState, CloudSnapshot, CloudVolume, SnapshotState, VolumeState


class DeleteDisk(Struct, frozen=True):
    """Remove the file and the record."""


class AttachDisk(Struct, frozen=True):
    """Attach the loop device and create the links that the record names."""

    instance: str


class DetachDisk(Struct, frozen=True):
    """Remove the links and, if no instance has the disk any more, detach the loop device; a disk in use
    stays attached.
    """

    instance: str


class UnbindDisk(Struct, frozen=True):
    """Detach a loop device that belongs to no attachment."""


class FinishCopy(Struct, frozen=True):
    """Copy the snapshot again: a client waits for the volume."""


class RecreateFile(Struct, frozen=True):
    """Create the file again, empty: nothing was ever written to it."""


class MarkLost(Struct, frozen=True):
    """Set the state error: the file, or a part of it, is lost."""


class MarkRecovered(Struct, frozen=True):
    """Clear the error: the file of a lost volume is back."""


Step: TypeAlias = (
    DeleteDisk | AttachDisk | DetachDisk | UnbindDisk | RecreateFile | FinishCopy | MarkLost | MarkRecovered
)


def plan(volume: CloudVolume, *, has_file: bool, bound: bool, blank: bool = False) -> Iterator[Step]:
    """`has_file`: the file has its full size; `blank`: it is shorter, and has no data."""
    if volume.state is VolumeState.CREATING and volume.id_returned:
        # A snapshot has not changed and can be copied again; a source volume may have.
        yield FinishCopy() if volume.snapshot else MarkLost()
        return
    if volume.state in (VolumeState.CREATING, VolumeState.DELETING):
        # The intent was written; the file may exist, in part, or not.
        if bound:
            yield UnbindDisk()
        yield DeleteDisk()
        return
    if not has_file:
        # A power loss may lose the size of a file that was never synced, but not synced data.
        if volume.used and not blank:
            yield MarkLost()
            return
        yield RecreateFile()
    elif volume.lost:
        yield MarkRecovered()
    if not volume.attachments and bound:  # killed between the effect and the result of a detach
        yield UnbindDisk()
    leaving = [a.instance for a in volume.attachments if a.state is AttachmentState.DETACHING]
    yield from (AttachDisk(a.instance) for a in volume.attachments if a.instance not in leaving)
    yield from map(DetachDisk, leaving)


def plan_snapshot(snapshot: CloudSnapshot, *, has_file: bool) -> Iterator[Step]:
    if snapshot.deleting:
        yield DeleteDisk()
    elif snapshot.state is SnapshotState.PENDING:
        if not snapshot.id_returned:
            yield DeleteDisk()
        elif snapshot.source:  # a snapshot never changes: its copy can be repeated
            yield FinishCopy()
        else:  # the disk may have changed since: the client that got the id gets an error
            yield MarkLost()
    elif snapshot.state is SnapshotState.COMPLETED and not has_file:
        yield MarkLost()
