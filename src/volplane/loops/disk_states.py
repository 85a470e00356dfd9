"""The disks of the disk service, as its role reports them."""

from __future__ import annotations

from msgspec import Struct


class DiskState(Struct, frozen=True, omit_defaults=True):
    """One disk, and the node it is attached to."""

    id: str  # the volume handle of its PersistentVolume
    zone: str
    size: int  # GiB
    type: str
    state: str  # as in EC2: creating, available, in-use, …
    node: str = ""  # its instance's name, or the instance's id
    device: str = ""
    attachment: str = ""  # attaching, attached, detaching
