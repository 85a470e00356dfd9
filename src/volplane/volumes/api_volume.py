"""Volumes whose files come from the API: what configMap, secret, projected and downwardAPI share.

A plugin says which files there are; they are written atomically here. Secrets are never written to disk: all
but ConfigMaps go to a tmpfs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from volplane.api.core import ConfigMap, KeyToPath, Secret
from volplane.api.errors import APIError, NotFound
from volplane.volumes.atomic_writer import InvalidVolumePath, VolumeFile, write_files
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
            await self.run_in_thread(_write, self.path(spec), files, spec.fs_group, self.in_memory)
        except InvalidVolumePath as error:
            raise VolumeOperationError(str(error)) from error


def _write(path: str, files: Mapping[str, VolumeFile], group: int | None, in_memory: bool) -> None:
    make_directory(path, 0o777)
    if in_memory:
        mount_tmpfs(path)
        make_directory(path, 0o777)
    write_files(path, files, group=group)


def select_files(
    data: Mapping[str, bytes], items: Iterable[KeyToPath], mode: int | None, *, of: str, optional: bool
) -> dict[str, VolumeFile]:
    """The keys as files: all of them, or those in `items`, each at its path."""
    common = DEFAULT_MODE if mode is None else mode
    chosen = tuple(items)
    if not chosen:
        return {key: VolumeFile(value, common) for key, value in data.items()}
    files = {}
    for item in chosen:
        if item.key in data:
            files[item.path] = VolumeFile(data[item.key], common if item.mode is None else item.mode)
        elif not optional:
            raise VolumeOperationError(f"{of} references non-existent config key: {item.key}")
    return files


def config_data(config: ConfigMap) -> dict[str, bytes]:
    return {**{k: v.encode() for k, v in config.data.items()}, **config.binary_data}


def secret_data(secret: Secret) -> Mapping[str, bytes]:
    return secret.data
