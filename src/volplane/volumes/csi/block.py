"""CSI block volumes: the driver publishes a device node, and each pod gets a link to it.

The node bind-mounts the driver's device onto a file of the pod (the *global map*) and keeps that file open
with a loop device, so that the disk cannot be detached and its name reused while a container has it. The file
is created before the driver is called: after a restart it shows that a call may have been interrupted.

A pod whose claim is read-only gets a read-only loop device: a device node itself cannot refuse writes.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from msgspec import Struct

from volplane.api.core import PersistentVolume, Volume
from volplane.csi import v1
from volplane.host import devices, mounts
from volplane.volumes.base import (
    EventWording,
    PodVolumeRef,
    PodVolumeSpec,
    StagedVolumeRef,
    UncertainProgressError,
    VolumeOperationError,
    make_directory,
    remove_empty_directories,
)
from volplane.volumes.csi import request, vol_data
from volplane.volumes.csi.plugin import CsiPlugin, split_unique_name
from volplane.volumes.csi.rpc_outcome import node_rpc

DIRECTORY = "volumeDevices"


class _BlockPaths(Struct, frozen=True):
    """The paths of one pod's block volume on this machine."""

    target: str  # created by the driver
    map: str  # where the device is bind-mounted
    link: str  # what the container gets


class CsiBlockPlugin(CsiPlugin):
    name = "kubernetes.io/csi:block"
    wording = EventWording("MapVolume", stage="SetUpDevice", publish="MapPodDevice", failed="FailedMapVolume")

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return volume is not None and volume.spec.csi is not None and volume.spec.volume_mode == "Block"

    def path(self, spec: PodVolumeSpec) -> str:
        return self.real(self.context.paths.block_link(spec.pod.uid, spec.name))

    def volume_path(self, spec: PodVolumeSpec) -> str:
        return self.context.paths.block_target(spec.pod.uid, spec.name)

    def staging_path(self, spec: PodVolumeSpec) -> str:
        return self.context.paths.block_staging(spec.name)

    def _maps(self, pod: str, name: str) -> _BlockPaths:
        paths = self.context.paths
        return _BlockPaths(
            self.real(paths.block_target(pod, name)),
            self.real(paths.block_map(pod, name)),
            self.real(paths.block_link(pod, name)),
        )

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
            await call(driver, "NodeStageVolume", message, spec.pod)
        if call.final_error:
            mapped = os.path.dirname(self._maps("", spec.name).map)
            if await self.context.host.call(_holds_anything, staging, mapped):
                raise UncertainProgressError(
                    str(call.final_error)
                )  # mounted before a restart: it has to be unmounted
            await self.run_in_thread(_remove_device, metadata, staging)
            raise VolumeOperationError(str(call.final_error))

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        message, driver = await self.publish_request(spec)
        maps = self._maps(spec.pod.uid, spec.name)
        await self.run_in_thread(_create_map_file, maps)
        with node_rpc() as call:
            await call(driver, "NodePublishVolume", message, spec.pod)
        if call.final_error:
            if not again:
                await self.run_in_thread(_remove_map_file, maps)
            raise VolumeOperationError(str(call.final_error))
        try:
            await self.run_in_thread(_map, maps, readonly=spec.readonly)
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
            await self.run_in_thread(_unmap, maps)
        except OSError as error:
            raise UncertainProgressError(f"device is still in use: {error}") from error
        if known is not None:
            target = self.context.paths.block_target(ref.pod, ref.name)
            message = v1.NodeUnpublishVolumeRequest(volume_id=known["volumeHandle"], target_path=target)
            await self.call_until_ok(known["driverName"], "NodeUnpublishVolume", message, ref.owner)
        await self.run_in_thread(_remove_map_file, maps)

    async def unstage(self, device: StagedVolumeRef) -> None:
        driver, handle = split_unique_name(device.unique_name)
        paths = self.context.paths
        metadata, staging = paths.block_data(device.name), paths.block_staging(device.name)
        self.forget_attachment(device.unique_name)
        left = await self.context.host.call(
            _list_directory, self.real(os.path.dirname(paths.block_map("", device.name)))
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
        known = await self.context.host.call(vol_data.read_leftover, metadata, maps.map, maps.target)
        unique = (
            vol_data.unique_name_from(known, metadata) if known is not None else f"{self.name}/{pod}-{name}"
        )
        return PodVolumeRef(self.name, unique, name, pod)

    async def find_staged_volumes(self) -> list[StagedVolumeRef]:
        found = []
        for name in await self.context.host.call(_list_directory, self._directory):
            metadata = self.real(self.context.paths.block_data(name))
            with suppress(vol_data.UnreadableVolData):
                known = await self.context.host.call(vol_data.read, metadata)
                if known is not None:
                    found.append(StagedVolumeRef(self.name, vol_data.unique_name_from(known, metadata), name))
        return found


# --- blocking, called in threads


def _create_map_file(maps: _BlockPaths) -> None:
    os.makedirs(os.path.dirname(maps.target), 0o750, exist_ok=True)
    os.makedirs(os.path.dirname(maps.map), 0o750, exist_ok=True)
    if not os.path.lexists(maps.map):
        os.close(os.open(maps.map, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o640))


def _remove_map_file(maps: _BlockPaths) -> None:
    """After NodeUnpublishVolume. Never through a mount."""
    for path in (maps.map, maps.target):
        if mounts.is_mount(path):
            raise UncertainProgressError(f"{path} is still a mount point")
        with suppress(FileNotFoundError):
            os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    for path in (maps.target, maps.link):
        remove_empty_directories(os.path.dirname(path), os.path.dirname(os.path.dirname(path)))


def _map(maps: _BlockPaths, *, readonly: bool) -> None:
    device = os.path.realpath(maps.target)  # a driver may publish a symlink or a bind mount
    wanted = _number(device)
    if wanted is None:
        raise OSError(f"{device} is not a block device")
    if mounts.is_mount(maps.map) and _number(maps.map) != wanted:
        _release(maps.map)  # of an earlier attachment: the name may be another disk's by now
    if not mounts.is_mount(maps.map):
        mounts.bind(device, maps.map, readonly=False, recursive=False)
    pinned = devices.loop_attach(maps.map, readonly=readonly)
    _replace_link(pinned if readonly else device, maps.link)


def _number(path: str) -> int | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_rdev if stat.S_ISBLK(found.st_mode) else None


def _replace_link(target: str, link: str) -> None:
    if os.path.islink(link) and os.readlink(link) == target:
        return
    os.makedirs(os.path.dirname(link), 0o750, exist_ok=True)
    temporary = f"{link}.new"
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    os.symlink(target, temporary)
    os.replace(temporary, link)


def _unmap(maps: _BlockPaths) -> None:
    with suppress(FileNotFoundError):
        os.unlink(maps.link)
    _release(maps.map)


def _release(path: str) -> None:
    for device, backing in devices.loops().items():
        if backing == os.path.realpath(path):
            devices.loop_detach(device, path)
    while mounts.is_mount(path) and mounts.unmount(path):
        pass


def _remove_device(metadata: str, staging: str) -> None:
    """After NodeUnstageVolume. Never recursive, never through a mount."""
    if mounts.is_mount(staging):
        raise UncertainProgressError(f"{staging} is still a mount point")
    directory = os.path.dirname(os.path.dirname(metadata))
    remove_empty_directories(staging, os.path.dirname(staging), f"{directory}/dev")
    vol_data.remove(metadata)
    remove_empty_directories(os.path.dirname(metadata), directory)


def _holds_anything(*directories: str) -> bool:
    return any(mounts.is_mount(path) or _list_directory(path) for path in directories)


def _list_directory(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _scan(directory: str, pods: str) -> list[tuple[str, str]]:
    """(pod, volume) of everything on disk that belongs to a pod's block volume."""
    found = {
        (uid, name): None
        for name in _list_directory(directory)
        if name not in ("staging", "publish")
        for uid in _list_directory(f"{directory}/{name}/dev")
    }
    found |= {
        (uid, name): None
        for name in _list_directory(f"{directory}/publish")
        for uid in _list_directory(f"{directory}/publish/{name}")
    }
    found |= {
        (uid, name): None
        for uid in _list_directory(pods)
        for name in _list_directory(f"{pods}/{uid}/{DIRECTORY}/kubernetes.io~csi")
    }
    return list(found)
