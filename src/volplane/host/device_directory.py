"""A node's own /dev: the devices of the machine, and the node's disks by the names that its drivers look for.

Several nodes share this machine, and the disk service gives each its own `/dev/xvdba`: a link in the node's
directory. A driver that mounts hostPath `/dev` must find these links and the machine's devices in one place.
So the directory gets a node for each device of the machine as soon as a pod asks for it, and follows the
machine while it is used. Loop devices have nodes in advance: a driver opens a new one at once. On a file
system without devices (`nodev`) the directory would be of no use, and the machine's /dev is shown instead.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress

from volplane.host import inotify
from volplane.host.host import Host
from volplane.host.inotify import InotifyEvent
from volplane.host.ownership import change_owner
from volplane.host.paths import DEVICES, NodePaths

log = logging.getLogger(__name__)

LOOP_MAJOR, LOOPS = 7, 256
FILLED = ".filled"  # in the node's directory: it has the machine's devices
DISK = "/dev/loop"  # links of the node's disks lead there
# File systems of their own on the machine. A container that gets the directory gets these, too.
MOUNTED = ("hugepages", "mqueue", "pts", "shm")


class DeviceDirectory:
    """`machine` is the /dev of the machine."""

    def __init__(self, host: Host, paths: NodePaths, machine: str = DEVICES) -> None:
        self._host, self._paths, self._machine = host, paths, machine
        self._used = asyncio.Event()
        self._writing = threading.Lock()  # pods that start together and the follower write the same directory

    async def fill(self) -> None:
        """Add the devices of the machine."""
        if self._paths.is_machine:
            return
        if not await self._host.call(self._fill):
            log.warning("%s cannot have devices: pods see those of the machine", self._paths.dev)

    def follow(self) -> None:
        """A process has the directory: from now on, add devices that appear on the machine."""
        self._used.set()

    async def run(self) -> None:
        """Until cancelled: once the directory is used, follow changes of the machine's."""
        await self._used.wait()
        try:
            await self._follow_machine()
        except OSError as error:  # for example too many watches on this machine
            log.warning("pods do not see devices that appear on this machine: %s", error)

    async def _follow_machine(self) -> None:
        async with inotify.Inotify() as watch:
            for directory in await self._host.call(_list_directories, self._machine):
                watch.add(directory, inotify.ENTRIES)
            await self._host.call(self._fill)  # what appeared meanwhile
            while True:
                events = await watch.read()
                for event in events:
                    if event.mask & inotify.CREATE and event.mask & inotify.IS_DIRECTORY:
                        with suppress(FileNotFoundError):
                            watch.add(os.path.join(event.directory, event.name), inotify.ENTRIES)
                await self._host.call(self._follow, events)

    def _fill(self) -> bool:
        with self._writing:
            return _fill(self._machine, self._paths.dev)

    def _follow(self, events: Iterable[InotifyEvent]) -> None:
        with self._writing:
            _follow(self._machine, self._paths.dev, events)

    def find(self, path: str) -> str:
        """The path to open for `/dev` or a path below: the node's own directory or disk, else the machine's.

        A disk of the node is a link in its directory.
        """
        own = self._paths.real(path)
        if os.path.isdir(own):
            return own if os.path.exists(os.path.join(self._paths.dev, FILLED)) else path
        return own if _is_disk(own) else path


def list_mounted(directory: str) -> list[str]:
    """The file systems below /dev that a container needs besides the node's directory."""
    return [
        name for name in MOUNTED if os.path.isdir(f"{directory}/{name}") and os.path.isdir(f"/dev/{name}")
    ]


def _fill(machine: str, own: str) -> bool:
    """False if devices do not work in the node's directory."""
    os.makedirs(own, exist_ok=True)
    filled = os.path.join(own, FILLED)
    if os.statvfs(own).f_flag & os.ST_NODEV:
        with suppress(FileNotFoundError):
            os.unlink(filled)
        return False
    try:
        _copy_directory(machine, own)
        _add_loops(own)
    except PermissionError:  # this process may not create devices
        return False
    for name in MOUNTED:
        if os.path.isdir(os.path.join(machine, name)):
            os.makedirs(os.path.join(own, name), exist_ok=True)
    os.close(os.open(filled, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    return True


def _copy_directory(source: str, target: str) -> None:
    for path in _list_entries(source):
        _copy(path, os.path.join(target, os.path.basename(path)))


def _list_entries(directory: str) -> Iterator[str]:
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        yield from (entry.path for entry in entries if entry.name not in MOUNTED)


def _list_directories(directory: str) -> list[str]:
    found = [directory]
    for path in _list_entries(directory):
        if os.path.isdir(path) and not os.path.islink(path):
            found += _list_directories(path)
    return found


def _copy(source: str, target: str) -> None:
    try:
        info = os.lstat(source)
    except FileNotFoundError:
        return  # removed meanwhile
    if stat.S_ISDIR(info.st_mode):
        os.makedirs(target, stat.S_IMODE(info.st_mode), exist_ok=True)
        _copy_directory(source, target)
    elif stat.S_ISLNK(info.st_mode):
        _copy_link(source, target)
    elif stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode):
        _make_node(target, info.st_mode, info.st_rdev, info.st_gid)


def _copy_link(source: str, target: str) -> None:
    wanted = os.readlink(source)
    # A link that is right stays: containers use /dev/fd and /dev/stdout while other pods start.
    if _is_disk(target) or (os.path.islink(target) and os.readlink(target) == wanted):
        return
    _remove(target)
    os.symlink(wanted, target)


def _make_node(path: str, mode: int, number: int, group: int = -1) -> None:
    with suppress(FileNotFoundError):
        there = os.lstat(path)
        if _is_disk(path) or (there.st_rdev == number and stat.S_IFMT(there.st_mode) == stat.S_IFMT(mode)):
            return
        _remove(path)  # of another device, before the machine was restarted
    os.mknod(path, mode, number)
    os.chmod(path, stat.S_IMODE(mode))
    change_owner(path, -1, group)


def _add_loops(directory: str) -> None:
    for number in range(LOOPS):
        path = os.path.join(directory, f"loop{number}")
        if not os.path.lexists(path):
            _make_node(path, stat.S_IFBLK | 0o660, os.makedev(LOOP_MAJOR, number))


def _follow(machine: str, own: str, events: Iterable[InotifyEvent]) -> None:
    for event in events:
        if event.mask & inotify.OVERFLOW:
            _fill(machine, own)
            continue
        path = os.path.join(event.directory, event.name)
        copy = os.path.join(own, os.path.relpath(path, machine))
        if os.path.lexists(path):
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            _copy(path, copy)
        elif not _is_disk(copy) and not event.name.startswith("loop"):
            _remove(copy)


def _is_disk(path: str) -> bool:
    return os.path.islink(path) and os.readlink(path).startswith(DISK)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError, IsADirectoryError):
        os.unlink(path)
