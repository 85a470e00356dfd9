"""Log in to iSCSI targets and out of them, with the program `iscsiadm`.

Commands and their order are those of upstream's pkg/volume/iscsi, with one attempt for each portal: the
caller tries again. Multipath devices are not used: the device of the first portal that answers is the
volume's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Collection, Mapping

from msgspec import Struct, field

from volplane.base import failpoint
from volplane.host import Host, inotify, mounts
from volplane.host.inotify import Inotify
from volplane.host.processes import OutputTooLong
from volplane.volumes.iscsi import sessions
from volplane.volumes.iscsi.disk import IscsiDisk

log = logging.getLogger(__name__)

PROGRAM = "iscsiadm"
MAX_OUTPUT = 1 << 20  # bytes
# Exit codes of iscsiadm
SESSION_NOT_FOUND, EXISTS, NOTHING_FOUND = 2, 15, 21
HIDDEN = "***"
DISCOVERY_KEYS = tuple(
    f"discovery.sendtargets.auth.{key}" for key in ("username", "password", "username_in", "password_in")
)
SESSION_KEYS = tuple(
    f"node.session.auth.{key}" for key in ("username", "password", "username_in", "password_in")
)
_TRANSPORT = re.compile(r"^iface\.transport_name = (.*)$", re.MULTILINE)
_SETTING = re.compile(r"^(iface\.\S+) = (\S+)\s*$", re.MULTILINE)


class IscsiError(Exception):
    """A portal, target or device cannot be used; the text says why."""


class IscsiSettings(Struct, frozen=True):
    """Where this machine shows its sessions and devices, and time limits in seconds."""

    sys: str = "/sys"
    modules: str = "/lib/modules"
    by_path: str = "/dev/disk/by-path"
    call_timeout: float = 120.0
    device_timeout: float = 30.0


class ChapSecret(Struct, frozen=True):
    for_discovery: bool = False
    for_session: bool = False
    values: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"ChapSecret({', '.join(sorted(self.values))})"


class IscsiInitiator:
    def __init__(self, host: Host, settings: IscsiSettings) -> None:
        self._host, self._settings = host, settings

    # --- log in

    async def attach(self, disk: IscsiDisk, chap: ChapSecret) -> str:
        """Log in through all portals and return a device of the disk. Raises IscsiError."""
        shown = await self._call("-m", "iface", "-I", disk.configured_interface, "-o", "show")
        if disk.initiator_name:
            await self._clone_interface(disk, shown)
        found, problems = "", []
        for portal in disk.portals:
            try:
                device = await self._attach_portal(disk, portal, chap, _parse_transport(shown))
                found = found or device
            except IscsiError as error:
                log.warning("iscsi %s: portal %s: %s", disk, portal, error)
                problems.append(f"portal {portal}: {error}")
        if not found:
            raise IscsiError("; ".join(problems))
        return found

    async def _attach_portal(self, disk: IscsiDisk, portal: str, chap: ChapSecret, transport: str) -> str:
        if portal not in await self._find_hosts(disk):
            await self._discover(disk, portal, chap)
            await self._log_in(disk, portal, chap)
        number = (await self._find_hosts(disk)).get(portal)
        if number is None:
            raise IscsiError("there is no session after the login; the portal must be an IP address")
        try:
            await self._host.call(sessions.scan_lun, self._settings.sys, number, disk.lun)
        except OSError as error:
            raise IscsiError(f"cannot scan host {number} for LUN {disk.lun}: {error.strerror}") from error
        address = portal.replace("[", "").replace("]", "")
        prefix = "" if transport == "tcp" else "pci-*-"
        return await self._wait_for_device(f"{prefix}ip-{address}-iscsi-{disk.iqn}-lun-{disk.lun}")

    async def _find_hosts(self, disk: IscsiDisk) -> dict[str, int]:
        return await self._host.call(sessions.find_hosts, self._settings.sys, disk.iqn)

    async def _discover(self, disk: IscsiDisk, portal: str, chap: ChapSecret) -> None:
        database = ("-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", disk.interface)
        await self._try(*database, "-o", "new")
        if chap.for_discovery:
            await self._set(database, "discovery.sendtargets.auth.authmethod", "CHAP")
            await self._set_secrets(database, DISCOVERY_KEYS, chap)
        try:
            await self._call(*database, "--discover")
        except IscsiError:
            await self._try(*database, "-o", "delete")
            raise

    async def _log_in(self, disk: IscsiDisk, portal: str, chap: ChapSecret) -> None:
        node = ("-m", "node", "-p", portal, "-T", disk.iqn, "-I", disk.interface)
        # Other LUNs of the target are not looked for: they may be meant for other machines.
        await self._try(*node, *_update("node.session.scan", "manual"))
        if chap.for_session:
            await self._set(node, "node.session.auth.authmethod", "CHAP")
            await self._set_secrets(node, SESSION_KEYS, chap)
        try:
            with failpoint.around("iscsi:login"):
                await self._call(*node, "--login", allowed=(EXISTS,))
        except IscsiError:
            await self._try("-m", "node", "-p", portal, "-I", disk.interface, "-T", disk.iqn, "-o", "delete")
            raise
        await self._try("-m", "node", "-p", portal, "-T", disk.iqn, *_update("node.startup", "manual"))

    async def _set(self, record: tuple[str, ...], key: str, value: str) -> None:
        await self._call(*record, *_update(key, value))

    async def _set_secrets(self, record: tuple[str, ...], keys: Collection[str], chap: ChapSecret) -> None:
        for key in keys:
            if value := chap.values.get(key):
                await self._call(*record, *_update(key, value), secret=value)

    async def _clone_interface(self, disk: IscsiDisk, shown: str) -> None:
        interface = ("-m", "iface", "-I", disk.interface)
        await self._call(*interface, "-o", "new", allowed=(EXISTS,))
        settings = _parse_interface(shown) | {"iface.initiatorname": disk.initiator_name}
        for key, value in sorted(settings.items()):
            await self._set(interface, key, value)

    async def _wait_for_device(self, name: str) -> str:
        """By the name of its link; the name may be a pattern."""
        directory, limit = self._settings.by_path, self._settings.device_timeout
        try:
            async with asyncio.timeout(limit), Inotify() as watch:
                while True:
                    watched = await self._host.call(_nearest_directory, directory)
                    watch.add(watched, inotify.ENTRIES)
                    if found := await self._host.call(_find_link, directory, name):
                        return found
                    if watched == await self._host.call(_nearest_directory, directory):
                        await watch.read()
        except TimeoutError:
            raise IscsiError(f"no device {directory}/{name} within {limit:g} s") from None
        except OSError as error:
            raise IscsiError(f"cannot wait for {directory}/{name}: {error}") from error

    # --- log out

    async def detach(self, disk: IscsiDisk, others: Collection[IscsiDisk]) -> None:
        """Log out, except where a session serves other disks: `others` of this node, or mounted ones.

        Raises IscsiError.
        """
        await self._delete_devices(disk)
        others = [other for other in others if other.interface == disk.interface]
        shared = {portal for other in others if other.iqn == disk.iqn for portal in other.portals}
        if await self._is_used(disk, None):
            return
        for portal in disk.portals:
            if portal not in shared:
                await self._log_out(disk, portal)
        if disk.initiator_name and not others:
            await self._call("-m", "iface", "-I", disk.interface, "-o", "delete", allowed=(NOTHING_FOUND,))

    async def _delete_devices(self, disk: IscsiDisk) -> None:
        """Not those that another node of this machine has mounted. A logout deletes the rest, too."""
        if await self._is_used(disk, disk.lun):
            return
        try:
            await self._host.call(sessions.delete_devices, self._settings.sys, disk.iqn, disk.lun)
        except OSError as error:
            log.warning("iscsi %s: device not deleted: %s", disk, error)

    async def _is_used(self, disk: IscsiDisk, lun: int | None) -> bool:
        table = await self._host.call(mounts.read_table)
        mapped = await self._host.call(sessions.find_mapped_devices)
        return await self._host.call(sessions.is_used, self._settings.sys, disk.iqn, table, mapped, lun)

    async def _log_out(self, disk: IscsiDisk, portal: str) -> None:
        node, gone = ("-m", "node", "-p", portal, "-T", disk.iqn), (SESSION_NOT_FOUND, NOTHING_FOUND)
        with failpoint.around("iscsi:logout"):
            await self._call(*node, "--logout", "-I", disk.interface, allowed=gone)
        await self._call(*node, "-o", "delete", "-I", disk.interface, allowed=gone)

    # --- iscsiadm

    async def _try(self, *arguments: str) -> None:
        """A call whose failure does not matter."""
        try:
            await self._call(*arguments)
        except IscsiError as error:
            log.info("%s", error)

    async def _call(self, *arguments: str, secret: str = "", allowed: Collection[int] = ()) -> str:
        """The output. `secret` is shown nowhere. Raises IscsiError."""
        command = _hide(" ".join([PROGRAM, *arguments]), secret)
        log.debug("%s", command)
        limit = self._settings.call_timeout
        try:
            argv = [PROGRAM, *arguments]
            completed = await self._host.capture(argv, timeout=limit, max_output=MAX_OUTPUT)
        except TimeoutError:
            raise IscsiError(f"{command}: no answer within {limit:g} s") from None
        except (OSError, ValueError, OutputTooLong) as error:
            raise IscsiError(f"{command}: {_hide(str(error), secret)}") from None
        if completed.code and completed.code not in allowed:
            text = f"{command}: exit status {completed.code}: {_hide(completed.output, secret)}"
            raise IscsiError(text)
        return completed.output


def _update(key: str, value: str) -> tuple[str, ...]:
    return "-o", "update", "-n", key, "-v", value


def _hide(text: str, secret: str) -> str:
    return text.replace(secret, HIDDEN) if secret else text


def _parse_transport(shown: str) -> str:
    found = _TRANSPORT.search(shown)
    if found is None:
        raise IscsiError("the interface has no iface.transport_name")
    return "tcp" if found[1].strip() == "<empty>" else found[1].strip()


def _parse_interface(shown: str) -> dict[str, str]:
    """The settings of an interface that a clone of it gets."""
    found = {key: value for key, value in _SETTING.findall(shown) if value != "<empty>"}
    found.pop("iface.iscsi_ifacename", None)
    return found


def _nearest_directory(path: str) -> str:
    """The directory, or while it does not exist the next one above."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _find_link(directory: str, pattern: str) -> str:
    """The device behind the first link of this name, "" if there is none."""
    try:
        names = sorted(name for name in os.listdir(directory) if _matches(name, pattern))
    except FileNotFoundError:
        return ""
    paths = (os.path.join(directory, name) for name in names)
    return next((os.path.realpath(path) for path in paths if os.path.exists(path)), "")


def _matches(name: str, pattern: str) -> bool:
    """The part before "*" and the part after it: an IPv6 address is no pattern of characters."""
    start, star, end = pattern.rpartition("*")
    return name.startswith(start) and name.endswith(end) if star else name == pattern
