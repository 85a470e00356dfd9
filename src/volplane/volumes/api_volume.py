"""Volumes whose files come from the API: what configMap, secret, projected and downwardAPI share.

A plugin says which files there are; they are written atomically here. Secrets are never written to disk: all
but ConfigMaps go to a tmpfs. Containers get the files read-only, so the mount points of other volumes inside
such a volume are created here, too.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable, Mapping
from typing import ClassVar

from volplane.api.core import (
    ConfigMap,
    Container,
    EphemeralContainer,
    KeyToPath,
    PersistentVolume,
    Pod,
    Secret,
    Volume,
)
from volplane.api.errors import APIError, NotFound
from volplane.host.ownership import change_owner
from volplane.rules import pods
from volplane.volumes.atomic_writer import InvalidVolumePath, VolumeFile, make_directories, write_files
from volplane.volumes.base import (
    PodVolumeSpec,
    TransientOperationError,
    VolumeOperationError,
    VolumePlugin,
    make_directory,
)
from volplane.volumes.emptydir import mount_tmpfs

DEFAULT_MODE = 0o644


class ApiVolumePlugin(VolumePlugin):
    in_memory: ClassVar[bool] = True

    def is_readonly(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return True

    async def files(self, spec: PodVolumeSpec) -> Mapping[str, VolumeFile]:
        raise NotImplementedError

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        try:
            files = await self.files(spec)
        except NotFound as error:
            raise VolumeOperationError(str(error)) from error
        except APIError as error:
            raise TransientOperationError(str(error)) from error
        try:
            await self.run_in_thread(self._write, spec, files)
        except InvalidVolumePath as error:
            raise VolumeOperationError(str(error)) from error

    def _write(self, spec: PodVolumeSpec, files: Mapping[str, VolumeFile]) -> None:
        path = self.path(spec)
        make_directory(path, 0o777)
        if self.in_memory:
            mount_tmpfs(path)
        _set_root_access(path, spec.fs_group)
        for inner in nested_mount_points(spec.pod, spec.source.name):
            make_directories(os.path.join(path, inner))
        write_files(path, files, group=spec.fs_group)


def _set_root_access(path: str, group: int | None) -> None:
    if group is not None:
        change_owner(path, -1, group)
    os.chmod(path, 0o777 | (stat.S_ISGID if group is not None else 0))


def nested_mount_points(pod: Pod, volume: str) -> list[str]:
    """Where containers mount other volumes inside this one, relative to its root; the outermost ones."""
    return sorted({inner for container in pods.containers(pod) for inner in _nested_in(container, volume)})


def _nested_in(container: Container | EphemeralContainer, volume: str) -> Iterable[str]:
    places = {(mount.name, posixpath.normpath(mount.mount_path)) for mount in container.volume_mounts}
    for own in (place for name, place in places if name == volume):
        inside = sorted(place for _, place in places if place.startswith(f"{own}/"))
        for place in inside:
            if not any(place.startswith(f"{outer}/") for outer in inside):
                yield posixpath.relpath(place, own)


def select_files(
    data: Mapping[str, bytes], items: Iterable[KeyToPath], mode: int | None, *, missing: str, optional: bool
) -> dict[str, VolumeFile]:
    """The keys as files: all of them, or those in `items`, each at its path.

    `missing` starts the error for a key that is not there.
    """
    common = DEFAULT_MODE if mode is None else mode
    chosen = tuple(items)
    if not chosen:
        return {key: VolumeFile(value, common) for key, value in data.items()}
    files = {}
    for item in chosen:
        if item.key in data:
            files[item.path] = VolumeFile(data[item.key], common if item.mode is None else item.mode)
        elif not optional:
            raise VolumeOperationError(f"{missing}: {item.key}")
    return files


def config_data(config: ConfigMap) -> dict[str, bytes]:
    return {**{k: v.encode() for k, v in config.data.items()}, **config.binary_data}


def secret_data(secret: Secret) -> Mapping[str, bytes]:
    return secret.data
