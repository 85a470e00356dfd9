"""Sparse files, loop devices, and the links by which an instance finds its disks.

Loop devices are reused for other files, so links are created after the loop device is attached and removed
before it is detached. Besides `xvdba` there is a link with the volume's id, so that a driver formats the
right disk, and one with a name such as disks have on Nitro instances.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Container, Sequence
from contextlib import ExitStack, suppress

from msgspec import Struct

from volplane.base import clock
from volplane.base.tasks import KeyedTasks, ignore_error
from volplane.cloud.model import GIB, CloudAttachment, CloudInstance
from volplane.host import DeviceBusy, Host, MountEntry, copies, devices, mounts
from volplane.host.copies import ProgressCallback
from volplane.host.devices import DELETED
from volplane.host.files import FilesystemStats

log = logging.getLogger(__name__)

BY_ID = "disk/by-id"
_LINKS = ("xvd", "sd", "nvme")  # prefixes of our links
_NAME = re.compile(r"(?:xvd|sd)([a-z])([a-z]?)")
# Space that is never given to disks: when the machine is full, writes to all disks fail.
RESERVE = 256 << 20
ORPHANED = ".orphaned"  # suffix of a file without a record
COUNT_INTERVAL = 10.0  # seconds


class DiskImage(Struct, frozen=True):
    """A disk's file."""

    size: int
    is_blank: bool  # nothing was ever written to it


class DiskSurvey(Struct, frozen=True):
    """The disks, snapshots and loop devices that exist on the machine."""

    files: dict[str, DiskImage]  # by volume id
    snapshots: frozenset[str]
    bound: dict[str, str]  # volume id → loop device


def stable_name(volume: str) -> str:
    """The name that udev gives an EBS disk on AWS."""
    return f"nvme-Amazon_Elastic_Block_Store_{volume.replace('-', '')}"


class DiskFiles:
    def __init__(self, host: Host, directory: str) -> None:
        self._host = host
        self._directory = os.path.realpath(directory)
        self._snapshots = os.path.join(os.path.dirname(self._directory), "snapshots")
        self._written, self._count_again = 0, 0.0
        self._counting: KeyedTasks[str, FilesystemStats] = KeyedTasks(ignore_error)  # each waiter gets it
        self.shares = False  # the file system supports reflinks
        self.unusable = ""  # why no disk can be attached on this machine
        # Volume → its last loop device, which is verified before use; "" if we have left it without one. All
        # devices of the machine are searched only for volumes of an earlier process.
        self._last: dict[str, str] = {}

    async def prepare(self) -> None:
        for directory in (self._directory, self._snapshots):
            await self._host.call(os.makedirs, directory, 0o700, True)
        self.shares = await self._host.call(_can_share, self._directory, self._snapshots)
        self.unusable = await self._host.call(_describe_missing_devices)

    async def close(self) -> None:
        """Cancel what still counts; its waiters are gone."""
        await self._counting.close()

    def file(self, volume: str) -> str:
        return os.path.join(self._directory, f"{volume}.img")

    def snapshot_file(self, snapshot: str) -> str:
        return os.path.join(self._snapshots, f"{snapshot}.img")

    async def create(self, volume: str, size: int) -> None:
        await self._host.call(_create, self.file(volume), size * GIB)
        self._last[volume] = ""

    async def restore(self, volume: str, size: int) -> None:
        """Restore the size of a file without data; create it if it does not exist."""
        await self._host.call(_restore, self.file(volume), size * GIB)

    async def remove(self, volume: str) -> None:
        await self._host.call(_remove, self.file(volume))
        self._last.pop(volume, None)

    async def grow(self, volume: str, size: int) -> None:
        await self._host.call(_grow, self.file(volume), size * GIB)
        device = await self.device(volume)
        if device:
            await self._host.loop_resize(device)

    async def copy(self, source: str, volume: str) -> None:
        await self._host.call(copies.copy, source, self.file(volume))

    async def capture(self, volume: str, target: str, report: ProgressCallback) -> tuple[bool, bool]:
        """Copy a disk that may be in use: whether blocks are shared, and whether nothing was written."""
        device = await self.device(volume)
        return await self._host.call(_capture, self.file(volume), device, target, report)

    async def capture_frozen(self, volume: str, target: str, report: ProgressCallback) -> bool:
        device = await self.device(volume)
        return await self._host.call(_capture_frozen, self.file(volume), device, target, report)

    async def capture_set(self, copies: Sequence[tuple[str, str]], *, freeze: bool = False) -> bool:
        """Copy several disks (volume, target); returns whether nothing was written to them meanwhile."""
        disks = [(self.file(volume), await self.device(volume), target) for volume, target in copies]
        return await self._host.call(_capture_set, disks, freeze=freeze)

    async def thaw(self, volume: str) -> None:
        """Thaw the file system, which a killed service may have left frozen."""
        device = await self.device(volume)
        if device:
            await self._host.call(_thaw, device)

    async def count_allocated_bytes(self, volume: str) -> int:
        return await self._host.call(copies.count_allocated_bytes, self.file(volume))

    async def count_snapshot_bytes(self, snapshot: str) -> int:
        return await self._host.call(copies.count_allocated_bytes, self.snapshot_file(snapshot))

    async def copy_snapshot(self, source: str, target: str) -> None:
        await self._host.call(copies.copy, self.snapshot_file(source), self.snapshot_file(target))

    async def remove_snapshot(self, snapshot: str) -> None:
        await self._host.call(_remove, self.snapshot_file(snapshot))

    async def count_written_bytes(self) -> int:
        """Bytes that all disks use; counted at intervals, because there may be many disks."""
        now = clock.now()
        if now >= self._count_again:
            self._count_again = now + COUNT_INTERVAL
            self._written = await self._host.call(_count_written_bytes, self._directory)
        return self._written

    async def count_free_bytes(self) -> int:
        """Bytes that are left for disks. Requests that come while they are being counted share the result."""
        stats = await asyncio.shield(
            self._counting.get_or_start("free", lambda: self._host.stats(self._directory))
        )
        return max(0, stats.available - RESERVE)

    async def device(self, volume: str) -> str:
        """The loop device of the volume, "" if it has none."""
        last = self._last.get(volume)
        return "" if last == "" else await self._host.call(find_loop_device, self.file(volume), last)

    async def attach(self, volume: str, attachment: CloudAttachment, instance: CloudInstance) -> None:
        links = _links(volume, attachment, instance)
        self._last.pop(volume, None)  # unknown, should this fail or be cancelled
        self._last[volume] = await self._host.call(_attach, self.file(volume), links)

    async def detach(
        self, volume: str, attachment: CloudAttachment, instance: CloudInstance, *, is_shared: bool = False
    ) -> None:
        """Raises DeviceBusy, and changes nothing, while the disk is in use.

        `is_shared`: other instances have the disk, too, and keep its loop device. Then only what is mounted
        below the instance's own directory counts as use.
        """
        links, last = _links(volume, attachment, instance), self._last.get(volume)
        if is_shared:
            await self._host.call(_detach_one_of_many, self.file(volume), links, last, _root(instance))
        else:
            await self._host.call(_detach, self.file(volume), links, last)
            self._last[volume] = ""

    async def unbind(self, volume: str) -> None:
        """Detach a loop device that belongs to no attachment. Raises DeviceBusy."""
        device = await self.device(volume)
        if device:
            await self._host.loop_detach(device, self.file(volume))

    async def _mount_targets(self, device: str) -> list[str]:
        """Where its file system is mounted, or its device node is bound."""
        return await self._host.call(_find_mount_targets, device)

    async def survey(self) -> DiskSurvey:
        files = await self._host.call(_images, self._directory)
        loops = await self._host.loops()
        bound = {_volume(file): device for device, file in loops.items() if self._is_ours(file)}
        kept = await self._host.call(os.listdir, self._snapshots)
        return DiskSurvey(files, _snapshot_ids(kept), bound)

    async def clear(self, volume: str) -> None:
        """Remove a file without a record; rename it if it has data."""
        await self._host.call(_clear, self.file(volume))

    async def clear_snapshot(self, snapshot: str) -> None:
        await self._host.call(_clear, self.snapshot_file(snapshot))

    async def clear_links(self, instance: CloudInstance, attached: Container[str]) -> None:
        """Remove an instance's links to devices that belong to no attachment.

        They may be older than a reboot, or come from a copied data directory: then they lead to other disks.
        """
        bound = await self._host.loops()
        devices = {d for d, file in bound.items() if self._is_ours(file) and _volume(file) in attached}
        await self._host.call(_clear_links, instance.directory, devices)

    def _is_ours(self, file: str) -> bool:
        return os.path.dirname(file) == self._directory

    async def describe_users(self, volume: str) -> str:
        """What uses a disk, for messages."""
        device = await self.device(volume)
        if not device:
            return "not in use"
        here = await self._mount_targets(device)
        if here:
            return f"{device} is mounted at {', '.join(here)}"
        elsewhere = await self._host.call(foreign_mounts, device)
        if elsewhere:
            return f"{device} is mounted in the namespace of process {', '.join(map(str, elsewhere))}"
        return f"{device} is held open"

    async def unmount_leftovers(self, volume: str, only: CloudInstance | None = None) -> None:
        """Unmount what a stopped instance left mounted. Raises DeviceBusy if the disk is used elsewhere.

        `only`: other instances have the disk, too, and keep their mounts.
        """
        device = await self.device(volume)
        if not device:
            return
        foreign = [] if only is not None else await self._host.call(foreign_mounts, device)
        if foreign:
            raise DeviceBusy(device)
        targets = await self._mount_targets(device)
        for target in reversed(targets if only is None else _list_below(targets, _root(only))):
            try:
                await self._host.unmount(target)
            except OSError as error:
                raise DeviceBusy(device) from error


