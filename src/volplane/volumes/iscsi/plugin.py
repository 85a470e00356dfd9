"""iscsi: a disk of an iSCSI target. The node logs in, mounts the disk once, and binds it for each pod.

The node does all of it: there is no call of the attach/detach controller. Sessions belong to the machine,
which several nodes may share, so a session is kept while any of its disks is mounted. A session that another
node needs but has not mounted yet may be lost; that node logs in again.
"""

from __future__ import annotations

import asyncio
import os
import shutil

from volplane.api.core import PersistentVolume, Pod, Secret, Volume
from volplane.api.errors import APIError
from volplane.base.files import atomic_write, remove_with_leftovers
from volplane.host import FilesystemNeedsRepair, HostCommandFailed
from volplane.rules import access
from volplane.volumes.base import (
    NodeContext,
    NotAttachedError,
    PodVolumeRef,
    PodVolumeSpec,
    StagedVolumeRef,
    TransientOperationError,
    UncertainProgressError,
    VolumeOperationError,
    VolumePlugin,
    make_directory,
    remove_empty_directories,
)
from volplane.volumes.block_device import format_and_mount
from volplane.volumes.block_map import list_directory
from volplane.volumes.iscsi import sessions
from volplane.volumes.iscsi.disk import (
    PLUGIN,
    IscsiDisk,
    IscsiSource,
    build_disk,
    check_disk,
    find_source,
    list_records,
    read_record,
    remove_record,
    write_record,
)
from volplane.volumes.iscsi.initiator import (
    PROGRAM,
    ChapSecret,
    IscsiError,
    IscsiInitiator,
    IscsiSettings,
)
from volplane.volumes.mount_references import find_references
from volplane.volumes.ownership import apply_fs_group

NO_PROGRAM = f"the program {PROGRAM} is missing on this node (Debian: open-iscsi)"
NO_TRANSPORT = "the kernel of this node has no iSCSI initiator: module iscsi_tcp is not loaded, nor installed"
DIRECTORY_MODE = 0o750
NOTE = "volume"  # a file of a pod's volume with its unique name


