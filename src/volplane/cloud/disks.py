"""The effects: sparse files, loop devices, and the links by which an instance finds its disks.

A link names a loop device, and loop devices are used again; so links go before the binding does and come
after it, and beside `xvdba` there is one that carries the volume's id, by which a driver can be sure of
what it formats.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Container, Sequence
from contextlib import ExitStack, suppress

from msgspec import Struct

from volplane.base import clock
from volplane.cloud.model import GIB, CloudAttachment, CloudInstance
from volplane.host import DeviceBusy, Host, MountEntry, copies, devices, mounts
from volplane.host.copies import ProgressCallback
from volplane.host.devices import DELETED

log = logging.getLogger(__name__)

BY_ID = "disk/by-id"
_LINKS = ("xvd", "sd", "nvme-Amazon_Elastic_Block_Store_")  # how the names of our links begin
# What is never promised to disks: a machine without any space left breaks every disk on it at once.
RESERVE = 256 << 20
ORPHANED = ".orphaned"  # behind the name of a file that no record speaks of
COUNT_INTERVAL = 10.0  # seconds


class DiskImage(Struct, frozen=True):
    """A disk's file."""

    size: int
    is_blank: bool  # nothing was ever written to it


class DiskSurvey(Struct, frozen=True):
    """What the machine shows."""

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
        self.shares = False  # whether copies share their blocks
        self._last: dict[str, str] = {}  # where a volume was last seen; believed only after a look

    async def prepare(self) -> None:
        for directory in (self._directory, self._snapshots):
            await self._host.call(os.makedirs, directory, 0o700, True)
        self.shares = await self._host.call(_can_share, self._directory, self._snapshots)

    def file(self, volume: str) -> str:
        return os.path.join(self._directory, f"{volume}.img")

    def snapshot_file(self, snapshot: str) -> str:
        return os.path.join(self._snapshots, f"{snapshot}.img")

    async def create(self, volume: str, size: int) -> None:
        await self._host.call(_create, self.file(volume), size * GIB)

    async def restore(self, volume: str, size: int) -> None:
        """Give a file that holds nothing its size again; make it if it is not there."""
        await self._host.call(_restore, self.file(volume), size * GIB)

    async def remove(self, volume: str) -> None:
        await self._host.call(_remove, self.file(volume))

    async def grow(self, volume: str, size: int) -> None:
        await self._host.call(_grow, self.file(volume), size * GIB)
        device = await self.device(volume)
        if device:
            await self._host.loop_resize(device)

    async def copy(self, source: str, volume: str) -> None:
        await self._host.call(copies.copy, source, self.file(volume))

    async def capture(self, volume: str, target: str, report: ProgressCallback) -> tuple[bool, bool]:
        """Copy a disk that may be in use: whether blocks are shared, and whether it stood still."""
        device = await self.device(volume)
        return await self._host.call(_capture, self.file(volume), device, target, report)

    async def capture_frozen(self, volume: str, target: str, report: ProgressCallback) -> bool:
        device = await self.device(volume)
        return await self._host.call(_capture_frozen, self.file(volume), device, target, report)

    async def capture_set(self, copies: Sequence[tuple[str, str]], *, freeze: bool = False) -> bool:
        """Copy several disks (volume, target): whether all of them stood still until the last was copied."""
        disks = [(self.file(volume), await self.device(volume), target) for volume, target in copies]
        return await self._host.call(_capture_set, disks, freeze=freeze)

    async def thaw(self, volume: str) -> None:
        """For a service that was killed while it held a disk still."""
        device = await self.device(volume)
        if device:
            await self._host.call(_thaw, device)

    async def count_allocated_bytes(self, volume: str) -> int:
        return await self._host.call(copies.count_allocated_bytes, self.file(volume))

    async def count_snapshot_bytes(self, snapshot: str) -> int:
        return await self._host.call(copies.count_allocated_bytes, self.snapshot_file(snapshot))

    async def remove_snapshot(self, snapshot: str) -> None:
        await self._host.call(_remove, self.snapshot_file(snapshot))

    async def count_written_bytes(self) -> int:
        """Bytes that all disks take; counted again only after a while, because they may be many."""
        now = clock.now()
        if now >= self._count_again:
            self._count_again = now + COUNT_INTERVAL
            self._written = await self._host.call(_count_written_bytes, self._directory)
        return self._written

    async def count_free_bytes(self) -> int:
        """Bytes that the machine has left for disks."""
        return max(0, (await self._host.stats(self._directory)).available - RESERVE)

    async def device(self, volume: str) -> str:
        """The loop device that has the volume, in whatever state, or nothing."""
        return await self._host.call(_find_loop_device, self.file(volume), self._last.get(volume, ""))

    async def attach(self, volume: str, attachment: CloudAttachment, instance: CloudInstance) -> None:
        links = _links(volume, attachment, instance)
        self._last[volume] = await self._host.call(_attach, self.file(volume), links)

    async def detach(self, volume: str, attachment: CloudAttachment, instance: CloudInstance) -> None:
        """DeviceBusy, and everything as before, while anybody on this machine uses the disk."""
        links, last = _links(volume, attachment, instance), self._last.get(volume, "")
        await self._host.call(_detach, self.file(volume), links, last)
        self._last.pop(volume, None)

    async def unbind(self, volume: str) -> None:
        """A binding that no attachment accounts for. DeviceBusy."""
        device = await self.device(volume)
        if device:
            await self._host.loop_detach(device, self.file(volume))

    async def _mount_targets(self, device: str) -> list[str]:
        """Where its file system, or its node as a raw block volume, is mounted."""
        return await self._host.call(_find_mount_targets, device)

    async def survey(self) -> DiskSurvey:
        files = await self._host.call(_images, self._directory)
        loops = await self._host.loops()
        bound = {_volume(file): device for device, file in loops.items() if self._is_ours(file)}
        kept = await self._host.call(os.listdir, self._snapshots)
        return DiskSurvey(files, _snapshot_ids(kept), bound)

    async def clear(self, volume: str) -> None:
        """Of a file that belongs to no volume: remove it, unless something was ever written to it."""
        await self._host.call(_clear, self.file(volume))

    async def clear_snapshot(self, snapshot: str) -> None:
        await self._host.call(_clear, self.snapshot_file(snapshot))

    async def clear_links(self, instance: CloudInstance, attached: Container[str]) -> None:
        """Remove an instance's links to devices that no attachment accounts for.

        They may be of before a reboot, or come from the directory that this one was copied from: somebody
        else's disk is behind them.
        """
        bound = await self._host.loops()
        devices = {d for d, file in bound.items() if self._is_ours(file) and _volume(file) in attached}
        await self._host.call(_clear_links, instance.directory, devices)

    def _is_ours(self, file: str) -> bool:
        return os.path.dirname(file) == self._directory

    async def describe_users(self, volume: str) -> str:
        """Who holds a disk, in words."""
        device = await self.device(volume)
        if not device:
            return "nobody"
        here = await self._mount_targets(device)
        if here:
            return f"{device} is mounted at {', '.join(here)}"
        elsewhere = await self._host.call(foreign_mounts, device)
        if elsewhere:
            return f"{device} is mounted in the namespace of process {', '.join(map(str, elsewhere))}"
        return f"{device} is held open"

    async def unmount_leftovers(self, volume: str) -> None:
        """Take the mounts that a dead instance left off its disk; DeviceBusy if somebody alive has it."""
        device = await self.device(volume)
        if not device:
            return
        if await self._host.call(foreign_mounts, device):
            raise DeviceBusy(device)
        for target in reversed(await self._mount_targets(device)):
            try:
                await self._host.unmount(target)
            except OSError as error:
                raise DeviceBusy(device) from error


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
    """Durably: a file that is shorter than the disk counts as one that has lost data."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
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
    """What holds data is moved aside, not removed: the record that would say whose it is may be lost."""
    try:
        is_blank = os.stat(path).st_blocks == 0
    except FileNotFoundError:
        return
    if is_blank:
        os.unlink(path)
    else:
        os.rename(path, f"{path}{ORPHANED}")
        log.warning("%s belongs to nothing but holds data: kept as %s%s", path, path, ORPHANED)


def _clear_links(directory: str, devices: Container[str]) -> None:
    for place in (directory, os.path.join(directory, BY_ID)):
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:
            for link in entries:
                if not link.is_symlink() or not link.name.startswith(_LINKS):
                    continue  # the directory may be a machine's own /dev
                target = os.readlink(link.path)
                if target.startswith("/dev/loop") and target not in devices:
                    os.unlink(link.path)


def _count_written_bytes(directory: str) -> int:
    with os.scandir(directory) as entries:
        return sum(entry.stat().st_blocks * 512 for entry in entries)


def _capture(file: str, device: str, target: str, report: ProgressCallback) -> tuple[bool, bool]:
    if not device:
        return copies.copy(file, target, report=report), True
    for path in _filesystems(device):
        copies.sync(path)
    copies.flush(device)
    before = copies.read_write_counters(device)
    shared = copies.copy(file, target, report=report)
    return shared, copies.is_quiescent(before, copies.read_write_counters(device))


def _capture_frozen(file: str, device: str, target: str, report: ProgressCallback) -> bool:
    paths = _filesystems(device) if device else []
    if not paths:
        return _capture(file, device, target, report)[1]
    with copies.freeze_filesystem(paths[0]):
        copies.flush(device)
        copies.copy(file, target, report=report)
    return True


def _capture_set(disks: Sequence[tuple[str, str, str]], *, freeze: bool) -> bool:
    bound = [device for _, device, _ in disks if device]
    with ExitStack() as held:
        for path in (path for device in bound for path in _filesystems(device)):
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
    for path in _filesystems(device):
        copies.thaw(path)


def _filesystems(device: str) -> list[str]:
    """Where the file system of a device is mounted, one place of all."""
    number = os.stat(device).st_rdev
    system = f"{os.major(number)}:{os.minor(number)}"
    entries = mounts.read_table().filter_lines(f" {system} ", f"{device} ")
    return [e.target for e in entries if _has_filesystem(e, device, system)][:1]


def _snapshot_ids(names: list[str]) -> frozenset[str]:
    return frozenset(_volume(n) for n in names if n.endswith(".img"))


def _find_loop_device(file: str, last: str) -> str:
    """The loop device of a file; the one it had last is looked at first, because all of them are many."""
    if last and devices.backing_file(last).removesuffix(DELETED) == file:
        return last
    bound = devices.loops().items()
    return next((device for device, backing in bound if backing.removesuffix(DELETED) == file), "")


def _attach(file: str, links: tuple[str, ...]) -> str:
    device = devices.loop_attach(file)
    _link(device, links)
    return device


def _detach(file: str, links: tuple[str, ...], last: str) -> None:
    device = _find_loop_device(file, last)
    # The kernel guards a mounted file system, but not a published device node.
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


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _volume(file: str) -> str:
    return os.path.basename(file).removesuffix(DELETED).removesuffix(".img")


def _links(volume: str, attachment: CloudAttachment, instance: CloudInstance) -> tuple[str, str]:
    name = os.path.basename(attachment.device)
    stable = os.path.join(instance.directory, BY_ID, stable_name(volume))
    return os.path.join(instance.directory, name), stable


def _link(device: str, links: tuple[str, ...]) -> None:
    for link in links:
        os.makedirs(os.path.dirname(link), exist_ok=True)
        hidden = os.path.join(os.path.dirname(link), f".{os.path.basename(link)}")
        with suppress(FileNotFoundError):
            os.unlink(hidden)
        os.symlink(device, hidden)
        os.replace(hidden, link)  # whoever waits for it never sees it half-made


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
    # btrfs may span disks, so that its mounts have a number of their own.
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
        with suppress(OSError):  # ended meanwhile
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
            if namespace in seen:
                continue
            seen.add(namespace)
            with open(f"/proc/{pid}/mountinfo", errors="surrogateescape") as table:
                if any(_shows_device(line, marks) for line in table):
                    found.append(pid)
    return found


def _shows_device(line: str, marks: tuple[str, str]) -> bool:
    """A line of mountinfo that shows the device: its file system, or its node bound to some path."""
    system, node = marks
    return system in line or node in line.split(" - ")[0]
