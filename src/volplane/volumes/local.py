"""local: a directory or a disk that is tied to this node, given to pods as a persistent volume.

A directory is bound straight into the pod. A disk is formatted if it is blank and mounted once for all pods.
"""

from __future__ import annotations

import os
import stat

from volplane.api.core import LocalVolumeSource, PersistentVolume, Pod, Volume
from volplane.host import UNKNOWN
from volplane.volumes.base import (
    Device,
    Place,
    Plugin,
    Spec,
    Uncertain,
    VolumeFailure,
    make_directory,
    remove_empty,
)


class Local(Plugin):
    name = "kubernetes.io/local-volume"
    takes_mount_options = True

    def owns(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return volume is not None and volume.spec.local is not None and volume.spec.volume_mode != "Block"

    def unique(self, pod: Pod, name: str, volume: PersistentVolume | None) -> str:
        return f"{self.name}/{name}"

    def needs_stage(self, spec: Spec) -> bool:
        return True

    async def stage(self, spec: Spec) -> None:
        source = _source(spec)
        if not await self.site.host.call(_is_device, self.site.paths.real(source.path)):
            return
        target, device = self._staged(spec.name), self.site.paths.real(source.path)
        await self.run(make_directory, target, 0o750)
        if not await self.site.host.is_mount(target):
            await self._mount_device(device, target, source.fs_type or "ext4", spec)

    async def _mount_device(self, device: str, target: str, wanted: str, spec: Spec) -> None:
        found = await self.site.host.probe(device)
        if found is None:
            await self.site.host.mkfs(device, wanted)
        elif found.type == UNKNOWN:
            raise VolumeFailure(f"{device} holds data of an unknown kind and is not formatted")
        else:
            await self.site.host.fsck(device, found.type)
        options = spec.volume.spec.mount_options if spec.volume else ()
        await self.site.host.mount(device, target, found.type if found else wanted, options)

    async def publish(self, spec: Spec, *, again: bool = False) -> None:
        path, staged = self.path(spec), self._staged(spec.name)
        if await self.site.host.is_mount(path):
            return
        source = staged if await self.site.host.is_mount(staged) else self.site.paths.real(_source(spec).path)
        await self.run(make_directory, path, 0o750)
        try:
            await self.site.host.bind(source, path, readonly=spec.readonly)
        except FileNotFoundError:
            await self.run(remove_empty, path)
            raise VolumeFailure(f'path "{_source(spec).path}" does not exist') from None
        if spec.group is not None and not spec.readonly:
            await self.site.host.give_to_group(path, spec.group)

    async def unpublish(self, place: Place) -> None:
        path = self.directory(place.pod, place.name)
        await self.site.host.unmount(path)
        if await self.site.host.is_mount(path):
            raise Uncertain(f"{path} is still mounted")
        # Never recursive: if the unmount had not happened, this would be the user's data.
        await self.run(remove_empty, path, os.path.dirname(path))

    async def unstage(self, device: Device) -> None:
        target = self._staged(device.unique.removeprefix(f"{self.name}/"))
        await self.site.host.unmount(target)
        await self.run(remove_empty, target)

    async def found(self, pod: str, name: str) -> Place:
        return Place(self.name, f"{self.name}/{name}", name, pod)

    async def devices(self) -> list[Device]:
        names = await self.site.host.call(_listed, self._staged(""))
        return [Device(self.name, f"{self.name}/{name}") for name in names]

    def _staged(self, name: str) -> str:
        paths = self.site.paths
        return paths.real(f"{paths.plugins}/{self.name}/mounts/{name}")


def _source(spec: Spec) -> LocalVolumeSource:
    assert spec.volume is not None
    assert spec.volume.spec.local is not None
    return spec.volume.spec.local


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISBLK(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []
