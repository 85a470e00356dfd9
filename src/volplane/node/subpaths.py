"""subPath: one directory or file of a volume instead of its root.

The pod may put a symlink there at any time. So the path is walked by file descriptors, and what was found is
bind-mounted onto a target of the kubelet; the container gets the target.
"""

from __future__ import annotations

import os

from volplane.host import mounts
from volplane.volumes.base import NodeContext, UncertainProgressError, remove_empty_directories


class SubPathError(Exception):
    """The text is for the pod's user and never contains a path of this machine."""


async def bind_subpath(
    context: NodeContext,
    *,
    pod: str,
    volume: str,
    container: str,
    index: int,
    root: str,
    subpath: str,
    mount: str,
) -> str:
    """The path to mount into the container instead of the volume's root."""
    target = context.paths.real(context.paths.subpath(pod, volume, container, index))
    context.subpaths.add(pod)
    try:
        if not await context.host.call(os.path.lexists, os.path.join(root, subpath)):
            await context.host.make_below(root, subpath)
    except OSError as error:
        raise SubPathError(
            f'failed to create subPath directory for volumeMount "{mount}" of container "{container}"'
        ) from error
    try:
        await context.host.bind_below(root, subpath, target)
    except OSError as error:
        raise SubPathError(
            f'failed to prepare subPath for volumeMount "{mount}" of container "{container}"'
        ) from error
    return target


async def remove_subpaths(context: NodeContext, pod: str, volume: str) -> None:
    if pod in context.subpaths:
        directory = context.paths.real(os.path.join(context.paths.subpaths(pod), volume))
        try:
            await context.host.call(_remove, directory)
        except OSError as error:
            raise UncertainProgressError(f"a subPath of volume {volume} is still mounted: {error}") from error


async def find_subpaths(context: NodeContext) -> None:
    """After a restart: find the pods that have subPath mounts."""
    context.subpaths |= set(await context.host.call(_find, context.paths.real(context.paths.pods)))


def _find(pods: str) -> list[str]:
    return [uid for uid in os.listdir(pods) if os.path.isdir(f"{pods}/{uid}/volume-subpaths")]


def remove_all_subpaths(pod: str) -> None:
    """Remove what is left in a pod's directory, also of volumes that leave no other trace."""
    for entry in _entries(f"{pod}/volume-subpaths"):
        _remove(entry.path)


def _remove(directory: str) -> None:
    for mounted in mounts.read_table().under(directory):
        mounts.unmount(mounted.target)
    # Never recursive: a target that is still mounted after all has the volume's files.
    for container in _entries(directory):
        for target in _entries(container.path):
            os.rmdir(target.path) if target.is_dir(follow_symlinks=False) else os.unlink(target.path)
        os.rmdir(container.path)
    remove_empty_directories(directory, os.path.dirname(directory))


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(directory))
    except FileNotFoundError:
        return []
