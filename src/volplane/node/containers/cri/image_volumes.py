"""Image volumes: which runtimes mount images, and whether a created container has its mounts. Pure.

A runtime that does not know the fields of such a mount ignores them. So its version is checked before an
image is pulled, and what the runtime says about the container before it is started.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from volplane.api.core import Container, ImageVolumeSource, Pod
from volplane.node.containers.base import Mount
from volplane.node.containers.cri import v1

IMAGES = "containerd 2.1 or CRI-O 1.31"
SUBPATHS = "containerd 2.2 or CRI-O 1.33"

_FIRST_WITH_IMAGES = {"containerd": (2, 1), "cri-o": (1, 31)}
_FIRST_WITH_SUBPATHS = {"containerd": (2, 2), "cri-o": (1, 33)}
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


class ImageVolume(Struct, frozen=True):
    """An image volume that a container mounts."""

    name: str
    source: ImageVolumeSource
    has_subpath: bool  # one of its mounts has


def find_image_volumes(pod: Pod, container: Container) -> list[ImageVolume]:
    mounted: dict[str, bool] = {}
    for mount in container.volume_mounts:
        has_subpath = bool(mount.sub_path or mount.sub_path_expr)
        mounted[mount.name] = mounted.get(mount.name, False) or has_subpath
    return [
        ImageVolume(volume.name, volume.image, mounted[volume.name])
        for volume in pod.spec.volumes
        if volume.image is not None and volume.name in mounted
    ]


def find_lack(volumes: Iterable[ImageVolume], runtime: str, version: str) -> str:
    """Why this version of a runtime cannot mount the volumes; "" if it can, or is not known."""
    for volume in volumes:
        if _is_before(_FIRST_WITH_IMAGES, runtime, version):
            return describe_lack(f'image volume "{volume.name}"', runtime, version, IMAGES)
        if volume.has_subpath and _is_before(_FIRST_WITH_SUBPATHS, runtime, version):
            return describe_lack(f'subPath of image volume "{volume.name}"', runtime, version, SUBPATHS)
    return ""


def describe_lack(what: str, runtime: str, version: str, needed: str) -> str:
    name = f"{runtime} {version}".strip()
    return (
        f"{what} cannot be mounted: the container runtime {name} does not mount it; "
        f"it needs {needed}, or a later version"
    )


def _is_before(first: Mapping[str, tuple[int, int]], runtime: str, version: str) -> bool:
    found = _VERSION.match(version)
    needed = first.get(runtime.lower())
    return found is not None and needed is not None and (int(found[1]), int(found[2])) < needed


def find_missing_mounts(mounts: Sequence[Mount], reply: v1.ContainerStatusResponse) -> list[Mount]:
    """The images that a created container lacks.

    The runtime's specification of the container is what counts. A runtime that does not show it shows the
    mounts of its status, with the path of what it has mounted.
    """
    wanted = [mount for mount in mounts if mount.image]
    targets = read_mount_targets(reply.info)
    if targets is None:
        targets = {mount.container_path for mount in reply.status.mounts if mount.host_path}
    return [mount for mount in wanted if mount.target.rstrip("/") not in targets]


def read_mount_targets(info: Mapping[str, str]) -> set[str] | None:
    """Where the container's mounts are, in the runtime's verbose status; None if it does not tell."""
    try:
        found = msgspec.json.decode(info.get("info", "{}"))["runtimeSpec"]["mounts"]
        return {mount["destination"].rstrip("/") for mount in found}
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return None
