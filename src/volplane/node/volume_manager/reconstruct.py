"""After a restart: read from the node's directories which volumes may be mounted.

The API server is not asked, so nothing is lost while it is down. Everything found counts as uncertain: it is
mounted again for pods that need it and unmounted for pods that are gone. Staged volumes are also found by
their own metadata, because a crash may come between staging and the first pod's directory.
"""

from __future__ import annotations

import logging

from volplane.base import metrics
from volplane.host.files import list_directories
from volplane.node.subpaths import find_subpaths
from volplane.node.volume_manager.manager import VolumeManager
from volplane.node.volume_manager.reducer import AttachabilityRead, AttachmentFound, DeviceFound, MountFound
from volplane.volumes.base import VolumeOperationError

log = logging.getLogger(__name__)

RECONSTRUCTED = metrics.counter(
    "reconstruct_volume_operations_total",
    "The number of volumes that were attempted to be reconstructed from the operating system during kubelet "
    "startup. This includes both successful and failed reconstruction.",
)
FAILED = metrics.counter(
    "reconstruct_volume_operations_errors_total",
    "The number of volumes that failed reconstruction from the operating system during kubelet startup.",
)


async def reconstruct_volumes(manager: VolumeManager) -> None:
    """Pass on to the manager what is on disk."""
    context = manager.context
    await find_subpaths(context)
    found = await context.host.call(_scan, context.paths.real(context.paths.pods))
    plugins = await manager.plugins.find_plugins_on_disk()
    for plugin in plugins:
        found += [(uid, plugin.name, name) for uid, name in await plugin.find_other_volumes()]
    for uid, plugin_name, name in found:
        await _reconstruct_mount(manager, uid, plugin_name, name)
    for plugin in plugins:
        for device in await plugin.find_staged_volumes():
            attachable = plugin.may_be_attached(device.unique_name)
            manager.apply(device.unique_name, DeviceFound(device, attachable))
        for attached in await plugin.find_attached_volumes():
            manager.apply(attached.unique_name, AttachmentFound(attached))


async def _reconstruct_mount(manager: VolumeManager, uid: str, plugin_name: str, name: str) -> None:
    RECONSTRUCTED.inc()
    plugin = manager.plugins.get(plugin_name)
    if plugin is None:
        FAILED.inc()
        log.warning("orphaned volume %s of pod %s: no plugin %s", name, uid, plugin_name)
        return
    try:
        ref = await plugin.reconstruct(uid, name)
    except VolumeOperationError as error:
        FAILED.inc()
        log.warning("volume %s of pod %s is left as it is: %s", name, uid, error)
        return
    manager.apply(ref.unique_name, MountFound(ref, plugin.may_be_attached(ref.unique_name)))


def update_attachability(manager: VolumeManager) -> None:
    """Once the CSIDriver objects are known: volumes of drivers without attach leave volumesInUse."""
    for name, state in list(manager.memory.volumes.items()):
        if state.attachable and not state.desired.pods:
            manager.apply(name, AttachabilityRead(manager.plugins[state.plugin].may_be_attached(name)))


def _scan(directory: str) -> list[tuple[str, str, str]]:
    """(pod, plugin, volume) of everything below `pods/*/volumes/*/*`."""
    return [
        (uid, plugin.replace("~", "/"), name)
        for uid in list_directories(directory)
        for plugin in list_directories(f"{directory}/{uid}/volumes")
        for name in list_directories(f"{directory}/{uid}/volumes/{plugin}")
    ]
