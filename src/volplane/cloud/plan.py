"""After a start: what must be done so that the machine agrees with the ledger again.

The ledger was written before each effect and after it, so every half-done operation is recognised by its
state and carried to an end. Creation goes back (nobody has heard of the volume yet), everything else goes
forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from msgspec import Struct

from volplane.cloud.model import AttachmentState, CloudSnapshot, CloudVolume, SnapshotState, VolumeState


class DeleteDisk(Struct, frozen=True):
    """Remove the file and the record."""


class AttachDisk(Struct, frozen=True):
    """Bind and link; the record says where."""


class DetachDisk(Struct, frozen=True):
    """Unlink and unbind, if nobody uses it; else it stays attached."""


class UnbindDisk(Struct, frozen=True):
    """A loop device that nothing accounts for."""


class FinishCopy(Struct, frozen=True):
    """Make the copy again: its maker waits for it."""


class RecreateFile(Struct, frozen=True):
    """The file again, empty: nothing was ever written to it."""


class MarkLost(Struct, frozen=True):
    """The file is gone, or a part of it, and held data: say so."""


class MarkRecovered(Struct, frozen=True):
    """The file of a lost volume is back: it can be used again."""


Step: TypeAlias = (
    DeleteDisk | AttachDisk | DetachDisk | UnbindDisk | RecreateFile | FinishCopy | MarkLost | MarkRecovered
)


def plan(volume: CloudVolume, *, has_file: bool, bound: bool, blank: bool = False) -> Iterator[Step]:
    """`has_file`: all of it; `blank`: a part of it, but without any data."""
    if volume.state is VolumeState.CREATING and volume.told:
        # A snapshot is still what it was; the disk that a copy was made of has gone on living.
        yield FinishCopy() if volume.snapshot else MarkLost()
        return
    if volume.state in (VolumeState.CREATING, VolumeState.DELETING):
        # The intent was stored; the file may be there, in part or no more.
        if bound:
            yield UnbindDisk()
        yield DeleteDisk()
        return
    if not has_file:
        # A power cut may take the size of a file to which nothing was brought yet, but never its data.
        if volume.used and not blank:
            yield MarkLost()
            return
        yield RecreateFile()
    elif volume.lost:
        yield MarkRecovered()
    if volume.attachment is None:
        if bound:  # killed between the effect and the result of a detach that was already written down
            yield UnbindDisk()
    elif volume.attachment.state is AttachmentState.DETACHING:
        yield DetachDisk()
    else:
        yield AttachDisk()  # binding and linking again what is bound and linked changes nothing


def plan_snapshot(snapshot: CloudSnapshot, *, has_file: bool) -> Iterator[Step]:
    if snapshot.deleting:
        yield DeleteDisk()
    elif snapshot.state is SnapshotState.PENDING:
        # Its moment has passed. Who has heard of it learns that it failed.
        yield MarkLost() if snapshot.told else DeleteDisk()
    elif snapshot.state is SnapshotState.COMPLETED and not has_file:
        yield MarkLost()