def _describe_missing_devices() -> str:
    """Why no loop device can be used; "" if one can."""
    try:
        os.close(os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC))
    except PermissionError:
        return (
            "disks need loop devices, which only root may use: take the StorageClass efs, or start the"
            " cluster as root (sudo volplane up)"
        )
    except OSError:
        return ""  # reported where a disk is attached
    return ""


def _create(path: str, size: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def _restore(path: str, size: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def _grow(path: str, size: int) -> None:
    """Grow durably: a file that is shorter than its volume counts as damaged.

    In a backup, a file may be longer than its record says, with a file system of that length.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_size < size:
            os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _can_share(directory: str, other: str) -> bool:
    source, target = os.path.join(directory, ".shared"), os.path.join(other, ".shared")
    try:
        with open(source, "wb") as file:
            file.write(bytes(4096))
        return copies.copy(source, target)
    finally:
        _remove(source)
        _remove(target)


def _images(directory: str) -> dict[str, DiskImage]:
    with os.scandir(directory) as entries:
        images = [e for e in entries if e.name.endswith(".img") and e.is_file(follow_symlinks=False)]
        return {_volume(e.name): DiskImage(e.stat().st_size, e.stat().st_blocks == 0) for e in images}


def _clear(path: str) -> None:
    """Remove a blank file; rename a file with data, whose record may have been lost."""
    try:
        is_blank = os.stat(path).st_blocks == 0
    except FileNotFoundError:
        return
    if is_blank:
        os.unlink(path)
    else:
        os.rename(path, f"{path}{ORPHANED}")
        log.warning("%s has data but no record: renamed to %s%s", path, path, ORPHANED)


def _clear_links(directory: str, devices: Container[str]) -> None:
    for place in (directory, os.path.join(directory, BY_ID)):
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:
            for link in entries:
                if not link.is_symlink() or not link.name.startswith(_LINKS):
                    continue  # the directory may be the machine's /dev
                target = os.readlink(link.path)
                if target.startswith("/dev/loop") and target not in devices:
                    os.unlink(link.path)


def _count_written_bytes(directory: str) -> int:
    written = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # deleted meanwhile
                written += entry.stat().st_blocks * 512
    return written


def _capture(file: str, device: str, target: str, report: ProgressCallback) -> tuple[bool, bool]:
    if not device:
        return copies.copy(file, target, report=report), True
    for path in list_filesystems(device):
        copies.sync(path)
    copies.flush(device)
    before = copies.read_write_counters(device)
    shared = copies.copy(file, target, report=report)
    return shared, copies.is_quiescent(before, copies.read_write_counters(device))


def _capture_frozen(file: str, device: str, target: str, report: ProgressCallback) -> bool:
    paths = list_filesystems(device) if device else []
    if not paths:
        return _capture(file, device, target, report)[1]
    with copies.freeze_filesystem(paths[0]):
        copies.flush(device)
        copies.copy(file, target, report=report)
    return True


def _capture_set(disks: Sequence[tuple[str, str, str]], *, freeze: bool) -> bool:
    bound = [device for _, device, _ in disks if device]
    with ExitStack() as held:
        for path in (path for device in bound for path in list_filesystems(device)):
            if freeze:
                held.enter_context(copies.freeze_filesystem(path))
            else:
                copies.sync(path)
        for device in bound:
            copies.flush(device)
        before = [copies.read_write_counters(device) for device in bound]
        for file, _, target in disks:
            copies.copy(file, target)
        after = [copies.read_write_counters(device) for device in bound]
    return all(map(copies.is_quiescent, before, after))


def _thaw(device: str) -> None:
    for path in list_filesystems(device):
        copies.thaw(path)


def list_filesystems(device: str) -> list[str]:
    """One mount point of the file system of a device, if it is mounted."""
    number = os.stat(device).st_rdev
    system = f"{os.major(number)}:{os.minor(number)}"
    entries = mounts.read_table().filter_lines(f" {system} ", f"{device} ")
    return [e.target for e in entries if _has_filesystem(e, device, system)][:1]


def _snapshot_ids(names: list[str]) -> frozenset[str]:
    return frozenset(_volume(n) for n in names if n.endswith(".img"))


def find_loop_device(file: str, last: str | None) -> str:
    """The loop device of a file; the last one is tried first, because there may be many."""
    if last and devices.backing_file(last).removesuffix(DELETED) == file:
        return last
    bound = devices.loops().items()
    return next((device for device, backing in bound if backing.removesuffix(DELETED) == file), "")


def _attach(file: str, links: tuple[str, ...]) -> str:
    device = devices.loop_attach(file)
    _link(device, links)
    return device


def _detach(file: str, links: tuple[str, ...], last: str | None) -> None:
    device = find_loop_device(file, last)
    # The kernel protects a mounted file system, but not a bound device node.
    if device and _find_mount_targets(device):
        raise DeviceBusy(device)
    _unlink(links)
    if not device:
        return
    try:
        devices.loop_detach(device, file)
    except DeviceBusy:
        _link(device, links)
        raise


def _detach_one_of_many(file: str, links: tuple[str, ...], last: str | None, root: str) -> None:
    device = find_loop_device(file, last)
    if device and _list_below(_find_mount_targets(device), root):
        raise DeviceBusy(device)
    _unlink(links)


def _list_below(targets: Sequence[str], root: str) -> list[str]:
    return [target for target in targets if target.startswith(f"{root}/")]


def _root(instance: CloudInstance) -> str:
    """The directory of the node whose /dev the instance has."""
    return os.path.dirname(os.path.realpath(instance.directory))


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _volume(file: str) -> str:
    return os.path.basename(file).removesuffix(DELETED).removesuffix(".img")


def _links(volume: str, attachment: CloudAttachment, instance: CloudInstance) -> tuple[str, ...]:
    name = os.path.basename(attachment.device)
    names = (f"{BY_ID}/{stable_name(volume)}", *nvme_names(name), name)  # the one that clients wait for last
    return tuple(os.path.join(instance.directory, each) for each in names)


def nvme_names(name: str) -> tuple[str, ...]:
    """The NVMe name of a disk, derived from the name it was attached as: `nvme52n1` for `xvdba`."""
    if (letters := _NAME.fullmatch(name)) is None:
        return ()
    first, second = letters.groups()
    number = ord(first) - ord("a")
    if second:
        number = 26 * (number + 1) + ord(second) - ord("a")
    return (f"nvme{number}n1",) if number else ()  # number 0 is the root disk


def _link(device: str, links: tuple[str, ...]) -> None:
    for link in links:
        os.makedirs(os.path.dirname(link), exist_ok=True)
        hidden = os.path.join(os.path.dirname(link), f".{os.path.basename(link)}")
        with suppress(FileNotFoundError):
            os.unlink(hidden)
        os.symlink(device, hidden)
        os.replace(hidden, link)  # atomically, for those who wait for the link


def _unlink(links: tuple[str, ...]) -> None:
    for link in links:
        with suppress(FileNotFoundError):
            os.unlink(link)


def _find_mount_targets(device: str) -> list[str]:
    number = os.stat(device).st_rdev
    system, node = f"{os.major(number)}:{os.minor(number)}", f"/{os.path.basename(device)}"
    entries = mounts.read_table().filter_lines(f" {system} ", f"{node} ")
    return [
        e.target
        for e in entries
        if _has_filesystem(e, device, system) or (e.root.endswith(node) and _is_device(e.target, number))
    ]


def _has_filesystem(entry: MountEntry, device: str, number: str) -> bool:
    # btrfs may span disks, so its mounts have another device number.
    return entry.device == number or (entry.fstype == "btrfs" and entry.source == device)


def _is_device(path: str, number: int) -> bool:
    with suppress(OSError):
        return os.stat(path).st_rdev == number
    return False


def foreign_mounts(device: str) -> list[int]:
    """One process of each other mount namespace in which the device is mounted."""
    number = os.stat(device).st_rdev
    marks = (f" {os.major(number)}:{os.minor(number)} ", f"/{os.path.basename(device)} ")
    seen = {os.readlink("/proc/self/ns/mnt")}
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(OSError):  # the process has ended
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
            if namespace in seen:
                continue
            seen.add(namespace)
            with open(f"/proc/{pid}/mountinfo", errors="surrogateescape") as table:
                if any(_shows_device(line, marks) for line in table):
                    found.append(pid)
    return found


def _shows_device(line: str, marks: tuple[str, str]) -> bool:
    """The line of mountinfo is for the device: its file system, or its bound device node."""
    system, node = marks
    return system in line or node in line.split(" - ")[0]
