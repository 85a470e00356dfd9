"""Leftovers of a cluster's directory: mounts in all namespaces, loop devices, processes, networks."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from volplane.host import devices
from volplane.host.netlink import Netlink, delete_link

MOUNTED = " mounted"


def mounts(directory: Path) -> list[str]:
    """Mount points below the directory, oldest first."""
    place = str(directory)
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if place in line]


def loop_devices(directory: Path) -> list[str]:
    return [f"{device} {file}" for device, file in _bound_files(directory)]


def _bound_files(directory: Path) -> list[tuple[str, str]]:
    """Loop devices of files below the directory, also if the kernel shows the path of a container."""
    named = {d: f.removesuffix(devices.DELETED) for d, f in devices.loops().items() if str(directory) in f}
    return list({**named, **devices.loops_below(str(directory))}.items())


def interfaces(directory: Path) -> dict[str, str]:
    """Bridges and veth interfaces whose alias names the directory, with their aliases."""
    aliases = {place.name: _alias(place) for place in Path("/sys/class/net").iterdir()}
    return {name: alias for name, alias in aliases.items() if str(directory) in alias}


def _alias(place: Path) -> str:
    try:
        return (place / "ifalias").read_text().strip()
    except OSError:  # it went while we looked
        return ""


def processes(directory: Path) -> dict[int, str]:
    """Processes that have the directory in their arguments, open files or mounts.

    Not those of a test beside ours that have copied our mounts into a mount namespace of theirs.
    """
    found = {}
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        if pid == os.getpid() or not (why := next(_ties(pid, str(directory)), "")):
            continue
        if not (why.endswith(MOUNTED) and _is_of_another_run(pid, directory)):
            found[pid] = why
    return found


def _is_of_another_run(pid: int, directory: Path) -> bool:
    """Whether a process has mounts of the directory as copies only, and its TMPDIR is that of other tests."""
    variables = b""
    with suppress(OSError):  # it has ended
        variables = Path(f"/proc/{pid}/environ").read_bytes()
    found = re.search(rb"(?:^|\0)TMPDIR=([^\0]+)", variables)
    return (
        found is not None
        and not directory.is_relative_to(os.fsdecode(found[1]))
        and _is_copied(pid, str(directory))
    )


def _ties(pid: int, place: str) -> Iterator[str]:
    with suppress(OSError):  # ended meanwhile
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        if place in arguments:
            yield arguments
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if (file := os.readlink(f"/proc/{pid}/fd/{descriptor}")).startswith(place):
                    yield f"{arguments} has {file} open"
        if os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
            for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
                if place in line:
                    yield f"{arguments} has {line.split()[4]}{MOUNTED}"


def leftovers(directory: Path) -> dict[str, object]:
    found = {
        "mounts": mounts(directory),
        "loop devices": loop_devices(directory),
        "processes": processes(directory),
        "networks": list(interfaces(directory).values()),
    }
    return {what: left for what, left in found.items() if left}


def kill(directory: Path) -> None:
    """Kill the processes of a directory.

    A process that creates a mount namespace has a copy of our mounts at the same paths, and may belong to
    another run: it is not killed.
    """
    for pid, why in processes(directory).items():
        if not why.endswith(f"{MOUNTED}") or not _is_copied(pid, str(directory)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _is_copied(pid: int, place: str) -> bool:
    """Whether a process is related to the directory only by mounts that it has copied from us."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        return all(place in line.split()[4] for line in lines if place in line)
    return True  # it has ended


def purge(directory: Path) -> None:
    """Remove all leftovers of a failed test."""
    for _ in range(10):
        kill(directory)
        for target in reversed(mounts(directory)):
            subprocess.run(["umount", "-l", target], check=False, capture_output=True)
        for name in interfaces(directory):
            with suppress(OSError), Netlink() as link:
                link.execute(delete_link(socket.if_nametoindex(name)))
        for device, file in _bound_files(directory):
            with suppress(OSError):
                devices.loop_detach(device, file)
        if not leftovers(directory):
            return
        time.sleep(0.1)
