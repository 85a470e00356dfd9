"""CSI block volumes: the driver publishes a device node, and each pod gets a link to it.

The file onto which the device is bind-mounted is created before the driver is called: after a restart it
shows that a call may have been interrupted.
"""

from __future__ import annotations

import os
from contextlib import suppress

from volplane.api.core import PersistentVolume, Volume
from volplane.csi import v1
from volplane.host import mounts
from volplane.volumes.base import (
    MAP_WORDING,
    PodVolumeRef,
    PodVolumeSpec,
    StagedVolumeRef,
    UncertainProgressError,
    VolumeOperationError,
    make_directory,
    remove_empty_directories,
)
from volplane.volumes.block_map import (
    BlockPaths,
    create_map_file,
    list_directory,
    map_device,
    remove_map_file,
    remove_unmounted,
    unmap_device,
)
from volplane.volumes.csi import request, vol_data
from volplane.volumes.csi.plugin import CsiPlugin, split_unique_name
from volplane.volumes.csi.rpc_outcome import node_rpc

DIRECTORY = "volumeDevices"


class CsiBlockPlugin(CsiPlugin):
    name = "kubernetes.io/csi:block"
    wording = MAP_WORDING

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return volume is not None and volume.spec.csi is not None and volume.spec.volume_mode == "Block"

    def path(self, spec: PodVolumeSpec) -> str:
        return self.real(self.context.paths.block_link(spec.pod.uid, spec.name))

    def volume_path(self, spec: PodVolumeSpec) -> str:
        return self.context.paths.block_target(spec.pod.uid, spec.name)

    def staging_path(self, spec: PodVolumeSpec) -> str:
        return self.context.paths.block_staging(spec.name)

    def _maps(self, pod: str, name: str) -> BlockPaths:
        paths = self.context.paths
        return BlockPaths(self.real(paths.block_map(pod, name)), self.real(paths.block_link(pod, name)))

    # --- mount

    async def stage(self, spec: PodVolumeSpec) -> None:
        message, driver = await self.stage_request(spec)
        metadata = self.real(self.context.paths.block_data(spec.name))
        known = request.pod_data(spec, self.context.node)
        del known["volumeLifecycleMode"]
        await self.run_in_thread(vol_data.prepare, os.path.dirname(metadata), metadata, known)
        if message is None:
            return
        staging = self.real(message.staging_target_path)
        await self.run_in_thread(make_directory, staging, 0o750)
        with node_rpc() as call:
            await call(driver, "NodeStageVolume", message)
        if call.final_error:
            mapped = os.path.dirname(self._maps("", spec.name).map)
            if await self.context.host.call(_holds_anything, staging, mapped):
                # An earlier call, perhaps before a restart, has staged the device: it must be unstaged.
                raise UncertainProgressError(str(call.final_error))
            await self.run_in_thread(_remove_device, metadata, staging)
            raise VolumeOperationError(str(call.final_error))

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        message, driver = await self.publish_request(spec)
        maps, target = self._maps(spec.pod.uid, spec.name), self.real(message.target_path)
        await self.run_in_thread(make_directory, os.path.dirname(target), 0o750)
        await self.run_in_thread(create_map_file, maps)
        with node_rpc() as call:
            await call(driver, "NodePublishVolume", message)
        if call.final_error:
            if not again:
                await self.run_in_thread(_remove_published, maps, target)
            raise VolumeOperationError(str(call.final_error))
        try:
            await self.run_in_thread(map_device, target, maps, readonly=spec.readonly)
        except OSError as error:
            raise UncertainProgressError(f"cannot map the device for the pod: {error}") from error

    def success_messages(self, spec: PodVolumeSpec) -> list[str]:
        where = os.path.dirname(self.context.paths.block_map(spec.pod.uid, spec.name))
        link = os.path.dirname(self.context.paths.block_link(spec.pod.uid, spec.name))
        return [f'globalMapPath "{where}"', f'volumeMapPath "{link}"']

    # --- unmount

    async def unpublish(self, ref: PodVolumeRef) -> None:
        metadata = self.real(self.context.paths.block_data(ref.name))
        maps = self._maps(ref.pod, ref.name)
        known = await self.context.host.call(vol_data.read, metadata)
        try:
            await self.run_in_thread(unmap_device, maps)
        except OSError as error:
            raise UncertainProgressError(f"device is still in use: {error}") from error
        target = self.context.paths.block_target(ref.pod, ref.name)
        if known is not None:
            message = v1.NodeUnpublishVolumeRequest(volume_id=known["volumeHandle"], target_path=target)
            await self.call_until_ok(known["driverName"], "NodeUnpublishVolume", message)
        await self.run_in_thread(_remove_published, maps, self.real(target))

    async def unstage(self, device: StagedVolumeRef) -> None:
        driver, handle = split_unique_name(device.unique_name)
        paths = self.context.paths
        metadata, staging = paths.block_data(device.name), paths.block_staging(device.name)
        self.forget_attachment(device.unique_name)
        left = await self.context.host.call(
            list_directory, self.real(os.path.dirname(paths.block_map("", device.name)))
        )
        if left:
            raise UncertainProgressError(
                f'the device "{device.unique_name}" is still referenced from other Pods [{" ".join(left)}]'
            )
        known = await self.context.host.call(vol_data.read, self.real(metadata))
        if known is not None and await self.context.host.call(os.path.isdir, self.real(staging)):
            message = v1.NodeUnstageVolumeRequest(volume_id=handle, staging_target_path=staging)
            await self.call_until_ok(driver, "NodeUnstageVolume", message)
        await self.run_in_thread(_remove_device, self.real(metadata), self.real(staging))

    # --- after a restart

    @property
    def _directory(self) -> str:
        return self.real(f"{self.context.paths.plugins}/kubernetes.io/csi/{DIRECTORY}")

    async def find_other_volumes(self) -> list[tuple[str, str]]:
        return await self.context.host.call(_scan, self._directory, self.real(self.context.paths.pods))

    async def reconstruct(self, pod: str, name: str) -> PodVolumeRef:
        metadata, maps = self.real(self.context.paths.block_data(name)), self._maps(pod, name)
        target = self.real(self.context.paths.block_target(pod, name))
        known = await self.context.host.call(vol_data.read_leftover, metadata, maps.map, target)
        unique = (
            vol_data.unique_name_from(known, metadata) if known is not None else f"{self.name}/{pod}-{name}"
        )
        return PodVolumeRef(self.name, unique, name, pod)

    async def find_staged_volumes(self) -> list[StagedVolumeRef]:
        found = []
        for name in await self.context.host.call(list_directory, self._directory):
            metadata = self.real(self.context.paths.block_data(name))
            with suppress(vol_data.UnreadableVolData):
                known = await self.context.host.call(vol_data.read, metadata)
                if known is not None:
                    found.append(StagedVolumeRef(self.name, vol_data.unique_name_from(known, metadata), name))
        return found


