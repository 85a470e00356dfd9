"""The iSCSI sessions of this machine and their devices, as the kernel shows them in /sys. All calls block."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from glob import glob

from volplane.host import devices
from volplane.host.mounts import MountTable

TRANSPORT = "class/iscsi_transport/tcp"


def has_transport(sys: str, modules: str) -> bool:
    """Whether the kernel can have sessions: `iscsid` loads the module when it is needed."""
    if os.path.exists(f"{sys}/{TRANSPORT}"):
        return True
    return "/iscsi_tcp.ko" in _read(f"{modules}/{os.uname().release}/modules.dep")


def find_hosts(sys: str, iqn: str) -> dict[str, int]:
    """The number of the SCSI host for each portal of the target that has a session."""
    found = {}
    for session in _sessions(sys, iqn):
        number = int(session.split("/iscsi_host/host")[1].split("/")[0])
        for connection in glob(f"{session}/connection*"):
            values = f"{connection}/iscsi_connection/{os.path.basename(connection)}"
            for kind in ("", "persistent_"):
                address, port = _read(f"{values}/{kind}address"), _read(f"{values}/{kind}port")
                found[f"[{address}]:{port}" if ":" in address else f"{address}:{port}"] = number
    return found


def scan_lun(sys: str, host: int, lun: int) -> None:
    """Look for one LUN alone: others of the target may be meant for other machines."""
    _write(f"{sys}/class/scsi_host/host{host}/scan", f"0 0 {lun}")


def is_used(sys: str, iqn: str, table: MountTable, mapped: Collection[str], lun: int | None = None) -> bool:
    """Whether a device of the target, or of one LUN, is mounted, mapped or part of another device.

    `mapped`: numbers of the devices that are files of loop devices, as those of block volumes.
    """
    for device in _devices(sys, iqn, lun):
        numbers = [_read(path) for path in (f"{device}/dev", *glob(f"{device}/*/dev"))]  # of partitions, too
        if any(n in mapped or table.references(n) for n in numbers) or glob(f"{device}/holders/*"):
            return True
    return False


def find_mapped_devices() -> set[str]:
    """The numbers of all devices that are files of loop devices."""
    found = set()
    for file in devices.loops().values():
        with suppress(OSError):
            status = os.stat(file)
            if stat.S_ISBLK(status.st_mode):
                found.add(f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")
    return found


def delete_devices(sys: str, iqn: str, lun: int) -> None:
    """Make the kernel forget the devices of a LUN, which may be deleted on the server from now on."""
    for device in _devices(sys, iqn, lun):
        with suppress(FileNotFoundError):
            _write(f"{device}/device/delete", "1")


def _devices(sys: str, iqn: str, lun: int | None) -> Iterator[str]:
    number = "*" if lun is None else lun
    for session in _sessions(sys, iqn):
        yield from glob(f"{session}/target*/*:*:*:{number}/block/*")


def _sessions(sys: str, iqn: str) -> Iterator[str]:
    for session in sorted(glob(f"{sys}/class/iscsi_host/host*/device/session*")):
        if _read(f"{session}/iscsi_session/{os.path.basename(session)}/targetname") == iqn:
            yield session


def _read(path: str) -> str:
    """Empty if it is gone: sessions end at any time."""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    """Without reading it, which the kernel refuses, and without creating it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
