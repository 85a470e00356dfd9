"""subPath: one directory or file of a volume instead of all of it.

The pod may have put a link there, now or a moment from now. So the path is walked by descriptors, and what
was found is bound onto a target of ours before the container sees it; the container gets the target.
"""

from __future__ import annotations

import os
import shutil

from volplane.host import mounts
from volplane.volumes.base import Site, remove_empty


class BadSubPath(Exception):
    """What the user is told; it never holds a path of this machine."""


async def bind_subpath(
    site: Site, *, pod: str, volume: str, container: str, index: int, root: str, subpath: str, mount: str
) -> str:
    """The path to mount into the container instead of the volume's root."""
    target = site.paths.real(site.paths.subpath(pod, volume, container, index))
    site.subpaths.add(pod)
    try:
        if not await site.host.call(os.path.lexists, os.path.join(root, subpath)):
            await site.host.make_below(root, subpath)
    except OSError as error:
        raise BadSubPath(
            f'failed to create subPath directory for volumeMount "{mount}" of container "{container}"'
        ) from error
    try:
        await site.host.bind_below(root, subpath, target)
    except OSError as error:
        raise BadSubPath(
            f'failed to prepare subPath for volumeMount "{mount}" of container "{container}"'
        ) from error
    return target


async def remove_subpaths(site: Site, pod: str, volume: str) -> None:
    if pod in site.subpaths:
        directory = site.paths.real(os.path.join(site.paths.subpaths(pod), volume))
        await site.host.call(_remove, directory)


async def find_subpaths(site: Site) -> None:
    """After a restart: the pods for which an earlier life has made some."""
    site.subpaths |= set(await site.host.call(_find, site.paths.real(site.paths.pods)))


def _find(pods: str) -> list[str]:
    return [uid for uid in os.listdir(pods) if os.path.isdir(f"{pods}/{uid}/volume-subpaths")]


def _remove(directory: str) -> None:
    if not os.path.isdir(directory):
        return
    for entry in mounts.read_table().under(directory):
        mounts.unmount(entry.target)
    if mounts.read_table().under(directory):
        raise OSError(f"{directory} still holds mounts")
    shutil.rmtree(directory)  # only our own empty targets are left
    remove_empty(os.path.dirname(directory))
