"""Plugin registration: calls GetInfo on sockets in `plugins_registry/` and registers their drivers.

The directory is watched with inotify, never polled. A socket that is created again counts as a new one, even
at the same path: its predecessor is deregistered first, so that a restarted registrar can register. A socket
that does not answer, or whose plugin is refused after GetInfo, is retried with backoff. If a later step fails
(NodeGetInfo, the CSINode), the registration is not repeated until the socket is created again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
from contextlib import suppress

from volplane.api.errors import APIError
from volplane.base.backoff import Backoff
from volplane.base.retry import retry
from volplane.base.tasks import TaskSet, cancel_and_wait
from volplane.csi import registration, v1
from volplane.csi.call_interceptor import CallInterceptor
from volplane.csi.client import CsiChannel
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
    """The registration is refused; NotifyRegistrationStatus tells the plugin why."""


class RegistrationSocket:
    """One registration socket, from its creation to its removal."""

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
        interceptor: CallInterceptor | None = None,
    ) -> None:
        self.paths, self.host, self.drivers, self.objects = paths, host, drivers, objects
        self.directory = paths.real(paths.registry)
        self._retry_max, self._interceptor = retry_max, interceptor
        self._sockets: dict[str, RegistrationSocket] = {}
        self._leaving = TaskSet()

    async def run(self) -> None:
        """Until cancelled. Drivers stay registered, since their volumes stay mounted."""
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
        """Compare the directory with the known sockets: right after any event, also if some were lost."""
        # The watch is added before the scan, so that no socket is missed in between.
        found = await self.host.call(_sockets, self.directory, watch)
        for path, socket in list(self._sockets.items()):
            if found.get(path) != socket.identity:
                self._start_deregistration(socket)
        for path, identity in found.items():
            if path not in self._sockets:
                self._start_registration(RegistrationSocket(path, identity))

    def _start_registration(self, socket: RegistrationSocket) -> None:
        self._sockets[socket.path] = socket
        before = [task for task in self._leaving if task.get_name() == socket.path]
        socket.task = asyncio.create_task(self._register(socket, before), name=socket.path)

    def _start_deregistration(self, socket: RegistrationSocket) -> None:
        del self._sockets[socket.path]
        self._leaving.start(self._deregister(socket), socket.path)

    # --- one socket

    async def _register(self, socket: RegistrationSocket, before: list[asyncio.Task[None]]) -> None:
        if before:
            await asyncio.wait(before)

        async def ask() -> tuple[RegistrationInfo, str]:
            info = await registration.get_registration_info(socket.path, interceptor=self._interceptor)
            try:
                return info, self._admit(info)
            except RegistrationRefused as error:
                await self._notify(socket, error=str(error))
                raise

        info, version = await retry(
            ask,
            on=(CallError, TimeoutError, RegistrationRefused),
            backoff=Backoff(min(FIRST_PAUSE, self._retry_max), self._retry_max),
            report=lambda error: log.warning("plugin %s: %s", socket.path, error),
        )
        await self._add(socket, info, version)

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
            CsiChannel(endpoint, component="kubelet", interceptor=self._interceptor),
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
        reply = await driver.send("NodeGetInfo", v1.NodeGetInfoRequest())
        if not reply.node_id:
            raise RegistrationRefused("node ID is empty")
        driver.node_id = reply.node_id
        with suppress(CallError):  # read early, so that the first mount need not wait
            await driver.capabilities()
        topology = dict(reply.accessible_topology.segments)
        await self.objects.add(DriverInfo(driver.name, reply.node_id, topology, reply.max_volumes_per_node))

    async def _notify(self, socket: RegistrationSocket, error: str = "") -> None:
        try:
            await registration.notify_registration(
                socket.path, registered=not error, error=error, interceptor=self._interceptor
            )
        except (CallError, TimeoutError) as failure:
            log.warning("plugin %s: NotifyRegistrationStatus failed: %s", socket.path, failure)

    async def _deregister(self, socket: RegistrationSocket) -> None:
        if socket.task is not None:
            socket.task.cancel()
            await asyncio.wait([socket.task])
        if socket.driver:
            log.info("driver %s is deregistered", socket.driver)
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
        await cancel_and_wait(*tasks)
        for driver in self.drivers:
            await driver.channel.close()


def highest_supported_version(versions: tuple[str, ...]) -> str:
    """The highest supported version, "" if there is none."""
    fit = [v for v in versions if _VERSION.fullmatch(v) and _parse_version(v)[0] <= HIGHEST_MAJOR]
    return max(fit, key=_parse_version, default="")


def _parse_version(version: str) -> tuple[int, ...]:
    found = _VERSION.fullmatch(version)
    return tuple(int(part or 0) for part in found.groups()) if found else (0, 0, 0)


def _sockets(directory: str, watch: Inotify) -> dict[str, tuple[int, int, int]]:
    """Every socket below `directory` with an identity that differs from a later one at the same path."""
    found: dict[str, tuple[int, int, int]] = {}
    watch.add(directory, inotify.ENTRIES | inotify.ONLY_DIRECTORY)
    with os.scandir(directory) as entries:
        paths = [entry.path for entry in entries if not entry.name.startswith(".")]
    for path in paths:
        try:
            info = os.lstat(path)
            if stat.S_ISDIR(info.st_mode):
                found |= _sockets(path, watch)
            elif stat.S_ISSOCK(info.st_mode):
                # Inode numbers are reused; the modification time is that of the bind, and chmod keeps it.
                found[path] = (info.st_dev, info.st_ino, info.st_mtime_ns)
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed meanwhile; another event follows
    return found
