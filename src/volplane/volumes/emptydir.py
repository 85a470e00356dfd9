"""emptyDir: a directory or a tmpfs that exists as long as its pod."""

from __future__ import annotations

from volplane.api import quantity
from volplane.api.core import PersistentVolume, Volume
from volplane.host import mounts
from volplane.volumes.base import (
    PodVolumeRef,
    PodVolumeSpec,
    VolumeOperationError,
    VolumePlugin,
    make_directory,
)


def mount_tmpfs(path: str, size: int = 0) -> None:
    """Mount a tmpfs at `path` unless one is there. Its root is open to all users."""
    if not mounts.is_mount(path):
        mounts.mount("tmpfs", path, "tmpfs", [f"size={size}"] if size else [])


class EmptyDirPlugin(VolumePlugin):
    name = "kubernetes.io/empty-dir"

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return source.empty_dir is not None

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        source = spec.source.empty_dir
        assert source is not None
        path = self.path(spec)
        if source.medium not in ("", "Memory"):
            raise VolumeOperationError(f'unknown storage medium "{source.medium}"')
        await self.run_in_thread(make_directory, path, 0o777)
        if source.medium == "Memory":
            size = quantity.value(source.size_limit) if source.size_limit else 0
            await self.run_in_thread(mount_tmpfs, path, size)
            await self.run_in_thread(make_directory, path, 0o777)
        if spec.fs_group is not None:
            await self.context.host.apply_fs_group(path, spec.fs_group, only_if_root_differs=True)

    async def unpublish_keeping_data(self, ref: PodVolumeRef) -> None:
        await self.context.host.unmount(self.directory(ref.pod, ref.name))
