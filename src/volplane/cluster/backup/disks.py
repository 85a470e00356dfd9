"""Copy disks into an archive, each as of one moment, while pods may write to them.

If the file system can share blocks, each disk is cloned first, which is atomic. Otherwise its data is copied,
and copied again if the disk was written meanwhile, as the kernel's counters show. If that happens too often,
the file system on the disk is frozen during one copy (decision 16 does the same for snapshots).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec import Struct

from volplane.base import failpoint
from volplane.cloud.disks import list_filesystems
from volplane.cluster.backup.errors import BackupError
from volplane.cluster.backup.writer import ArchiveWriter
from volplane.host import copies, devices
from volplane.host.freeze_guard import freeze_guarded

TRIES = 3  # copies of a disk that is being written


class OpenImage(Struct):
    """A disk or snapshot. The open file outlives its name: the volume may be deleted during the backup."""

    name: str  # in the archive
    path: str
    descriptor: int
    is_fixed: bool = False  # nothing writes to it

    @property
    def allocated_bytes(self) -> int:
        return os.fstat(self.descriptor).st_blocks * 512


class DiskActivity(Struct, frozen=True):
    """What changes when a disk is written to, attached, grown or detached."""

    device: str
    counters: tuple[int, ...]
    size: int
    modified: int
    changed: int

    @property
    def has_writes_in_flight(self) -> bool:
        return bool(self.counters) and bool(self.counters[-1])


def open_images(directory: Path, prefix: str, stack: ExitStack, *, is_fixed: bool) -> Iterator[OpenImage]:
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(directory)):
            path = str(directory / name)
            if name.endswith(".img") and not os.path.islink(path):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                stack.callback(os.close, descriptor)
                yield OpenImage(f"{prefix}/{name}", path, descriptor, is_fixed)


def map_loop_devices() -> dict[str, str]:
    """Backing file → loop device."""
    return {file.removesuffix(devices.DELETED): device for device, file in devices.loops().items()}


def clone_images(images: list[OpenImage], stack: ExitStack) -> None:
    """Replace disks by clones that nothing writes to, if the file system can share blocks."""
    bound = map_loop_devices()
    for image in images:
        if image.is_fixed:
            continue
        _sync(bound.get(image.path, ""))
        if (clone := _clone(image)) is None:
            return
        stack.callback(os.close, clone)
        image.descriptor, image.is_fixed = clone, True


def _clone(image: OpenImage) -> int | None:
    try:
        clone = os.open(os.path.dirname(image.path), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    if copies.reflink(image.descriptor, clone):
        return clone
    os.close(clone)
    return None


def add_disk(archive: ArchiveWriter, image: OpenImage) -> None:
    """Add a disk as of one moment. Raises BackupError if it is written all the time and cannot be frozen."""
    if image.is_fixed:
        if not archive.add_file(image.name, image.descriptor):
            raise BackupError(f"{image.path} became shorter while it was read")
        return
    for _ in range(TRIES):
        _sync(device := _device_of(image))  # it may have been attached since the backup began
        before = _read_activity(image, device)
        if archive.add_file(image.name, image.descriptor, is_unchanged=_compare(image, device, before)):
            return
    if not (device := _device_of(image)) or not (mounted := list_filesystems(device)):
        raise BackupError(
            f"{image.path} is written all the time, and has no mounted file system that can be frozen:"
            " stop the pod that uses it, or leave out --disks"
        )
    with freeze_guarded(mounted[0]):
        failpoint.hit("backup:frozen")
        if not archive.add_file(image.name, image.descriptor):
            raise BackupError(f"{image.path} became shorter while it was read")


def _compare(image: OpenImage, device: str, before: DiskActivity) -> Callable[[], bool]:
    def is_unchanged() -> bool:
        return not before.has_writes_in_flight and _read_activity(image, device) == before

    return is_unchanged


def _read_activity(image: OpenImage, device: str) -> DiskActivity:
    device = device if _is_bound(device, image) else ""
    found = os.fstat(image.descriptor)
    counters = copies.read_write_counters(device) if device else ()
    return DiskActivity(device, counters, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _device_of(image: OpenImage) -> str:
    return map_loop_devices().get(image.path, "")


def _is_bound(device: str, image: OpenImage) -> bool:
    return bool(device) and devices.backing_file(device).removesuffix(devices.DELETED) == image.path


def _sync(device: str) -> None:
    """Write what the machine still has in memory to the disk's file."""
    if not device:
        return
    with suppress(OSError):  # detached or unmounted meanwhile, which has written it
        if mounted := list_filesystems(device):
            # The device is not opened: while it is open, the disk service cannot detach it.
            copies.sync(mounted[0])
        else:
            copies.flush(device)
