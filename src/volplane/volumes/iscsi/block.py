"""iscsi volumes of volumeMode Block: the node logs in, and each pod gets the device as it is."""

from __future__ import annotations

import os

from volplane.host import NodePaths
from volplane.volumes.base import (
    MAP_WORDING,
    PodVolumeRef,
    PodVolumeSpec,
    UncertainProgressError,
)
from volplane.volumes.block_map import (
    BlockPaths,
    create_map_file,
    list_directory,
    map_device,
    remove_map_file,
    unmap_device,
)
from volplane.volumes.iscsi.disk import PLUGIN, IscsiDisk, build_disk
from volplane.volumes.iscsi.plugin import IscsiPlugin, get_source, write_note


class IscsiBlockPlugin(IscsiPlugin):
    name = f"{PLUGIN}:block"
    wording = MAP_WORDING
    supports_mount_options = False
    block = True

    def path(self, spec: PodVolumeSpec) -> str:
        return _link(self.context.paths, spec.pod.uid, spec.name)

    async def stage(self, spec: PodVolumeSpec) -> None:
        await self._attach(spec, self._disk(spec))

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        disk = self._disk(spec)
        maps = self._maps(disk, spec.pod.uid, spec.name)
        device = await self._attach(spec, disk)  # the session may have ended since it was staged
        # Before the device: a restart finds them.
        await self.run_in_thread(write_note, self._note(spec.pod.uid, spec.name), spec.unique_name)
        await self.run_in_thread(create_map_file, maps)
        try:
            await self.run_in_thread(map_device, device, maps, readonly=spec.readonly)
        except OSError as error:
            raise UncertainProgressError(f"cannot map the device for the pod: {error}") from error

    def success_messages(self, spec: PodVolumeSpec) -> list[str]:
        paths = self.context.paths
        where = f"{paths.plugins}/{PLUGIN}/volumeDevices/{self._disk(spec).directory}"
        link = os.path.dirname(paths.volume_device(spec.pod.uid, PLUGIN, spec.name))
        return [f'globalMapPath "{where}"', f'volumeMapPath "{link}"']

    async def unpublish(self, ref: PodVolumeRef) -> None:
        disk = await self._read_record(ref.unique_name)
        if disk is not None:
            maps = self._maps(disk, ref.pod, ref.name)
            try:
                await self.run_in_thread(unmap_device, maps)
            except OSError as error:
                raise UncertainProgressError(f"device is still in use: {error}") from error
            await self.run_in_thread(remove_map_file, maps)
        await self._remove_note(ref)

    # --- after a restart

    async def find_other_volumes(self) -> list[tuple[str, str]]:
        paths = self.context.paths
        return await self.context.host.call(_scan, paths, self.name)

    # --- helpers

    def _disk(self, spec: PodVolumeSpec) -> IscsiDisk:
        return build_disk(get_source(spec), spec.name, block=True)

    def _maps(self, disk: IscsiDisk, pod: str, name: str) -> BlockPaths:
        return BlockPaths(f"{self._map_directory(disk)}/{pod}", _link(self.context.paths, pod, name))


def _link(paths: NodePaths, pod: str, name: str) -> str:
    return paths.real(paths.volume_device(pod, PLUGIN, name))


def _scan(paths: NodePaths, plugin: str) -> list[tuple[str, str]]:
    """(pod, volume) of every device that may be mapped: those with a note."""
    found = []
    for pod in list_directory(paths.real(paths.pods)):
        notes = os.path.dirname(paths.pod_plugin(pod, plugin, "x"))
        found += [(pod, name) for name in list_directory(paths.real(notes))]
    return found
