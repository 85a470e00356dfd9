"""Plugin registration: sockets that appear in `plugins_registry/` are asked who they are and registered.

The directory is watched, never polled. A socket that is made anew counts as another one, even under the same
path: its predecessor is deregistered first, which is what lets a restarted registrar in. A registration that
failed is not repeated until its socket is made again; a socket that does not answer yet is asked again with
growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress

from volplane.api.errors import APIError
from volplane.csi import registration, v1
from volplane.csi.client import Caller, CsiChannel
from volplane.csi.outcome import CallError
from volplane.csi.registration import RegistrationInfo
from volplane.host import Host, NodePaths, inotify
from volplane.host.inotify import Inotify
from volplane.node.csinode import CSINodeObject, DriverInfo, TopologyCollision
from volplane.volumes.csi import RegisteredDriver, RegisteredDrivers

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.5
HIGHEST_MAJOR = 1

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?.*")


class RegistrationRefused(Exception):
    """The plugin is told, and has to come again."""


class RegistrationSocket:
    """One registration socket as long as it is the same one."""

    def __init__(self, path: str, identity: tuple[int, int, int]) -> None:
        self.path, self.identity = path, identity
        self.driver = ""
        self.task: asyncio.Task[None] | None = None


class PluginWatcher:
    def __init__(
        self,
        paths: NodePaths,
        host: Host,
        drivers: RegisteredDrivers,
        objects: CSINodeObject,
        *,
        retry_max: float,
        connect: Callable[[str], Caller] = lambda path: CsiChannel(path, component="kubelet"),
    ) -> None:
        self.paths, self.host, self.drivers, self.objects = paths, host, drivers, objects
        self.directory = paths.real(paths.registry)
        self._retry_max, self._connect = retry_max, connect
        self._sockets: dict[str, RegistrationSocket] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until cancelled; registered drivers stay registered, since their volumes stay mounted."""
        await self.host.call(os.makedirs, self.directory, 0o755, exist_ok=True)
        try:
            async with Inotify() as watch:
                await self._scan_sockets(watch)
                while True:
                    await watch.read()
                    await self._scan_sockets(watch)
        finally:
            await self._close()

    async def _scan_sockets(self, watch: Inotify) -> None:
        """Compare the directory with what we know: right after any event, lost ones included."""
        # A watch comes before the look: what appears in between is then seen by one or the other.
        found = await self.host.call(_sockets, self.directory, watch)
        for path, socket in list(self._sockets.items()):
            if found.get(path) != socket.identity:
                self._start_deregistration(socket)
        for path, identity in found.items():
            if path not in self._sockets:
                self._start_registration(RegistrationSocket(path, identity))

    def _start_registration(self, socket: RegistrationSocket) -> None:
        self._sockets[socket.path] = socket
        before = [t for t in self._leaving if t.get_name() == socket.path]
        socket.task = asyncio.create_task(self._register(socket, before), name=socket.path)

    def _start_deregistration(self, socket: RegistrationSocket) -> None:
        del self._sockets[socket.path]
        task = asyncio.create_task(self._deregister(socket), name=socket.path)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    # --- one socket

    async def _register(self, socket: RegistrationSocket, before: list[asyncio.Task[None]]) -> None:
        if before:
            await asyncio.wait(before)
        pause = min(FIRST_PAUSE, self._retry_max)
        while True:
            try:
                info = await registration.get_registration_info(socket.path)
                version = self._admit(info)
            except (CallError, TimeoutError, RegistrationRefused) as error:
                log.warning("plugin %s: %s", socket.path, error)
                if isinstance(error, RegistrationRefused):
                    await self._notify(socket, error=str(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, self._retry_max)
            else:
                return await self._add(socket, info, version)

    def _admit(self, info: RegistrationInfo) -> str:
        """The version under which the driver may register."""
        if info.type != registration.CSI_PLUGIN:
            raise RegistrationRefused(
                f"No handler registered for plugin type: {info.type} at socket {info.endpoint}"
            )
        version = highest_supported_version(info.versions)
        if not version:
            raise RegistrationRefused(
                f"failed to validate CSI driver with name={info.name}, versions={list(info.versions)}: "
                "none of the CSI versions reported by this driver are supported"
            )
        known = self.drivers.get(info.name)
        if known is not None and _parse_version(known.version) >= _parse_version(version):
            raise RegistrationRefused(
                "Another driver with the same name is already registered with a higher supported version"
            )
        return version

    async def _add(self, socket: RegistrationSocket, info: RegistrationInfo, version: str) -> None:
        endpoint = self.paths.real(info.endpoint)
        driver = RegisteredDriver(
            info.name,
            self._connect(endpoint),
            version=version,
            endpoint=endpoint,
            timeout=self.drivers.timeout,
        )
        socket.driver = info.name
        self.drivers.add(driver)
        try:
            await self._publish_driver_info(driver)
        except (CallError, APIError, TopologyCollision, RegistrationRefused, TimeoutError) as error:
            socket.driver = ""
            await self._drop(driver.name)
            text = f"RegisterPlugin error -- plugin registration failed with err: {error}"
            log.warning("driver %s: %s", info.name, text)
            await self._notify(socket, error=text)
            return
        log.info("driver %s is registered", info.name)
        await self._notify(socket)

    async def _publish_driver_info(self, driver: RegisteredDriver) -> None:
        reply = await driver.channel.call("NodeGetInfo", v1.NodeGetInfoRequest(), timeout=driver.timeout)
        if not reply.node_id:
            raise RegistrationRefused("node ID is empty")
        driver.node_id = reply.node_id
        with suppress(CallError):  # asked early, so that the first mount need not; it will ask if it must
            await driver.capabilities()
        topology = dict(reply.accessible_topology.segments)
        await self.objects.add(DriverInfo(driver.name, reply.node_id, topology, reply.max_volumes_per_node))

    async def _notify(self, socket: RegistrationSocket, error: str = "") -> None:
        try:
            await registration.notify_registration(socket.path, registered=not error, error=error)
        except (CallError, TimeoutError) as failure:
            log.warning("plugin %s could not be told: %s", socket.path, failure)

    async def _deregister(self, socket: RegistrationSocket) -> None:
        if socket.task is not None:
            socket.task.cancel()
            await asyncio.wait([socket.task])
        if socket.driver:
            log.info("driver %s has left", socket.driver)
            await self._drop(socket.driver)
            try:
                await self.objects.remove(socket.driver)
            except APIError as error:
                log.warning("driver %s is still in CSINode: %s", socket.driver, error)

    async def _drop(self, name: str) -> None:
        if driver := self.drivers.remove(name):
            await driver.channel.close()

    async def _close(self) -> None:
        tasks = [s.task for s in self._sockets.values() if s.task] + list(self._leaving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for driver in self.drivers:
            await driver.channel.close()


def highest_supported_version(versions: tuple[str, ...]) -> str:
    """The highest version we speak, "" if there is none."""
    fit = [v for v in versions if _VERSION.fullmatch(v) and _parse_version(v)[0] <= HIGHEST_MAJOR]
    return max(fit, key=_parse_version, default="")


def _parse_version(version: str) -> tuple[int, ...]:
    found = _VERSION.fullmatch(version)
    return tuple(int(part or 0) for part in found.groups()) if found else (0, 0, 0)


def _sockets(directory: str, watch: Inotify) -> dict[str, tuple[int, int, int]]:
    """Every socket below `directory` with what tells it from a later one of the same path."""
    found: dict[str, tuple[int, int, int]] = {}
    watch.add(directory, inotify.ENTRIES | inotify.ONLY_DIRECTORY)
    for entry in os.scandir(directory):
        if entry.name.startswith("."):
            continue
        try:
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                found |= _sockets(entry.path, watch)
            elif stat.S_ISSOCK(info.st_mode):
                # Inodes are used again; the time of the bind is not, and a chmod does not touch it.
                found[entry.path] = (info.st_dev, info.st_ino, info.st_mtime_ns)
        except (FileNotFoundError, NotADirectoryError):
            continue  # gone meanwhile, which is another event
    return found
