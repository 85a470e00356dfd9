"""The disk of an iscsi volume, and its record on the node.

A record is written before the first call of `iscsiadm` and removed after the last one, so that a crash leaves
no session without one. CHAP secrets are not in it.
"""

from __future__ import annotations

import hashlib
import logging
import os

import msgspec
from msgspec import Struct

from volplane.api.core import ISCSIPersistentVolumeSource, ISCSIVolumeSource, PersistentVolume, Volume
from volplane.base import failpoint
from volplane.base.files import atomic_write, remove_with_leftovers
from volplane.volumes.base import UncertainProgressError, VolumeOperationError

log = logging.getLogger(__name__)

PLUGIN = "kubernetes.io/iscsi"
DEFAULT_PORT, DEFAULT_INTERFACE = 3260, "default"
SUFFIX = ".json"

IscsiSource = ISCSIVolumeSource | ISCSIPersistentVolumeSource


class IscsiDisk(Struct, frozen=True):
    portals: tuple[str, ...]  # with ports; the first one names the volume
    iqn: str
    lun: int
    interface: str
    configured_interface: str  # differs if an interface is cloned for an initiator name
    initiator_name: str = ""
    block: bool = False  # of volumeMode Block: pods get the device

    @property
    def unique_name(self) -> str:
        return f"{PLUGIN}/{self}"

    @property
    def directory(self) -> str:
        """Where the disk is mounted, below the plugin's directory."""
        return f"iface-{self.interface}/{self.portals[0]}-{self.iqn}-lun-{self.lun}"

    def __str__(self) -> str:
        return f"{self.portals[0]}:{self.iqn}:{self.lun}"


def find_source(source: Volume, volume: PersistentVolume | None) -> IscsiSource | None:
    return volume.spec.iscsi if volume is not None else source.iscsi


def build_disk(source: IscsiSource, volume: str, *, block: bool = False) -> IscsiDisk:
    """`volume`: the name of the PersistentVolume, or of the pod's volume."""
    portals = tuple(dict.fromkeys(map(_with_port, (source.target_portal, *source.portals))))
    configured = source.iscsi_interface or DEFAULT_INTERFACE
    initiator = source.initiator_name or ""
    interface = f"{portals[0]}:{volume}" if initiator else configured
    return IscsiDisk(portals, source.iqn, source.lun, interface, configured, initiator, block)


def check_disk(disk: IscsiDisk) -> None:
    """The values are parts of paths and arguments. Raises VolumeOperationError."""
    values = [("targetPortal or portals", portal) for portal in disk.portals]
    values += [("iqn", disk.iqn), ("iscsiInterface", disk.configured_interface)]
    for field, value in values:
        if not value or value.startswith(("-", ":")) or any(c == "/" or c.isspace() for c in value):
            raise VolumeOperationError(
                f'{field} "{value}" is empty, begins with "-" or ":", or contains "/" or a space'
            )


def _with_port(portal: str) -> str:
    has_port = ":" in portal and not portal.endswith("]")
    return portal if has_port else f"{portal}:{DEFAULT_PORT}"


# --- records


def write_record(directory: str, disk: IscsiDisk) -> None:
    os.makedirs(directory, 0o750, exist_ok=True)
    with failpoint.around("file:iscsi:write"):
        atomic_write(_path(directory, disk.unique_name), msgspec.json.encode(disk), durable=True)


def read_record(directory: str, unique_name: str) -> IscsiDisk | None:
    """None if there is none. Raises UncertainProgressError for one that cannot be decoded."""
    return _read(_path(directory, unique_name))


def remove_record(directory: str, disk: IscsiDisk) -> None:
    with failpoint.around("file:iscsi:remove"):
        remove_with_leftovers(_path(directory, disk.unique_name))


def list_records(directory: str) -> list[IscsiDisk]:
    """Every disk that may be logged in to."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    found: list[IscsiDisk] = []
    for name in names:
        try:
            disk = _read(f"{directory}/{name}") if name.endswith(SUFFIX) else None
        except UncertainProgressError as error:
            log.warning("%s; the volume may be mounted and is left as it is", error)
            continue
        found += [disk] if disk is not None else []
    return found


def _path(directory: str, unique_name: str) -> str:
    """By a hash: an IQN alone may be almost as long as a file name can be."""
    return f"{directory}/{hashlib.sha256(unique_name.encode()).hexdigest()}{SUFFIX}"


def _read(path: str) -> IscsiDisk | None:
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=IscsiDisk)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise UncertainProgressError(f"cannot read the record of an iscsi volume, {path}: {error}") from error
