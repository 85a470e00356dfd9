"""Finds FlexVolume drivers in the exec directory and follows its changes.

`<directory>/vendor~driver/driver` is the driver `vendor/driver`; `<directory>/foo/foo` is the driver `foo`.
Names that begin with a dot are ignored, so that a driver can be copied aside and moved into place.

The directory is watched, never polled. After any event it is compared with what is loaded: a new or changed
executable is loaded by its `init`, one that is gone is dropped. A driver whose `init` fails is tried again
when its file changes or when a volume asks for it. The kernel does not run a file that is open for writing,
so a driver that is being copied in place is loaded when the copy is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from msgspec import Struct

from volplane.base import clock
from volplane.host import Host, inotify
from volplane.host.inotify import Inotify
from volplane.volumes.flex.driver import FlexDriver
from volplane.volumes.flex.errors import FlexCallError, FlexExecutableBusy

log = logging.getLogger(__name__)

EVENTS = inotify.ENTRIES | inotify.ATTRIB | inotify.CLOSE_WRITE | inotify.DELETE_SELF


class ExecutableFile(Struct, frozen=True):
    """A driver's file, and what tells it from a changed one."""

    path: str
    identity: tuple[int, int, int, int]


class FailedDriver(Struct, frozen=True):
    """An executable that is not loaded, because its `init` failed."""

    file: ExecutableFile
    error: FlexCallError
    since: float  # unix time


