"""local: a directory or disk of this node as a persistent volume.

A directory is bind-mounted into the pod. A disk is formatted if it is blank, and mounted once for all pods. A
path below /dev is a disk of the node or a device of the machine. The pods of a volume share its files, and
only the first of them changes their group.
"""

from __future__ import annotations

import os
import stat

from volplane.api import quantity
from volplane.api.core import LocalVolumeSource, PersistentVolume, Pod, Volume
from volplane.host import DEVICES, FilesystemNeedsRepair, HostCommandFailed, filesystems
from volplane.host.files import list_directories
from volplane.rules import access
from volplane.volumes.base import (
    InUseExpansionError,
    NodeContext,
    PodVolumeRef,
    PodVolumeSpec,
    StagedVolumeRef,
    UncertainProgressError,
    VolumeOperationError,
    VolumePlugin,
    check_no_backsteps,
    make_directory,
    remove_empty_directories,
)
from volplane.volumes.block_device import DEFAULT_FS_TYPE, format_and_mount
from volplane.volumes.ownership import apply_fs_group


class LocalVolumePlugin(VolumePlugin):
    name = "kubernetes.io/local-volume"
    supports_mount_options = True

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return volume is not None and volume.spec.local is not None and volume.spec.volume_mode != "Block"

    def unique_name(self, pod: Pod, name: str, volume: PersistentVolume | None) -> str:
        return f"{self.name}/{name}"

    def needs_stage(self, spec: PodVolumeSpec) -> bool:
        return True

    # --- mount

    async def stage(self, spec: PodVolumeSpec) -> None:
        device, target = await self._find(spec)
        if not device:
            return
        await self.run_in_thread(make_directory, target, 0o750)
        if await self.context.host.is_mount(target):
            return
        wanted = local_source(spec).fs_type or DEFAULT_FS_TYPE
        try:
            await self._mount_device(device, target, wanted, spec)
        except (OSError, ValueError, FilesystemNeedsRepair, HostCommandFailed, VolumeOperationError) as error:
            await self.run_in_thread(remove_empty_directories, target)
            raise VolumeOperationError(
                f"local: failed to mount device {local_source(spec).path} at {target} (fstype: {wanted}), "
                f"error {error}"
            ) from error

    async def _mount_device(self, device: str, target: str, wanted: str, spec: PodVolumeSpec) -> None:
        if _waits_for_expansion(spec):
            # A mounted ext file system grows only with CAP_SYS_RESOURCE, an unmounted one without it.
            found = await self.context.host.probe(device)
            if found is not None and found.type.startswith("ext"):
                await self._grow(device, "", found.type)
        await format_and_mount(self.context.host, device, target, wanted, _mount_options(spec))

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        path = self.path(spec)
        if await self.context.host.is_mount(path):
            return
        _, shared = await self._find(spec)
        others = await self._is_used_by_other_pods(spec)
        if others and spec.fs_group is not None:
            await self._compare_group(spec, shared, spec.fs_group)
        await self.run_in_thread(make_directory, path, 0o750)
        try:
            await self.context.host.bind(shared, path, readonly=spec.readonly)
        except OSError as error:
            await self.run_in_thread(remove_empty_directories, path)
            raise VolumeOperationError(f"{local_source(spec).path}: {error.strerror}") from error
        if spec.fs_group is not None and not spec.readonly and not others:
            await self._apply_fs_group(spec, path)

    async def _apply_fs_group(self, spec: PodVolumeSpec, path: str) -> None:
        try:
            await apply_fs_group(self.context, spec, path)
        except OSError as error:
            # A volume that is mounted counts as done: the next attempt must start from the beginning.
            await self._unmount(path)
            raise VolumeOperationError(f"applyFSGroup failed for vol {spec.name}: {error}") from error

    async def _find(self, spec: PodVolumeSpec) -> tuple[str, str]:
        """The device, "" for a directory; and what all pods of the volume share."""
        path, mode = await self.context.host.call(find_path, self.context, spec)
        if stat.S_ISBLK(mode):
            return path, self._staging_path(spec.name)
        if stat.S_ISDIR(mode):
            return "", path
        raise VolumeOperationError("only directory and block device are supported")

    async def _is_used_by_other_pods(self, spec: PodVolumeSpec) -> bool:
        paths, own = self.context.paths, self.path(spec)
        below = paths.real(paths.pods) + "/"
        end = own.removeprefix(f"{below}{spec.pod.uid}")
        return any(
            entry.target.endswith(end) and entry.target.startswith(below) and entry.target != own
            for entry in await self.context.host.mounts()
        )

    async def _compare_group(self, spec: PodVolumeSpec, shared: str, group: int) -> None:
        info = await self.context.host.call(os.stat, shared)
        if info.st_gid != group:
            text = (
                f"The requested fsGroup is {group}, but the volume {spec.name} has GID {info.st_gid}. "
                "The volume may not be shareable."
            )
            self.context.warn(spec.pod, "AlreadyMountedVolume", text)

    # --- expand

    async def requires_node_expansion(self, spec: PodVolumeSpec) -> bool:
        return True

    async def expand(self, spec: PodVolumeSpec, size: int) -> None:
        """Expand the file system to its device. A directory has no size of its own."""
        device, staged = await self._find(spec)
        if not device:
            return
        found = await self.context.host.probe(device)
        assert found is not None  # it is mounted
        try:
            await self._grow(device, staged, found.type)
        except (OSError, ValueError, HostCommandFailed) as error:
            text = f"cannot expand the file system on {local_source(spec).path}: {error}"
            if found.type.startswith("ext"):
                raise InUseExpansionError(f"{text}; it is tried again when no pod uses it") from error
            raise VolumeOperationError(text) from error

    async def _grow(self, device: str, path: str, fs_type: str) -> None:
        if not await self.context.host.call(filesystems.fills_device, device, fs_type):
            await self.context.host.grow(device, path, fs_type)

    # --- unmount

    async def unpublish(self, ref: PodVolumeRef) -> None:
        await self._unmount(self.directory(ref.pod, ref.name))

    async def _unmount(self, path: str) -> None:
        await self.context.host.unmount(path)
        if await self.context.host.is_mount(path):
            raise UncertainProgressError(f"{path} is still mounted")
        # Never recursive: if the unmount had failed, this would delete the user's data.
        await self.run_in_thread(remove_empty_directories, path, os.path.dirname(path))

    async def unstage(self, device: StagedVolumeRef) -> None:
        target = self._staging_path(device.unique_name.removeprefix(f"{self.name}/"))
        await self.context.host.unmount(target)
        await self.run_in_thread(remove_empty_directories, target)

    # --- after a restart

    async def reconstruct(self, pod: str, name: str) -> PodVolumeRef:
        return PodVolumeRef(self.name, f"{self.name}/{name}", name, pod)

    async def find_staged_volumes(self) -> list[StagedVolumeRef]:
        names = await self.context.host.call(list_directories, self._staging_path(""))
        return [StagedVolumeRef(self.name, f"{self.name}/{name}") for name in names]

    def _staging_path(self, name: str) -> str:
        paths = self.context.paths
        return paths.real(f"{paths.plugins}/{self.name}/mounts/{name}")


