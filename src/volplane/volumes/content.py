"""Volumes that are files from the API: what their four kinds have in common.

A kind says which files there are; writing them at once, refreshing them when the objects change and taking
them away is done here. Secrets never touch a disk: all but config maps are written to memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from volplane.api.core import ConfigMap, KeyToPath, Secret
from volplane.api.errors import APIError, NotFound
from volplane.volumes.base import Plugin, Spec, Transient, VolumeFailure, make_directory
from volplane.volumes.emptydir import mount_memory
from volplane.volumes.writer import BadPath, File, write

DEFAULT_MODE = 0o644


class Content(Plugin):
    in_memory: ClassVar[bool] = True

    async def files(self, spec: Spec) -> Mapping[str, File]:
        raise NotImplementedError

    async def publish(self, spec: Spec, *, again: bool = False) -> None:
        try:
            files = await self.files(spec)
        except NotFound as error:
            raise VolumeFailure(str(error)) from error
        except APIError as error:
            raise Transient(str(error)) from error
        try:
            await self.run(_write, self.path(spec), files, spec.group, self.in_memory)
        except BadPath as error:
            raise VolumeFailure(str(error)) from error


def _write(path: str, files: Mapping[str, File], group: int | None, in_memory: bool) -> None:
    make_directory(path, 0o777)
    if in_memory:
        mount_memory(path)
        make_directory(path, 0o777)
    write(path, files, group=group)


def pick(
    data: Mapping[str, bytes], items: Iterable[KeyToPath], mode: int | None, *, of: str, optional: bool
) -> dict[str, File]:
    """The keys as files: all of them, or those that `items` names, each at its path."""
    common = DEFAULT_MODE if mode is None else mode
    chosen = tuple(items)
    if not chosen:
        return {key: File(value, common) for key, value in data.items()}
    files = {}
    for item in chosen:
        if item.key in data:
            files[item.path] = File(data[item.key], common if item.mode is None else item.mode)
        elif not optional:
            raise VolumeFailure(f"{of} references non-existent config key: {item.key}")
    return files


def config_data(config: ConfigMap) -> dict[str, bytes]:
    return {**{k: v.encode() for k, v in config.data.items()}, **config.binary_data}


def secret_data(secret: Secret) -> Mapping[str, bytes]:
    return secret.data