class IscsiPlugin(VolumePlugin):
    name = PLUGIN
    supports_mount_options = True

    block = False

    def __init__(
        self,
        context: NodeContext,
        settings: IscsiSettings | None = None,
        locks: dict[str, asyncio.Lock] | None = None,
    ) -> None:
        """`locks`: by IQN, shared with the other plugin: no login while another volume logs out."""
        super().__init__(context)
        self._settings = settings or IscsiSettings()
        self._initiator = IscsiInitiator(context.host, self._settings)
        self._locks = locks if locks is not None else {}

    # --- which volumes

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        block = volume is not None and volume.spec.volume_mode == "Block"
        return find_source(source, volume) is not None and block is self.block

    def unique_name(self, pod: Pod, name: str, volume: PersistentVolume | None) -> str:
        given = next((v for v in pod.spec.volumes if v.name == name), Volume(name=name))
        source = find_source(given, volume)
        assert source is not None
        return build_disk(source, name).unique_name

    def is_readonly(self, source: Volume, volume: PersistentVolume | None) -> bool:
        found = find_source(source, volume)
        return found is not None and found.read_only

    def needs_stage(self, spec: PodVolumeSpec) -> bool:
        return True

    # --- disk

    async def stage(self, spec: PodVolumeSpec) -> None:
        disk = build_disk(get_source(spec), spec.name)
        if device := await self._attach(spec, disk):
            await self._mount_device(device, disk, spec)

    async def _attach(self, spec: PodVolumeSpec, disk: IscsiDisk) -> str:
        """Log in and return the device, "" if it is mounted already."""
        await self._check(disk)
        chap = await self._read_chap(get_source(spec), spec.pod)
        async with self._lock(disk):
            known = await self._read_record(disk.unique_name)
            if known is not None and await self.context.host.is_mount(self._staging_path(known)):
                if known.block is disk.block:
                    return ""
                raise VolumeOperationError(f"cannot attach {disk}: a pod of this node has it mounted")
            if known is not None and known != disk:  # other portals, or another interface
                await self._detach(known)
            await self.run_in_thread(write_record, self._records, disk)
            try:
                return await self._initiator.attach(disk, chap)
            except IscsiError as error:
                raise UncertainProgressError(f"cannot attach {disk}: {error}") from error

    async def _check(self, disk: IscsiDisk) -> None:
        """Before anything is changed."""
        check_disk(disk)
        if missing := await self.context.host.call(_list_missing, self._settings):
            raise NotAttachedError(f"cannot attach {disk}: {'; '.join(missing)}")

    async def _mount_device(self, device: str, disk: IscsiDisk, spec: PodVolumeSpec) -> None:
        target = self._staging_path(disk)
        await self.run_in_thread(make_directory, target, DIRECTORY_MODE)
        try:
            fs_type, options = get_source(spec).fs_type, _mount_options(spec)
            await format_and_mount(self.context.host, device, target, fs_type, options)
        except (OSError, ValueError, FilesystemNeedsRepair, HostCommandFailed, VolumeOperationError) as error:
            await self.run_in_thread(remove_empty_directories, target)
            raise UncertainProgressError(f"cannot mount {device} of {disk} at {target}: {error}") from error

    async def _read_chap(self, source: IscsiSource, pod: Pod) -> ChapSecret:
        discovery, session, ref = source.chap_auth_discovery, source.chap_auth_session, source.secret_ref
        if not (discovery or session) or ref is None or not ref.name:
            return ChapSecret(discovery, session)
        namespace = getattr(ref, "namespace", "") or pod.namespace
        try:
            secret = await self.context.client.get(Secret, ref.name, namespace)
        except APIError as error:
            raise NotAttachedError(f"couldn't get secret {namespace}/{ref.name} error: {error}") from error
        values = {key: value.decode(errors="surrogateescape") for key, value in secret.data.items()}
        return ChapSecret(discovery, session, values)

    async def unstage(self, device: StagedVolumeRef) -> None:
        disk = await self._read_record(device.unique_name)
        if disk is None:
            return
        async with self._lock(disk):
            await self._detach(disk)

    async def _detach(self, disk: IscsiDisk) -> None:
        """Undo everything that `stage` may have done."""
        if left := await self.context.host.call(list_directory, self._map_directory(disk)):
            raise UncertainProgressError(
                f'the device "{disk.unique_name}" is still referenced from other Pods [{" ".join(left)}]'
            )
        await self.run_in_thread(remove_empty_directories, self._map_directory(disk))
        path = self._staging_path(disk)
        await self._unmount_device(path)
        await self.run_in_thread(remove_empty_directories, path)
        if disk.initiator_name:  # the interface, and its directories, are of this volume alone
            above = (os.path.dirname(path), os.path.dirname(self._map_directory(disk)))
            await self.run_in_thread(remove_empty_directories, *above)
        records = await self.context.host.call(list_records, self._records)
        others = [other for other in records if other.unique_name != disk.unique_name]
        try:
            await self._initiator.detach(disk, others)
        except IscsiError as error:
            raise UncertainProgressError(f"cannot log out of {disk}: {error}") from error
        await self.run_in_thread(remove_record, self._records, disk)

    async def _unmount_device(self, path: str) -> None:
        table = await self.context.host.mounts()
        if others := find_references(table, path, self.context.paths.root):
            raise UncertainProgressError(
                f'the device mount path "{path}" is still mounted by other references [{" ".join(others)}]'
            )
        await self._unmount(path)

    # --- pod

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        path = self.path(spec)
        if await self.context.host.is_mount(path):
            return
        disk = await self._read_record(spec.unique_name)
        if disk is None or not await self.context.host.is_mount(self._staging_path(disk)):
            raise TransientOperationError(f"{spec.unique_name} is not mounted on this node")
        note = self._note(spec.pod.uid, spec.name)
        # Before the directory: a restart that finds the directory reads the note.
        await self.run_in_thread(write_note, note, spec.unique_name)
        await self.run_in_thread(make_directory, path, DIRECTORY_MODE)
        try:
            source = self._staging_path(disk)
            await self.context.host.bind(source, path, readonly=spec.readonly, recursive=False)
            if spec.fs_group is not None and not spec.readonly:
                await apply_fs_group(self.context, spec, path)
        except OSError as error:
            await self.unpublish(spec.ref)  # a volume that is mounted counts as done
            raise VolumeOperationError(f"cannot publish {disk} for the pod: {error}") from error

    async def unpublish(self, ref: PodVolumeRef) -> None:
        path = self.directory(ref.pod, ref.name)
        await self._unmount(path)
        # Never recursive: if the unmount had failed, this would delete the user's data.
        await self.run_in_thread(remove_empty_directories, path, os.path.dirname(path))
        await self._remove_note(ref)

    async def _remove_note(self, ref: PodVolumeRef) -> None:
        note = self._note(ref.pod, ref.name)
        await self.run_in_thread(remove_with_leftovers, note)
        above = os.path.dirname(note)
        await self.run_in_thread(remove_empty_directories, above, os.path.dirname(above))

    async def _unmount(self, path: str) -> None:
        try:
            await self.context.host.unmount(path)
        except OSError as error:
            raise UncertainProgressError(f"cannot unmount {path}: {error.strerror}") from error
        if await self.context.host.is_mount(path):
            raise UncertainProgressError(f"{path} is still mounted")

    # --- after a restart

    async def reconstruct(self, pod: str, name: str) -> PodVolumeRef:
        note = self._note(pod, name)
        try:
            unique_name = await self.context.host.call(_read_note, note)
        except OSError as error:
            raise VolumeOperationError(f"cannot read {note}: {error.strerror}") from error
        return PodVolumeRef(self.name, unique_name, name, pod)

    async def find_staged_volumes(self) -> list[StagedVolumeRef]:
        records = await self.context.host.call(list_records, self._records)
        return [StagedVolumeRef(self.name, disk.unique_name) for disk in records if disk.block is self.block]

    # --- helpers

    def _lock(self, disk: IscsiDisk) -> asyncio.Lock:
        return self._locks.setdefault(disk.iqn, asyncio.Lock())

    async def _read_record(self, unique_name: str) -> IscsiDisk | None:
        return await self.context.host.call(read_record, self._records, unique_name)

    def _staging_path(self, disk: IscsiDisk) -> str:
        return self._directory(disk.directory)

    def _map_directory(self, disk: IscsiDisk) -> str:
        """Where the device is mapped for each pod with a block volume."""
        return self._directory(f"volumeDevices/{disk.directory}")

    @property
    def _records(self) -> str:
        return self._directory("volumes")

    def _directory(self, name: str) -> str:
        paths = self.context.paths
        return paths.real(f"{paths.plugins}/{PLUGIN}/{name}".rstrip("/"))

    def _note(self, pod: str, name: str) -> str:
        paths = self.context.paths
        return paths.real(f"{paths.pod_plugin(pod, self.name, name)}/{NOTE}")


def get_source(spec: PodVolumeSpec) -> IscsiSource:
    source = find_source(spec.source, spec.volume)
    assert source is not None
    return source


def _mount_options(spec: PodVolumeSpec) -> tuple[str, ...]:
    """Not by the readOnly of the pod's claim: the mount is for all pods, and another one may write."""
    if spec.volume is None:
        return ("ro",) if get_source(spec).read_only else ()
    volume = spec.volume.spec
    readonly = get_source(spec).read_only or set(volume.access_modes) == {access.READ_MANY}
    return (*volume.mount_options, "ro") if readonly else volume.mount_options


def _list_missing(settings: IscsiSettings) -> list[str]:
    missing = [] if shutil.which(PROGRAM) else [NO_PROGRAM]
    if not sessions.has_transport(settings.sys, settings.modules):
        missing.append(NO_TRANSPORT)
    return missing


def write_note(path: str, unique_name: str) -> None:
    os.makedirs(os.path.dirname(path), DIRECTORY_MODE, exist_ok=True)
    atomic_write(path, unique_name.encode(), durable=True)


def _read_note(path: str) -> str:
    with open(path) as file:
        return file.read()
