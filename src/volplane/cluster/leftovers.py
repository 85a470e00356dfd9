"""What a stopped cluster has left on the machine: mounts, loop devices, processes of containers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from volplane.cluster.data_directory import ClusterMember, DataDirectory
from volplane.host import Host, devices
from volplane.host.mounts import MountEntry, MountTable, read_table
from volplane.node.containers import records
from volplane.node.containers.cri import labels
from volplane.node.containers.cri.client import CriClient, CriError


async def find_leftovers(directory: Path, members: Mapping[ClusterMember, str]) -> list[str]:
    """A line for each of them; nothing after a clean stop.

    `members`: the nodes with the endpoints of their container runtimes.
    """
    host = Host()
    try:
        mounts = _list_mounts(await host.mounts(), directory)
        loops = await host.loops_below(str(directory))
        processes = await host.call(_find_processes, [str(member.root / "containers") for member in members])
    finally:
        await host.close()
    return [
        *(f"mount {entry.target}" for entry in mounts),
        *(f"loop device {device} of {file}" for device, file in sorted(loops.items())),
        *processes,
        *[line for member, runtime in members.items() for line in await _find_sandboxes(member, runtime)],
    ]


def describe_leftovers(layout: DataDirectory) -> str:
    """What a killed cluster has left, such as "1 container and 3 mounts"; "" if nothing is left."""
    found = {
        "container": len(_find_processes(map(str, _list_container_directories(layout)))),
        "mount": len(_list_mounts(read_table(), layout.directory)),
        "loop device": len(devices.loops_below(str(layout.directory))),
    }
    parts = [f"{count} {what}{'s' if count > 1 else ''}" for what, count in found.items() if count]
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def _list_mounts(table: MountTable, directory: Path) -> list[MountEntry]:
    """Below the data directory, which may be a mount point itself."""
    return [entry for entry in table.under(str(directory)) if entry.target != str(directory)]


async def _find_sandboxes(member: ClusterMember, runtime: str) -> list[str]:
    if not runtime:
        return []
    cri = CriClient(runtime)
    try:
        found = await cri.list_sandboxes(labels.node_labels(str(member.root)))
    except CriError as error:
        return [
            f"perhaps sandboxes of {member.name} in the container runtime, which does not answer: {error}"
        ]
    finally:
        await cri.close()
    return [f"sandbox {s.id} of pod {s.metadata.namespace}/{s.metadata.name}" for s in found]


def _find_processes(directories: Iterable[str]) -> list[str]:
    return [
        f"process {record.started.pid} of container {record.started.spec.name}"
        f" of pod {record.started.spec.pod_name}"
        for directory in directories
        for record in records.load_all(directory)
        if record.is_alive
    ]


def find_namespace_process(layout: DataDirectory) -> int:
    """A process in the user namespace in which this cluster's containers still run; 0 if there is none."""
    own = os.stat("/proc/self/ns/user").st_ino
    for directory in _list_container_directories(layout):
        for record in records.load_all(str(directory)):
            if record.is_shim_alive:
                with suppress(OSError):  # it ended meanwhile, or belongs to another user
                    if os.stat(f"/proc/{record.started.shim}/ns/user").st_ino != own:
                        return record.started.shim
    return 0


def _list_container_directories(layout: DataDirectory) -> list[Path]:
    with suppress(PermissionError):  # another user's cluster, which the start refuses
        return list(layout.nodes.glob("*/containers"))
    return []
