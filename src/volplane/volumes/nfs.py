"""nfs: a directory of an NFS server, mounted by the kernel for each pod.

Nothing is deleted here but empty directories. The mount table is read instead of the mounted directory: a
server that does not answer would block.
"""

from __future__ import annotations

import asyncio
import os

from volplane.api.core import NFSVolumeSource, PersistentVolume, Volume
from volplane.host import HostCommandFailed
from volplane.host import mounts as mounting
from volplane.volumes.base import (
    PodVolumeRef,
    PodVolumeSpec,
    UncertainProgressError,
    VolumeOperationError,
    VolumePlugin,
    make_directory,
    remove_empty_directories,
)

UNMOUNT_TIMEOUT = 60.0  # seconds before a mount whose server does not answer is unmounted by force
FILESYSTEMS = "/proc/filesystems"
NO_HELPER = "the program mount.nfs is missing on this node: install an NFS client (Debian: nfs-common)"
NO_KERNEL_CLIENT = f"the kernel of this node has no NFS client: {FILESYSTEMS} lists neither nfs nor nfs4"


class NfsPlugin(VolumePlugin):
    name = "kubernetes.io/nfs"
    supports_mount_options = True

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return _source(source, volume) is not None

    def is_readonly(self, source: Volume, volume: PersistentVolume | None) -> bool:
        found = _source(source, volume)
        return found is not None and found.read_only

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        path = self.path(spec)
        if await self._is_mounted(path):
            return
        source = _source(spec.source, spec.volume)
        assert source is not None
        export = f"{_host(source.server)}:{source.path}"
        if export.startswith("-"):
            raise VolumeOperationError(f"cannot mount {export}: mount.nfs would take it for an option")
        if await self.context.host.call(mounting.helper_for, "nfs") is None:
            raise VolumeOperationError(f"cannot mount {export}: {await self._find_missing(NO_HELPER)}")
        given = spec.volume.spec.mount_options if spec.volume is not None else ()
        options = sorted({*given, *(["ro"] if spec.readonly else [])})
        await self.run_in_thread(make_directory, path, 0o750)
        try:
            await self.context.host.mount(export, path, "nfs", options)
        except (HostCommandFailed, OSError, TimeoutError) as error:
            await self._unmount(path)
            why = await self._find_missing(str(error) or "no answer in time")
            raise VolumeOperationError(f"cannot mount {export}: {why}") from error

    async def unpublish(self, ref: PodVolumeRef) -> None:
        await self._unmount(self.directory(ref.pod, ref.name))

    async def _unmount(self, path: str) -> None:
        if await self._is_mounted(path):
            try:
                async with asyncio.timeout(UNMOUNT_TIMEOUT):
                    await self.context.host.unmount(path)
            except TimeoutError:
                await self.context.host.unmount(path, force=True)
            if await self._is_mounted(path):
                raise UncertainProgressError(f"{path} is still mounted")
        await self.run_in_thread(remove_empty_directories, path, os.path.dirname(path))

    async def _is_mounted(self, path: str) -> bool:
        return (await self.context.host.mounts()).at(path) is not None

    async def _find_missing(self, why: str) -> str:
        """The reason, and that the kernel has no NFS client, if so."""
        known = await self.context.host.call(_read_filesystems)
        return why if {"nfs", "nfs4"} & known else f"{why}; {NO_KERNEL_CLIENT}"


def _source(source: Volume, volume: PersistentVolume | None) -> NFSVolumeSource | None:
    return volume.spec.nfs if volume is not None else source.nfs


def _host(server: str) -> str:
    return f"[{server}]" if ":" in server and not server.startswith("[") else server


def _read_filesystems() -> set[str]:
    with open(FILESYSTEMS) as file:
        return {line.split()[-1] for line in file if line.strip()}
