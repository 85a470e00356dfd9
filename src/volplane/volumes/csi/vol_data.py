"""vol_data.json: what is needed to unmount a volume after a restart. Written before the RPC it belongs to."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping

from volplane.api import names
from volplane.base import failpoint
from volplane.base.files import atomic_write, remove_with_leftovers, set_aside
from volplane.host import mounts
from volplane.volumes.base import VolumeOperationError, make_directory, remove_empty_directories

log = logging.getLogger(__name__)

Data = Mapping[str, str]


class UnreadableVolData(VolumeOperationError):
    """The file exists but cannot be decoded: nothing is deleted on that basis."""


def read(path: str) -> Data | None:
    """None if the file does not exist."""
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UnreadableVolData(f"failed to read volume data {path}: {error}") from error
    if not isinstance(data, dict) or not all(isinstance(v, str) for v in data.values()):
        raise UnreadableVolData(f"failed to read volume data {path}: not a map of strings")
    return data


def read_leftover(path: str, *targets: str) -> Data | None:
    """`read` after a restart: a file that cannot be decoded is removed if nothing is mounted at `targets`.

    A power loss ends all mounts, and may empty a file that was just written.
    """
    try:
        return read(path)
    except UnreadableVolData as error:
        if any(map(mounts.is_mount, targets)):
            raise
        if os.path.isdir(path):
            set_aside(path, error)
            return None
        log.warning("%s; nothing is mounted there: file removed", error)
        remove(path)
        return None


def unique_name_from(known: Data, path: str) -> str:
    """The unique name of the volume on this node."""
    try:
        return names.csi_volume_name(known["driverName"], known["volumeHandle"])
    except KeyError as error:
        raise UnreadableVolData(f"failed to read volume data {path}: no {error}") from error


def save(path: str, data: Data) -> None:
    with failpoint.around("file:vol_data:write"):
        atomic_write(path, json.dumps(data, separators=(",", ":")).encode() + b"\n", 0o600)


def prepare(directory: str, path: str, data: Data, mode: int = 0o750) -> None:
    make_directory(directory, mode)
    save(path, data)


def remove(path: str) -> None:
    with failpoint.around("file:vol_data:remove"):
        remove_with_leftovers(path)


def find_staged(directory: str) -> list[Data]:
    """The metadata of every staged volume, below `plugins/kubernetes.io/csi/<driver>/<hash>/`."""
    found = []
    for driver in _directories(directory):
        for volume in _directories(driver):
            try:
                data = read_leftover(
                    os.path.join(volume, "vol_data.json"), os.path.join(volume, "globalmount")
                )
            except UnreadableVolData as error:
                log.warning("%s; the volume may be mounted and is left as it is", error)
                continue
            if data is not None and data.get("driverName") and data.get("volumeHandle"):
                found.append(data)
    return found


def remove_empty_staging(directory: str) -> None:
    """Remove staging directories without metadata: a crash came before its write or after its removal."""
    for driver in _directories(directory):
        for volume in _directories(driver):
            metadata = os.path.join(volume, "vol_data.json")
            if not os.path.lexists(metadata):
                remove_empty_directories(os.path.join(volume, "globalmount"))
                remove_with_leftovers(metadata)
                remove_empty_directories(volume, driver)


def _directories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [e.path for e in entries if e.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
