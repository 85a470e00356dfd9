"""Records of the volumes that a kubelet attaches itself (--enable-controller-attach-detach=false).

A record is written before `attach` is called and removed after `detach` has succeeded, so that a crash
leaves no attached volume without one. If it is not marked as attached, the outcome of `attach` is not known.
"""

from __future__ import annotations

import logging
import os

import msgspec
from msgspec import Struct

from volplane.base import failpoint
from volplane.base.files import atomic_write, remove_with_leftovers

log = logging.getLogger(__name__)

SUFFIX = ".json"


class AttachRecord(Struct, frozen=True):
    attached: bool = False  # False: `attach` was about to be called
    device: str = ""


def read(directory: str, name: str) -> AttachRecord | None:
    """None if there is none. One that cannot be decoded tells no more than that `attach` was called."""
    path = f"{directory}/{name}{SUFFIX}"
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=AttachRecord)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        log.warning("%s: %s; the volume is attached again", path, error)
        return AttachRecord()


def write(directory: str, name: str, record: AttachRecord) -> None:
    os.makedirs(directory, 0o750, exist_ok=True)
    with failpoint.around("file:flexvolume_attached:write"):
        atomic_write(f"{directory}/{name}{SUFFIX}", msgspec.json.encode(record), durable=True)


def remove(directory: str, name: str) -> None:
    with failpoint.around("file:flexvolume_attached:remove"):
        remove_with_leftovers(f"{directory}/{name}{SUFFIX}")


def list_names(directory: str) -> list[str]:
    """The volumes that have a record."""
    try:
        found = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    return [name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX) and not name.startswith(".")]
