"""After a restart: what an earlier life has left on this node, read from its directories alone.

Nothing here asks the API server, so nothing is forgotten while it is down. Everything found counts as
uncertain: it is mounted again for pods that want it and taken down for those that are gone. Staged volumes
are found by their own metadata too, because a crash may come between staging and the first pod's directory.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress

from volplane.host import Host, NodePaths, mounts
from volplane.node.manager import VolumeManager
from volplane.node.plan import MountState
from volplane.node.subpaths import find_subpaths, remove_all_subpaths
from volplane.node.world import PodMount, VolumeEntry
from volplane.volumes.base import PodVolumeRef, VolumeOperationError, remove_empty_directories
from volplane.volumes.csi.plugin import CsiPlugin, split_unique_name

log = logging.getLogger(__name__)


async def reconstruct_volumes(manager: VolumeManager) -> None:
    """Fill the manager with what is on the disk."""
    site = manager.context
    await find_subpaths(site)
    directory = site.paths.real(site.paths.pods)
    found_there = [
        (uid, kind.name, name)
        for kind in manager.plugins.values()
        for uid, name in await kind.find_other_volumes()
    ]
    for uid, plugin, name in [*await site.host.call(_scan, directory), *found_there]:
        found = manager.plugins.get(plugin)
        if found is None:
            log.warning("orphaned volume %s of pod %s: no plugin %s", name, uid, plugin)
            continue
        try:
            place = await found.reconstruct(uid, name)
        except VolumeOperationError as error:
            log.warning("volume %s of pod %s is left alone: %s", name, uid, error)
            continue
        _add_mount(manager, place)
    for kind in manager.plugins.values():
        for device in await kind.find_staged_volumes():
            entry = _entry(manager, device.unique, device.plugin)
            entry.name, entry.label = device.name, device.label
            entry.staged, entry.device, entry.device_reconstructed = True, MountState.UNCERTAIN, True


def _add_mount(manager: VolumeManager, place: PodVolumeRef) -> None:
    entry = _entry(manager, place.unique, place.plugin)
    entry.name, entry.label = place.name, place.label
    entry.pods[place.pod] = PodMount(place, MountState.UNCERTAIN, reconstructed=True)
    if entry.staged:  # even where no metadata says so: it may be damaged, or of a driver that does not stage
        entry.device, entry.device_reconstructed = MountState.UNCERTAIN, True


def _entry(manager: VolumeManager, unique: str, plugin: str) -> VolumeEntry:
    entry = manager.entries.get(unique)
    if entry is None:
        entry = manager.entries[unique] = VolumeEntry(unique, manager.plugins[plugin])
        # Until its pod says more. A volume too many in volumesInUse delays a detach, one too few loses data.
        entry.attachable = isinstance(entry.plugin, CsiPlugin) and bool(split_unique_name(unique)[1])
        entry.staged = entry.attachable
    return entry


def update_attachability(manager: VolumeManager) -> None:
    """Once the CSIDriver objects are known: volumes of drivers without attach leave volumesInUse."""
    for entry in manager.entries.values():
        if entry.attachable and not entry.wanted and isinstance(entry.plugin, CsiPlugin):
            entry.attachable = entry.plugin.is_attachable(split_unique_name(entry.unique)[0])


def _scan(directory: str) -> list[tuple[str, str, str]]:
    """(pod, plugin, volume) of everything below `pods/*/volumes/*/*`."""
    return [
        (uid, plugin.replace("~", "/"), name)
        for uid in _listed(directory)
        for plugin in _listed(f"{directory}/{uid}/volumes")
        for name in _listed(f"{directory}/{uid}/volumes/{plugin}")
    ]


def _listed(path: str) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(path), key=lambda e: e.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from (e.name for e in entries if e.is_dir(follow_symlinks=False))


# --- directories of pods


async def pod_directories(host: Host, paths: NodePaths) -> list[str]:
    return await host.call(lambda: list(_listed(paths.real(paths.pods))))


async def log_directories(host: Host, paths: NodePaths) -> dict[str, str]:
    """Where each pod has its logs; the last thing that goes when a pod is removed."""
    directory = paths.real(paths.logs)
    # <namespace>_<name>_<uid>: none of the three has an underscore.
    listed = await host.call(lambda: list(_listed(directory)))
    return {name.rpartition("_")[2]: f"{directory}/{name}" for name in listed if name.count("_") == 2}


async def remove_pod_directory(host: Host, paths: NodePaths, uid: str) -> str:
    """Remove what a pod without mounts has left; says why something had to stay, or ""."""
    return await host.call(_remove, paths.real(paths.pod(uid)), uid)


def _remove(directory: str, uid: str) -> str:
    if not os.path.lexists(directory):
        return ""
    with suppress(OSError):  # told below
        remove_all_subpaths(directory)
    if below := mounts.read_table().under(directory):
        return f'orphaned pod "{uid}" found, but {below[0].target} is still mounted'
    # Never recursive in here: a volume that was not unmounted after all would lose its files.
    for parent in ("volumes", "volumeDevices"):
        for plugin in _listed(f"{directory}/{parent}"):
            for name in _listed(f"{directory}/{parent}/{plugin}"):
                remove_empty_directories(f"{directory}/{parent}/{plugin}/{name}")
            remove_empty_directories(f"{directory}/{parent}/{plugin}")
        remove_empty_directories(f"{directory}/{parent}")
        if os.path.lexists(f"{directory}/{parent}"):
            return f'orphaned pod "{uid}" found, but {directory}/{parent} is not empty'
    shutil.rmtree(directory)
    return ""
