"""The effects: sparse files, loop devices, and the links by which an instance finds its disks.

A link names a loop device, and loop devices are used again; so links go before the binding does and come
after it, and beside `xvdba` there is one that carries the volume's id, by which a driver can be sure of
what it formats.
"""

from __future__ import annotations

import os
from contextlib import suppress

from msgspec import Struct

from volplane.cloud.model import GIB, Attachment, Instance
from volplane.host import DeviceBusy, Host, devices, mounts
from volplane.host.devices import DELETED

BY_ID = "disk/by-id"


class Survey(Struct, frozen=True):
    """What the machine shows."""

    files: frozenset[str]  # volume ids
    bound: dict[str, str]  # volume id → loop device


def stable_name(volume: str) -> str:
    """The name that udev gives an EBS disk on AWS."""
    return f"nvme-Amazon_Elastic_Block_Store_{volume.replace('-', '')}"


class Disks:
    def __init__(self, host: Host, directory: str) -> None:
        self._host = host
        self._directory = os.path.realpath(directory)
        self._last: dict[str, str] = {}  # where a volume was last seen; believed only after a look

    async def prepare(self) -> None:
        await self._host.call(os.makedirs, self._directory, 0o700, True)

    def file(self, volume: str) -> str:
        return os.path.join(self._directory, f"{volume}.img")

    async def create(self, volume: str, size: int) -> None:
        await self._host.call(_create, self.file(volume), size * GIB)

    async def remove(self, volume: str) -> None:
        await self._host.call(_remove, self.file(volume))

    async def grow(self, volume: str, size: int) -> None:
        await self._host.call(os.truncate, self.file(volume), size * GIB)
        device = await self.device(volume)
        if device:
            await self._host.loop_resize(device)

    async def free(self) -> int:
        """Bytes that the machine has left for disks."""
        return (await self._host.stats(self._directory)).available

    async def device(self, volume: str) -> str:
        """The loop device that has the volume, in whatever state, or nothing."""
        return await self._host.call(_bound, self.file(volume), self._last.get(volume, ""))

    async def attach(self, volume: str, attachment: Attachment, instance: Instance) -> None:
        links = _links(volume, attachment, instance)
        self._last[volume] = await self._host.call(_attach, self.file(volume), links)

    async def detach(self, volume: str, attachment: Attachment, instance: Instance) -> None:
        """DeviceBusy, and everything as before, while anybody on this machine uses the disk."""
        links, last = _links(volume, attachment, instance), self._last.get(volume, "")
        await self._host.call(_detach, self.file(volume), links, last)
        self._last.pop(volume, None)

    async def unbind(self, volume: str) -> None:
        """A binding that no attachment accounts for. DeviceBusy."""
        device = await self.device(volume)
        if device:
            await self._host.loop_detach(device, self.file(volume))

    async def _mounts(self, device: str) -> list[str]:
        """Where its file system, or its node as a raw block volume, is mounted."""
        return await self._host.call(_showing, device)

    async def survey(self) -> Survey:
        names = await self._host.call(os.listdir, self._directory)
        loops = await self._host.loops()
        bound = {_volume(file): device for device, file in loops.items() if self._is_ours(file)}
        return Survey(frozenset(_volume(n) for n in names if n.endswith(".img")), bound)

    def _is_ours(self, file: str) -> bool:
        return os.path.dirname(file) == self._directory

    async def users(self, volume: str) -> str:
        """Who holds a disk, in words."""
        device = await self.device(volume)
        if not device:
            return "nobody"
        here = await self._mounts(device)
        if here:
            return f"{device} is mounted at {', '.join(here)}"
        elsewhere = await self._host.call(foreign_mounts, device)
        if elsewhere:
            return f"{device} is mounted in the namespace of process {', '.join(map(str, elsewhere))}"
        return f"{device} is held open"

    async def pull(self, volume: str) -> None:
        """Take the mounts that a dead instance left off its disk; DeviceBusy if somebody alive has it."""
        device = await self.device(volume)
        if not device:
            return
        if await self._host.call(foreign_mounts, device):
            raise DeviceBusy(device)
        for target in reversed(await self._mounts(device)):
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


def _bound(file: str, last: str) -> str:
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
    device = _bound(file, last)
    # The kernel guards a mounted file system, but not a published device node.
    if device and _showing(device):
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


def _links(volume: str, attachment: Attachment, instance: Instance) -> tuple[str, str]:
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


def _showing(device: str) -> list[str]:
    number = os.stat(device).st_rdev
    system, node = f"{os.major(number)}:{os.minor(number)}", f"/{os.path.basename(device)}"
    entries = mounts.read_table().mentioning(f" {system} ", f"{node} ")
    return [
        e.target for e in entries if e.device == system or (e.root.endswith(node) and _is(e.target, number))
    ]


def _is(path: str, number: int) -> bool:
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
                if any(_marked(line, marks) for line in table):
                    found.append(pid)
    return found


def _marked(line: str, marks: tuple[str, str]) -> bool:
    """A line of mountinfo that shows the device: its file system, or its node bound to some path."""
    system, node = marks
    return system in line or node in line.split(" - ")[0]
