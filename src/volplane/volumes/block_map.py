"""The device of one pod's raw block volume: held open, and linked for the container.

The device is bind-mounted onto a file of the pod (the *global map*), and a loop device keeps that file open:
the disk cannot be detached, nor its name reused, while a container has it. A pod whose claim is read-only
gets a read-only loop device: a device node itself cannot refuse writes. Blocking: plugins call it in threads.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from msgspec import Struct

from volplane.host import devices, mounts
from volplane.volumes.base import UncertainProgressError, remove_empty_directories


class BlockPaths(Struct, frozen=True):
    """The paths of one pod's block volume on this machine."""

    map: str  # where the device is bind-mounted
    link: str  # what the container gets


def create_map_file(maps: BlockPaths) -> None:
    os.makedirs(os.path.dirname(maps.map), 0o750, exist_ok=True)
    if not os.path.lexists(maps.map):
        os.close(os.open(maps.map, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o640))


def remove_map_file(maps: BlockPaths) -> None:
    """After the device was unmapped."""
    remove_unmounted(maps.map)
    plugin = os.path.dirname(maps.link)
    remove_empty_directories(plugin, os.path.dirname(plugin))


def remove_unmounted(path: str) -> None:
    """Remove a file or an empty directory. Never through a mount: raises UncertainProgressError."""
    if mounts.is_mount(path):
        raise UncertainProgressError(f"{path} is still a mount point")
    with suppress(FileNotFoundError):
        os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def map_device(published: str, maps: BlockPaths, *, readonly: bool) -> None:
    """Map a device, or a link to one. Raises OSError."""
    device = os.path.realpath(published)
    number = _number(device)
    if number is None:
        raise OSError(f"{device} is not a block device")
    if mounts.is_mount(maps.map) and _number(maps.map) != number:
        _release(maps.map)  # of an earlier attachment: the name may be another disk's by now
    if not mounts.is_mount(maps.map):
        mounts.bind(device, maps.map, readonly=False, recursive=False)
    loop = devices.loop_attach(maps.map, readonly=readonly)
    _replace_link(loop if readonly else device, maps.link)


def _number(path: str) -> int | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_rdev if stat.S_ISBLK(found.st_mode) else None


def _replace_link(target: str, link: str) -> None:
    if os.path.islink(link) and os.readlink(link) == target:
        return
    os.makedirs(os.path.dirname(link), 0o750, exist_ok=True)
    temporary = f"{link}.new"
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    os.symlink(target, temporary)
    os.replace(temporary, link)


def unmap_device(maps: BlockPaths) -> None:
    with suppress(FileNotFoundError):
        os.unlink(maps.link)
    _release(maps.map)


def _release(path: str) -> None:
    for device, backing in devices.loops().items():
        if backing == os.path.realpath(path):
            devices.loop_detach(device, path)
    while mounts.is_mount(path) and mounts.unmount(path):
        pass


def list_directory(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