def local_source(spec: PodVolumeSpec) -> LocalVolumeSource:
    assert spec.volume is not None
    assert spec.volume.spec.local is not None
    return spec.volume.spec.local


def find_path(context: NodeContext, spec: PodVolumeSpec) -> tuple[str, int]:
    """The directory or device on this machine, without links, and its mode. Raises VolumeOperationError."""
    path = local_source(spec).path
    check_no_backsteps(path, f"invalid path: {path}")
    real = context.devices.find(path) if path.startswith(f"{DEVICES}/") else context.paths.real(path)
    try:
        return os.path.realpath(real), os.stat(real).st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise VolumeOperationError(f'path "{path}" does not exist') from error


def _waits_for_expansion(spec: PodVolumeSpec) -> bool:
    if spec.claim is None or spec.volume is None:
        return False
    sizes = (source.get("storage", "0") for source in (spec.volume.spec.capacity, spec.claim.status.capacity))
    capacity, claimed = (quantity.value(size) for size in sizes)
    return capacity > claimed > 0


def _mount_options(spec: PodVolumeSpec) -> tuple[str, ...]:
    assert spec.volume is not None
    volume = spec.volume.spec
    # Not by the pod's readOnly: the mount is for all pods, and another one may write.
    readonly = set(volume.access_modes) == {access.READ_MANY}
    return (*volume.mount_options, "ro") if readonly else volume.mount_options
