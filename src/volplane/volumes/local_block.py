"""local volumes of volumeMode Block: a device of this node, passed to the container as it is."""

from __future__ import annotations

import os
import stat

from volplane.api.core import PersistentVolume, Pod, Volume
from volplane.volumes.base import (
    MAP_WORDING,
    PodVolumeRef,
    PodVolumeSpec,
    StagedVolumeRef,
    UncertainProgressError,
    VolumeOperationError,
    VolumePlugin,
    remove_empty_directories,
)
from volplane.volumes.block_map import (
    BlockPaths,
    create_map_file,
    list_directory,
    map_device,
    remove_map_file,
    unmap_device,
)
from volplane.volumes.local import LocalVolumePlugin, find_path, local_source


class LocalBlockPlugin(VolumePlugin):
    name = "kubernetes.io/local-volume:block"
    wording = MAP_WORDING

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return volume is not None and volume.spec.local is not None and volume.spec.volume_mode == "Block"

    def unique_name(self, pod: Pod, name: str, volume: PersistentVolume | None) -> str:
        return f"{LocalVolumePlugin.name}/{name}"

    def needs_stage(self, spec: PodVolumeSpec) -> bool:
        return True

    def path(self, spec: PodVolumeSpec) -> str:
        return self._maps(spec.pod.uid, spec.name).link

    async def stage(self, spec: PodVolumeSpec) -> None:
        """Only the check: there is nothing to set up."""
        _, mode = await self.context.host.call(find_path, self.context, spec)
        if not stat.S_ISBLK(mode):
            raise VolumeOperationError(f'path "{local_source(spec).path}" is not a block device')

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        device, _ = await self.context.host.call(find_path, self.context, spec)
        maps = self._maps(spec.pod.uid, spec.name)
        await self.run_in_thread(create_map_file, maps)  # before the device: a restart finds it
        try:
            await self.run_in_thread(map_device, device, maps, readonly=spec.readonly)
        except OSError as error:
            raise UncertainProgressError(f"cannot map the device for the pod: {error}") from error

    def success_messages(self, spec: PodVolumeSpec) -> list[str]:
        paths = self.context.paths
        link = os.path.dirname(paths.volume_device(spec.pod.uid, LocalVolumePlugin.name, spec.name))
        return [f'globalMapPath "{paths.local_block_maps}/{spec.name}"', f'volumeMapPath "{link}"']

    async def requires_node_expansion(self, spec: PodVolumeSpec) -> bool:
        return True

    async def expand(self, spec: PodVolumeSpec, size: int) -> None:
        """The device has grown already; there is no file system."""

    async def unpublish(self, ref: PodVolumeRef) -> None:
        maps = self._maps(ref.pod, ref.name)
        try:
            await self.run_in_thread(unmap_device, maps)
        except OSError as error:
            raise UncertainProgressError(f"device is still in use: {error}") from error
        await self.run_in_thread(remove_map_file, maps)

    async def unstage(self, device: StagedVolumeRef) -> None:
        directory = self._map_directory(device.unique_name.removeprefix(f"{LocalVolumePlugin.name}/"))
        await self.run_in_thread(remove_empty_directories, directory)

    # --- after a restart

    async def find_other_volumes(self) -> list[tuple[str, str]]:
        return await self.context.host.call(_scan, self._map_directory(""))

    async def reconstruct(self, pod: str, name: str) -> PodVolumeRef:
        return PodVolumeRef(self.name, f"{LocalVolumePlugin.name}/{name}", name, pod)

    def _map_directory(self, name: str) -> str:
        return self.context.paths.real(f"{self.context.paths.local_block_maps}/{name}")

    def _maps(self, pod: str, name: str) -> BlockPaths:
        paths = self.context.paths
        link = paths.real(paths.volume_device(pod, LocalVolumePlugin.name, name))
        return BlockPaths(f"{self._map_directory(name)}/{pod}", link)


def _scan(directory: str) -> list[tuple[str, str]]:
    """(pod, volume) of every device that may be mapped."""
    return [
        (pod, name) for name in list_directory(directory) for pod in list_directory(f"{directory}/{name}")
    ]
