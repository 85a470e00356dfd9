"""Access modes: what a volume offers, what a claim requests, and whether several nodes may attach the disk.

A volume without access modes is not exclusive. Only a volume whose modes are known, and all of them for a
single node, is kept from a second node.
"""

from __future__ import annotations

from volplane.api.core import PersistentVolume, PersistentVolumeClaim

ONCE = "ReadWriteOnce"
ONCE_POD = "ReadWriteOncePod"
READ_MANY = "ReadOnlyMany"
WRITE_MANY = "ReadWriteMany"


def missing_modes(volume: PersistentVolume, claim: PersistentVolumeClaim) -> tuple[str, ...]:
    """The modes that the claim requests and the volume does not offer."""
    return tuple(mode for mode in claim.spec.access_modes if mode not in volume.spec.access_modes)


def is_shareable(volume: PersistentVolume | None) -> bool:
    """Whether several nodes may attach it at once; True if its modes are not known."""
    if volume is None or not volume.spec.access_modes:
        return True
    return WRITE_MANY in volume.spec.access_modes or READ_MANY in volume.spec.access_modes


def is_for_one_pod(claim: PersistentVolumeClaim) -> bool:
    return ONCE_POD in claim.spec.access_modes
