"""The FlexVolume plugin of one driver: device mount once per node, mount once per pod, and the reverse.

A plugin belongs to a driver's name and outlives its executable: each call goes to the driver that is loaded
then, and fails while there is none. A driver with the capability `attach` has a device directory for each
volume, made before its first call, so that after a restart the directories alone tell what may be mounted.
Paths in calls are paths of this machine, because the driver runs outside of containers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping

from volplane.api.core import PersistentVolume, Pod, Secret, Volume
from volplane.api.errors import APIError
from volplane.host import FilesystemNeedsRepair, HostCommandFailed, mounts
from volplane.host.files import list_directories
from volplane.rules import sizes
from volplane.volumes.base import (
    NodeContext,
    NotAttachedError,
    PodVolumeRef,
    PodVolumeSpec,
    StagedVolumeRef,
    TransientOperationError,
    UncertainProgressError,
    VolumeMetrics,
    VolumeOperationError,
    VolumePlugin,
    make_directory,
    remove_empty_directories,
)
from volplane.volumes.block_device import format_and_mount
from volplane.volumes.flex import attach_record
from volplane.volumes.flex.attach_record import AttachRecord
from volplane.volumes.flex.driver import FlexDriver, FlexReply
from volplane.volumes.flex.errors import FlexCallError, FlexNotSupported
from volplane.volumes.flex.options import FlexVolume, build_options, find_flex_volume, mount_options
from volplane.volumes.mount_references import find_references
from volplane.volumes.ownership import apply_fs_group

log = logging.getLogger(__name__)

MOUNTS, ATTACHED = "mounts", "attached"  # directories of a driver: device directories, attach records
FAMILY = "kubernetes.io/flexvolume"  # the directory of all drivers below `plugins`
ATTACH_TIMEOUT = 600.0  # seconds for `waitforattach`
DIRECTORY_MODE = 0o750


class FlexVolumePlugin(VolumePlugin):
    attaches_from_node = True

    def __init__(self, context: NodeContext, name: str, drivers: Mapping[str, FlexDriver]) -> None:
        """`drivers`: the loaded drivers by name, as they change."""
        super().__init__(context)
        self.name = name
        self._drivers = drivers
        self._devices: dict[str, str] = {}  # by unique name: the device that `waitforattach` answered
        self._found_on_disk: set[str] = set()  # unique names of volumes with a device directory

    # --- which volumes

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        flex = find_flex_volume(source, volume)
        is_block = volume is not None and volume.spec.volume_mode == "Block"
        return flex is not None and flex.driver == self.name and self.name in self._drivers and not is_block

    def unique_name(self, pod: Pod, name: str, volume: PersistentVolume | None) -> str:
        attaches = self._drivers[self.name].capabilities.attach
        return f"{self.name}/{name}" if attaches else super().unique_name(pod, name, volume)

    def is_readonly(self, source: Volume, volume: PersistentVolume | None) -> bool:
        flex = find_flex_volume(source, volume)
        return flex is not None and flex.read_only

    def needs_attach(self, spec: PodVolumeSpec) -> bool:
        # By the name that the spec was given: the driver may have been replaced since.
        return spec.unique_name == self._flex_volume(spec).unique_name

    def needs_stage(self, spec: PodVolumeSpec) -> bool:
        return self.needs_attach(spec)

    def may_be_attached(self, unique_name: str) -> bool:
        return unique_name in self._found_on_disk

    def may_use_driver(self, unique_name: str, driver: str) -> bool:
        return driver == self.name

    # --- attach, where no controller does it

    async def attach(self, spec: PodVolumeSpec) -> str:
        driver, flex, records = self._loaded_driver(), self._flex_volume(spec), self._directory(ATTACHED)
        options, node, subject = build_options(flex), self.context.node, spec.ref.owner
        known = await self.context.host.call(attach_record.read, records, flex.name)
        if known is not None and known.attached:
            reply = await self._call(driver, "isattached", options, node, subject=subject)
            if reply is not None and reply.attached:
                return known.device
        await self.run_in_thread(attach_record.write, records, flex.name, AttachRecord())
        reply = await self._call(driver, "attach", options, node, subject=subject)
        device = reply.device if reply is not None else ""
        await self.run_in_thread(attach_record.write, records, flex.name, AttachRecord(True, device))
        return device

    async def detach(self, device: StagedVolumeRef) -> None:
        name = self._volume_name(device)
        await self._call(self._loaded_driver(), "detach", name, self.context.node)
        await self.run_in_thread(attach_record.remove, self._directory(ATTACHED), name)
        self._found_on_disk.discard(device.unique_name)

    async def find_attached_volumes(self) -> list[StagedVolumeRef]:
        names = await self.context.host.call(attach_record.list_names, self._directory(ATTACHED))
        return self._refs(names)

    # --- device

    async def stage(self, spec: PodVolumeSpec) -> None:
        driver, flex = self._loaded_driver(), self._flex_volume(spec)
        device = await self._wait_for_attach(driver, flex, spec)
        self._devices[spec.unique_name] = device
        path = self._device_directory(flex.name)
        if await self.context.host.is_mount(path):
            return
        await self.run_in_thread(make_directory, path, DIRECTORY_MODE)
        try:
            options = build_options(flex)
            reply = await self._call(driver, "mountdevice", path, device, options, subject=spec.ref.owner)
            if reply is None and device:
                await self._format_and_mount(flex, device, path)
        except VolumeOperationError as error:
            await self._remove_failed(path, error)
            raise

    async def _wait_for_attach(self, driver: FlexDriver, flex: FlexVolume, spec: PodVolumeSpec) -> str:
        options, subject = build_options(flex), spec.ref.owner
        try:
            await driver.check_volume_name(options, subject)
            reply = await self._call(
                driver, "waitforattach", spec.device_path, options, timeout=ATTACH_TIMEOUT, subject=subject
            )
        except (FlexCallError, VolumeOperationError) as error:
            raise NotAttachedError(str(error)) from error
        return spec.device_path if reply is None else reply.device

    async def _format_and_mount(self, flex: FlexVolume, device: str, path: str) -> None:
        options = ["ro" if flex.read_only else "rw"]
        try:
            await format_and_mount(self.context.host, device, path, flex.fs_type, options)
        except (OSError, HostCommandFailed, FilesystemNeedsRepair) as error:
            raise VolumeOperationError(f"cannot mount {device} at {path}: {error}") from error

    async def unstage(self, device: StagedVolumeRef) -> None:
        path = self._device_directory(self._volume_name(device))
        is_mounted, others = await self.context.host.call(_find_mounts, path, self.context.paths.root)
        if others:
            raise UncertainProgressError(
                f'the device mount path "{path}" is still mounted by other references [{" ".join(others)}]'
            )
        if is_mounted:
            await self._unmount("unmountdevice", path)
        await self.run_in_thread(_remove_directory, path)
        self._devices.pop(device.unique_name, None)
        self._found_on_disk.discard(device.unique_name)

    # --- pod

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        driver, flex, path = self._loaded_driver(), self._flex_volume(spec), self.path(spec)
        if await self.context.host.is_mount(path):
            return
        extra = mount_options(spec.pod, await self._read_secret(flex, spec.pod), spec.fs_group)
        await self.run_in_thread(make_directory, path, DIRECTORY_MODE)
        try:
            options = build_options(flex, extra)
            if await self._call(driver, "mount", path, options, subject=spec.ref.owner) is None:
                await self._bind_device(flex, path)
        except VolumeOperationError as error:
            await self._remove_failed(path, error)
            raise
        if driver.capabilities.fsgroup and spec.fs_group is not None and not flex.read_only:
            await self._apply_fs_group(spec, path)

    async def _bind_device(self, flex: FlexVolume, path: str) -> None:
        source = self._device_directory(flex.name)
        try:
            await self.context.host.bind(source, path, readonly=flex.read_only, recursive=False)
        except OSError as error:
            raise VolumeOperationError(f"cannot bind {source} to {path}: {error.strerror}") from error

    async def _apply_fs_group(self, spec: PodVolumeSpec, path: str) -> None:
        """An error does not fail the mount, as upstream: the driver may have its own ownership."""
        try:
            await apply_fs_group(self.context, spec, path)
        except OSError as error:
            log.warning("flexvolume %s: fsGroup of volume %s not applied: %s", self.name, spec.name, error)

    async def _read_secret(self, flex: FlexVolume, pod: Pod) -> Mapping[str, bytes]:
        if flex.secret is None or not flex.secret.name:
            return {}
        name, namespace = flex.secret.name, flex.secret.namespace or pod.namespace
        try:
            secret = await self.context.client.get(Secret, name, namespace)
        except APIError as error:
            raise TransientOperationError(f"couldn't get secret {namespace}/{name} err: {error}") from error
        if secret.type != self.name:
            raise VolumeOperationError(
                f"couldn't get secret {namespace}/{name} err: cannot get secret of type {self.name}"
            )
        return secret.data

    async def unpublish(self, ref: PodVolumeRef) -> None:
        path = self.directory(ref.pod, ref.name)
        if self.name not in self._drivers and not await self.context.host.is_mount(path):
            # An empty directory needs no driver; for any other, the unmount waits for one.
            await self.run_in_thread(remove_empty_directories, path)
        if await self.context.host.call(os.path.lexists, path):
            await self._unmount("unmount", path, ref.owner)
            await self.run_in_thread(_remove_directory, path)
        await self.run_in_thread(remove_empty_directories, os.path.dirname(path))

    # --- expand and measure

    async def requires_node_expansion(self, spec: PodVolumeSpec) -> bool:
        return self._loaded_driver().capabilities.requiresfsresize

    async def expand(self, spec: PodVolumeSpec, size: int) -> None:
        driver, path = self._loaded_driver(), self.path(spec)
        device = self._devices.get(spec.unique_name, spec.device_path)
        options, old = build_options(self._flex_volume(spec)), sizes.claimed_size(spec.claim)
        subject = spec.ref.owner
        reply = await self._call(
            driver, "expandfs", options, device, path, str(size), str(old), subject=subject
        )
        if reply is None:
            await self._grow(device, path)

    async def _grow(self, device: str, path: str) -> None:
        try:
            found = await self.context.host.probe(device)
            await self.context.host.grow(device, path, found.type if found else "")
        except (OSError, ValueError, HostCommandFailed) as error:
            raise VolumeOperationError(
                f'cannot resize the file system of device "{device}": {error}'
            ) from error

    async def read_metrics(self, spec: PodVolumeSpec) -> VolumeMetrics | None:
        if not self._loaded_driver().capabilities.supportsmetrics:
            return None
        usage = await self.context.host.stats(self.path(spec))
        return VolumeMetrics(
            usage.capacity, usage.available, usage.used, usage.inodes, usage.inodes_free, usage.inodes_used
        )

    # --- after a restart

    async def reconstruct(self, pod: str, name: str) -> PodVolumeRef:
        if name not in await self._list_devices():
            return await super().reconstruct(pod, name)
        unique = f"{self.name}/{name}"
        self._found_on_disk.add(unique)
        return PodVolumeRef(self.name, unique, name, pod)

    async def find_staged_volumes(self) -> list[StagedVolumeRef]:
        return self._refs(await self._list_devices())

    def _refs(self, names: Iterable[str]) -> list[StagedVolumeRef]:
        found = [StagedVolumeRef(self.name, f"{self.name}/{name}", name) for name in names]
        self._found_on_disk.update(ref.unique_name for ref in found)
        return found

    async def _list_devices(self) -> list[str]:
        return await self.context.host.call(list_directories, self._directory(MOUNTS))

    # --- helpers

    def _loaded_driver(self) -> FlexDriver:
        driver = self._drivers.get(self.name)
        if driver is None:
            raise TransientOperationError(f"no volume plugin matched name: {self.name}")
        return driver

    def _flex_volume(self, spec: PodVolumeSpec) -> FlexVolume:
        flex = find_flex_volume(spec.source, spec.volume, read_only=spec.readonly)
        assert flex is not None
        return flex

    def _volume_name(self, ref: StagedVolumeRef) -> str:
        return ref.unique_name.removeprefix(f"{self.name}/")

    def _device_directory(self, name: str) -> str:
        return f"{self._directory(MOUNTS)}/{name}"

    def _directory(self, kind: str) -> str:
        paths = self.context.paths
        return paths.real(f"{paths.plugins}/{FAMILY}/{self.name}/{kind}")

    async def _call(
        self,
        driver: FlexDriver,
        command: str,
        *arguments: str,
        timeout: float | None = None,
        subject: str = "",
    ) -> FlexReply | None:
        """None if the driver leaves the command to the kubelet."""
        try:
            return await driver.call(command, *arguments, timeout=timeout, subject=subject)
        except FlexNotSupported:
            return None
        except FlexCallError as error:
            raise VolumeOperationError(str(error)) from error

    async def _unmount(self, command: str, path: str, subject: str = "") -> None:
        """Only success proves that it is gone; any error is retried."""
        driver = self._loaded_driver()
        try:
            if await self._call(driver, command, path, subject=subject) is None:
                await self.context.host.unmount(path)
        except (VolumeOperationError, OSError) as error:
            raise UncertainProgressError(str(error)) from error

    async def _remove_failed(self, path: str, error: VolumeOperationError) -> None:
        """Remove the directory of a failed mount. What the driver has left there must be unmounted."""
        await self.run_in_thread(remove_empty_directories, path)
        if await self.context.host.call(os.path.lexists, path):
            raise UncertainProgressError(str(error)) from error
        await self.run_in_thread(remove_empty_directories, os.path.dirname(path))


def find_drivers_on_disk(directory: str) -> list[str]:
    """The drivers that have volumes below `plugins/kubernetes.io/flexvolume`: `driver`, `vendor/driver`."""
    first = list_directories(directory)
    second = [f"{name}/{below}" for name in first for below in list_directories(f"{directory}/{name}")]
    return [
        name for name in (*first, *second) if {MOUNTS, ATTACHED} & {*list_directories(f"{directory}/{name}")}
    ]


def _find_mounts(path: str, root: str) -> tuple[bool, list[str]]:
    """Whether the directory is a mount point, and where else the same is mounted."""
    return mounts.is_mount(path), find_references(mounts.read_table(), path, root)


def _remove_directory(path: str) -> None:
    """The driver may have removed it already. Never recursive: it may hold the user's data."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UncertainProgressError(f"cannot remove {path}: {error.strerror}") from error