# --- blocking, called in threads


def _remove_published(maps: BlockPaths, target: str) -> None:
    """After NodeUnpublishVolume."""
    remove_map_file(maps)
    remove_unmounted(target)
    directory = os.path.dirname(target)
    remove_empty_directories(directory, os.path.dirname(directory))


def _remove_device(metadata: str, staging: str) -> None:
    """After NodeUnstageVolume. Never recursive, never through a mount."""
    if mounts.is_mount(staging):
        raise UncertainProgressError(f"{staging} is still a mount point")
    directory = os.path.dirname(os.path.dirname(metadata))
    remove_empty_directories(staging, os.path.dirname(staging), f"{directory}/dev")
    vol_data.remove(metadata)
    remove_empty_directories(os.path.dirname(metadata), directory)


def _holds_anything(*directories: str) -> bool:
    return any(mounts.is_mount(path) or list_directory(path) for path in directories)


def _scan(directory: str, pods: str) -> list[tuple[str, str]]:
    """(pod, volume) of everything on disk that belongs to a pod's block volume."""
    found = {
        (uid, name): None
        for name in list_directory(directory)
        if name not in ("staging", "publish")
        for uid in list_directory(f"{directory}/{name}/dev")
    }
    found |= {
        (uid, name): None
        for name in list_directory(f"{directory}/publish")
        for uid in list_directory(f"{directory}/publish/{name}")
    }
    found |= {
        (uid, name): None
        for uid in list_directory(pods)
        for name in list_directory(f"{pods}/{uid}/{DIRECTORY}/kubernetes.io~csi")
    }
    return list(found)
