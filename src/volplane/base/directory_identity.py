"""Recognize a data directory that is a copy of another one.

The files of a copy name the processes, networks and devices of the original. So a directory records its own
inode, which a copy does not share and which stays the same when the directory is moved or renamed. The device
number may change at every boot and is compared only within one boot. The root directories of all ext4 file
systems have the same inode, so the id of the file system is compared too, where it is stable.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import msgspec
from msgspec import Struct

from volplane.base.files import atomic_write, set_aside

NAME = "directory.json"
EXT, BTRFS = 0xEF53, 0x9123683E  # file system types, as statfs(2) numbers them

_libc = ctypes.CDLL(None)


class DirectoryIdentity(Struct, frozen=True):
    """Where a directory was when it was last used."""

    inode: int
    device: int
    boot: str
    path: str
    filesystem: int = 0  # id of the file system; 0: unknown

    def is_same_directory(self, other: DirectoryIdentity) -> bool:
        same_device = self.device == other.device or self.boot != other.boot
        same_filesystem = self.filesystem == other.filesystem or not (self.filesystem and other.filesystem)
        return self.inode == other.inode and same_device and same_filesystem


class DirectoryOrigin(Struct, frozen=True):
    is_copy: bool = False  # the files were written in another directory
    original: str = ""  # that directory, if it still exists


def claim_directory(directory: str, forget: Callable[[DirectoryOrigin], None]) -> DirectoryOrigin:
    """Find out whether the directory is a copy, and record its identity.

    `forget` removes from a copy what belongs to the original. If the process is killed meanwhile, the next
    start calls it again. The caller holds the lock of the directory. Raises OSError.
    """
    path = os.path.join(directory, NAME)
    here, known = _identify(directory), _read(path)
    if known == here:
        return DirectoryOrigin()
    found = DirectoryOrigin()
    if known is not None and not known.is_same_directory(here):
        found = DirectoryOrigin(is_copy=True, original=known.path if _is_still_there(known) else "")
        forget(found)
    atomic_write(path, msgspec.json.encode(here), durable=True)
    return found


def _identify(directory: str) -> DirectoryIdentity:
    there = os.stat(directory)
    path = os.path.realpath(directory)
    return DirectoryIdentity(there.st_ino, there.st_dev, boot_id(), path, _filesystem(directory))


def _filesystem(directory: str) -> int:
    """The id of the file system if it is derived from its UUID, else 0.

    XFS and others derive it from the device number, which may change at a boot: a directory would then look
    like a copy.
    """
    found = ctypes.create_string_buffer(256)  # struct statfs, which begins with the type
    if _libc.statfs(os.fsencode(directory), found) != 0:
        return 0
    kind = ctypes.c_long.from_buffer(found).value & 0xFFFFFFFF
    return os.statvfs(directory).f_fsid if kind in (EXT, BTRFS) else 0


def _is_still_there(place: DirectoryIdentity) -> bool:
    try:
        return place.is_same_directory(_identify(place.path))
    except OSError:
        return False


def _read(path: str) -> DirectoryIdentity | None:
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=DirectoryIdentity)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        set_aside(path, error)
        return None


def boot_id() -> str:
    """A different value after each boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