class FlexProber:
    """Subscribers are called with the name of a driver after it was loaded, replaced or dropped.

    Also after its first `init` has failed, but not after a retry.
    """

    def __init__(self, directory: str, host: Host, changed: Callable[[str], None] | None = None) -> None:
        """`changed`: the first subscriber."""
        self.directory = directory
        self._host = host
        self._subscribers: list[Callable[[str], None]] = [changed] if changed is not None else []
        self._files: dict[str, ExecutableFile] = {}  # of drivers that are loaded or being loaded
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._drivers: dict[str, FlexDriver] = {}
        self._failed: dict[str, FailedDriver] = {}
        self._first_scan = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def drivers(self) -> Mapping[str, FlexDriver]:
        """The loaded drivers by name."""
        return MappingProxyType(self._drivers)

    @property
    def failed_drivers(self) -> Mapping[str, FailedDriver]:
        """The drivers that have an executable but are not loaded."""
        return MappingProxyType(self._failed)

    @property
    def errors(self) -> Mapping[str, str]:
        """Why a driver that has an executable is not loaded."""
        return {name: str(failed.error) for name, failed in self._failed.items()}

    def subscribe(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call `changed(name)` from now on; returns the function that ends it."""
        self._subscribers.append(changed)
        return lambda: self._subscribers.remove(changed)

    def is_loading(self, name: str) -> bool:
        """Whether it is not known yet if the driver can be used."""
        task = self._loading.get(name)
        return not self._first_scan.is_set() or (task is not None and not task.done())

    def describe_missing(self, name: str) -> str:
        """Why a driver that is not loaded cannot be used."""
        if self.is_loading(name):
            return f"FlexVolume driver {name} is being loaded from {self.directory}"
        if failed := self._failed.get(name):
            return f"FlexVolume driver {name} cannot be loaded from {failed.file.path}: {failed.error}"
        return f"FlexVolume driver {name} was not found at {executable_path(self.directory, name)}"

    async def run(self) -> None:
        """Until cancelled. It ends at once where the directory cannot be made, as below a read-only /usr."""
        try:
            await self._follow()
        except* OSError as group:
            (error, *_) = group.exceptions
            log.warning("no FlexVolume drivers are used: %s cannot be watched: %s", self.directory, error)
            self._first_scan.set()
        finally:
            self._tasks = None

    async def _follow(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            while True:
                async with Inotify() as watch:
                    files = await self._host.call(_scan, self.directory, watch, create=True)
                    while files is not None:
                        self._update(tasks, files)
                        self._first_scan.set()
                        await watch.read()
                        files = await self._host.call(_scan, self.directory, watch, create=False)
                    # The directory itself was removed: make it again and watch the new one.
                    self._update(tasks, {})

    async def wait_scanned(self) -> None:
        """Wait until the executables that were there at the start are known; their `init` may still run."""
        await self._first_scan.wait()

    async def wait_loaded(self) -> None:
        """Wait until every driver that was there at the start is loaded, or has failed."""
        await self._first_scan.wait()
        await asyncio.gather(*self._loading.values(), return_exceptions=True)

    async def retry(self, name: str) -> None:
        """Try once more to load a driver whose `init` failed, unless that is under way."""
        failed = self._failed.get(name)
        if failed is not None and self._tasks is not None:
            self._start_loading(self._tasks, name, failed.file)
        if loading := self._loading.get(name):
            await asyncio.wait({loading})

    def _update(self, tasks: asyncio.TaskGroup, files: Mapping[str, ExecutableFile]) -> None:
        for name in [name for name in (*self._files, *self._failed) if name not in files]:
            self._cancel_loading(name)
            self._drop(name)
        for name, file in files.items():
            if self._files.get(name) != file and not self._is_known_to_fail(name, file):
                self._start_loading(tasks, name, file)

    def _start_loading(self, tasks: asyncio.TaskGroup, name: str, file: ExecutableFile) -> None:
        loading = self._loading.get(name)
        if loading is not None and not loading.done() and self._files.get(name) == file:
            return
        self._cancel_loading(name)
        self._files[name] = file
        self._loading[name] = tasks.create_task(self._load(name, file), name=f"flexvolume {name}")

    def _is_known_to_fail(self, name: str, file: ExecutableFile) -> bool:
        """Closing a file that was open for writing changes nothing about it: then it is tried again."""
        failed = self._failed.get(name)
        return failed is not None and failed.file == file and not isinstance(failed.error, FlexExecutableBusy)

    async def _load(self, name: str, file: ExecutableFile) -> None:
        try:
            driver = await FlexDriver.load(name, file.path, self._host)
        except FlexCallError as error:
            # One that replaced a working driver replaces it nevertheless: that executable is gone.
            known = self._failed.get(name)
            self._drop(name)
            self._failed[name] = FailedDriver(file, error, clock.wall().timestamp())
            if known is None or known.file != file:  # subscribers may answer a failure with a retry
                self._notify(name)
            return
        self._failed.pop(name, None)
        self._files[name], self._drivers[name] = file, driver
        self._notify(name)

    def _drop(self, name: str) -> None:
        self._files.pop(name, None)
        self._failed.pop(name, None)
        if self._drivers.pop(name, None) is not None:
            log.info("flexvolume %s: removed", name)
            self._notify(name)

    def _notify(self, name: str) -> None:
        for changed in list(self._subscribers):
            changed(name)

    def _cancel_loading(self, name: str) -> None:
        if task := self._loading.pop(name, None):
            task.cancel()


def driver_name(directory: str) -> str:
    """vendor~driver → vendor/driver."""
    return directory.replace("~", "/")


def executable_path(directory: str, name: str) -> str:
    """Where the executable of a driver belongs."""
    return f"{directory.rstrip('/')}/{name.replace('/', '~')}/{name.rpartition('/')[2]}"


def _scan(directory: str, watch: Inotify, *, create: bool) -> dict[str, ExecutableFile] | None:
    """The drivers' executables; None if the directory itself is gone."""
    if create:
        os.makedirs(directory, 0o755, exist_ok=True)
    try:
        # Watched before it is read: what appears in between is seen by one or the other.
        watch.add(directory, EVENTS | inotify.ONLY_DIRECTORY)
        return dict(_find_executables(directory, watch))
    except FileNotFoundError:
        return None


def _find_executables(directory: str, watch: Inotify) -> Iterator[tuple[str, ExecutableFile]]:
    with os.scandir(directory) as found:  # closed also when it is cancelled, and the watch is gone
        entries = list(found)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = f"{entry.path}/{entry.name.rpartition('~')[2]}"
        try:
            if not entry.is_dir():
                continue
            watch.add(entry.path, EVENTS | inotify.ONLY_DIRECTORY)
            info = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # no executable yet, or gone meanwhile, which is another event
        except OSError as error:  # a loop of links, no watches left: this driver only
            log.warning("flexvolume %s is not used: %s", driver_name(entry.name), error)
            continue
        # The change time moves with every write, chmod and rename; the inode with every replacement.
        identity = (info.st_dev, info.st_ino, info.st_ctime_ns, info.st_size)
        yield driver_name(entry.name), ExecutableFile(path, identity)
