"""local: a directory or disk of this node as a persistent volume.

A directory is bind-mounted into the pod. A disk is formatted if it is blank, and mounted once for all pods.
"""

from __future__ import annotations

import os
import stat

from volplane.api.core import LocalVolumeSource, PersistentVolume, Pod, Volume
from volplane.host import UNKNOWN
from volplane.volumes.base import (
    PodVolumeRef,
    PodVolumeSpec,
    StagedVolumeRef,
    UncertainProgressError,
    VolumeOperationError,
    VolumePlugin,
    make_directory,
    remove_empty_directories,
)


class LocalVolumePlugin(VolumePlugin):
    name = "kubernetes.io/local-volume"
    supports_mount_options = True

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return volume is not None and volume.spec.local is not None and volume.spec.volume_mode != "Block"

    def unique_name(self, pod: Pod, name: str, volume: PersistentVolume | None) -> str:
        return f"{self.name}/{name}"

    def needs_stage(self, spec: PodVolumeSpec) -> bool:
        return True

    async def stage(self, spec: PodVolumeSpec) -> None:
        source = _source(spec)
        if not await self.context.host.call(_is_device, self.context.paths.real(source.path)):
            return
        target, device = self._staging_path(spec.name), self.context.paths.real(source.path)
        await self.run_in_thread(make_directory, target, 0o750)
        if not await self.context.host.is_mount(target):
            await self._mount_device(device, target, source.fs_type or "ext4", spec)

    async def _mount_device(self, device: str, target: str, wanted: str, spec: PodVolumeSpec) -> None:
        found = await self.context.host.probe(device)
        if found is None:
            await self.context.host.mkfs(device, wanted)
        elif found.type == UNKNOWN:
            raise VolumeOperationError(f"{device} holds data of an unknown type and is not formatted")
        else:
            await self.context.host.fsck(device, found.type)
        options = spec.volume.spec.mount_options if spec.volume else ()
        await self.context.host.mount(device, target, found.type if found else wanted, options)

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        path, staged = self.path(spec), self._staging_path(spec.name)
        if await self.context.host.is_mount(path):
            return
        source = (
            staged
            if await self.context.host.is_mount(staged)
            else self.context.paths.real(_source(spec).path)
        )
        await self.run_in_thread(make_directory, path, 0o750)
        try:
            await self.context.host.bind(source, path, readonly=spec.readonly)
        except FileNotFoundError:
            await self.run_in_thread(remove_empty_directories, path)
            raise VolumeOperationError(f'path "{_source(spec).path}" does not exist') from None
        if spec.fs_group is not None and not spec.readonly:
            await self.context.host.apply_fs_group(path, spec.fs_group)

    async def unpublish(self, ref: PodVolumeRef) -> None:
        path = self.directory(ref.pod, ref.name)
        await self.context.host.unmount(path)
        if await self.context.host.is_mount(path):
            raise UncertainProgressError(f"{path} is still mounted")
        # Never recursive: if the unmount had failed, this would delete the user's data.
        await self.run_in_thread(remove_empty_directories, path, os.path.dirname(path))

    async def unstage(self, device: StagedVolumeRef) -> None:
        target = self._staging_path(device.unique_name.removeprefix(f"{self.name}/"))
        await self.context.host.unmount(target)
        await self.run_in_thread(remove_empty_directories, target)

    async def reconstruct(self, pod: str, name: str) -> PodVolumeRef:
        return PodVolumeRef(self.name, f"{self.name}/{name}", name, pod)

    async def find_staged_volumes(self) -> list[StagedVolumeRef]:
        names = await self.context.host.call(_list_directory, self._staging_path(""))
        return [StagedVolumeRef(self.name, f"{self.name}/{name}") for name in names]

    def _staging_path(self, name: str) -> str:
        paths = self.context.paths
        return paths.real(f"{paths.plugins}/{self.name}/mounts/{name}")


def _source(spec: PodVolumeSpec) -> LocalVolumeSource:
    assert spec.volume is not None
    assert spec.volume.spec.local is not None
    return spec.volume.spec.local


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISBLK(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def _list_directory(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []
