"""The directories of pods on this node, and their removal once nothing is mounted in them."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

from volplane.host import Host, NodePaths, mounts
from volplane.host.files import list_directories
from volplane.node.subpaths import remove_all_subpaths
from volplane.volumes.base import remove_empty_directories


async def pod_directories(host: Host, paths: NodePaths) -> list[str]:
    return await host.call(list_directories, paths.real(paths.pods))


async def log_directories(host: Host, paths: NodePaths) -> dict[str, str]:
    """The log directory of each pod by uid. It is removed last."""
    directory = paths.real(paths.logs)
    # <namespace>_<name>_<uid>: none of the three has an underscore.
    listed = await host.call(list_directories, directory)
    return {name.rpartition("_")[2]: f"{directory}/{name}" for name in listed if name.count("_") == 2}


async def remove_pod_directory(host: Host, paths: NodePaths, uid: str) -> str:
    """Remove the directory of a pod without mounts; why something had to stay, else ""."""
    return await host.call(_remove, paths.real(paths.pod(uid)), uid)


def _remove(directory: str, uid: str) -> str:
    if not os.path.lexists(directory):
        return ""
    with suppress(OSError):  # what is left is reported below
        remove_all_subpaths(directory)
    if below := mounts.read_table().under(directory):
        return f'orphaned pod "{uid}" found, but {below[0].target} is still mounted'
    # Never recursive: a volume that is still mounted after all would lose its files.
    for parent in ("volumes", "volumeDevices"):
        for plugin in list_directories(f"{directory}/{parent}"):
            for name in list_directories(f"{directory}/{parent}/{plugin}"):
                remove_empty_directories(f"{directory}/{parent}/{plugin}/{name}")
            remove_empty_directories(f"{directory}/{parent}/{plugin}")
        remove_empty_directories(f"{directory}/{parent}")
        if os.path.lexists(f"{directory}/{parent}"):
            return f'orphaned pod "{uid}" found, but {directory}/{parent} is not empty'
    shutil.rmtree(directory)
    return ""
