"""emptyDir: a directory, a tmpfs or huge pages, as long as its pod exists.

A volume that was set up has a `ready` directory below the pod's `plugins` directory, as on any kubelet: after
a restart the pod's own changes to its mode and owner are kept.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping

from volplane.api import quantity
from volplane.api.core import PersistentVolume, Pod, Volume
from volplane.host import files, mounts
from volplane.rules import resources
from volplane.volumes.base import (
    PodVolumeRef,
    PodVolumeSpec,
    VolumeOperationError,
    VolumePlugin,
    make_directory,
)

MEMORY, HUGE_PAGES, HUGE_PAGES_OF = "Memory", "HugePages", "HugePages-"
HUGE_PAGE_RESOURCE = "hugepages-"


def mount_tmpfs(path: str, size: int = 0) -> None:
    """Mount a tmpfs at `path` unless one is there."""
    if not mounts.is_mount(path):
        mounts.mount("tmpfs", path, "tmpfs", [f"size={size}"] if size else [])


class EmptyDirPlugin(VolumePlugin):
    name = "kubernetes.io/empty-dir"

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return source.empty_dir is not None

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        await self.run_in_thread(self._set_up, spec)

    def _set_up(self, spec: PodVolumeSpec) -> None:
        source = spec.source.empty_dir
        assert source is not None
        path, ready = self.path(spec), self._ready(spec.pod.uid, spec.name)
        if os.path.isdir(ready) and (mounts.is_mount(path) if source.medium else os.path.isdir(path)):
            return
        huge_pages = ""
        if source.medium.startswith(HUGE_PAGES):
            huge_pages = find_page_size(spec.pod, source.medium)
        elif source.medium not in ("", MEMORY):
            raise VolumeOperationError(f'unknown storage medium "{source.medium}"')
        make_directory(path, 0o777)
        if huge_pages:
            _mount_huge_pages(path, huge_pages)
        elif source.medium == MEMORY:
            mount_tmpfs(path, memory_size(spec.pod, source.size_limit, self.context.allocatable()))
        os.chmod(path, 0o777)
        if spec.fs_group is not None:
            files.apply_fs_group(path, spec.fs_group)
        os.makedirs(ready, 0o750, exist_ok=True)

    async def unpublish(self, ref: PodVolumeRef) -> None:
        ready = os.path.dirname(self._ready(ref.pod, ref.name))
        await self.run_in_thread(shutil.rmtree, ready, ignore_errors=True)
        await super().unpublish(ref)

    async def unpublish_keeping_data(self, ref: PodVolumeRef) -> None:
        await self.context.host.unmount(self.directory(ref.pod, ref.name))

    def _ready(self, pod: str, name: str) -> str:
        paths = self.context.paths
        return paths.real(f"{paths.pod_plugin(pod, self.name, name)}/ready")


def memory_size(pod: Pod, size_limit: str | None, allocatable: Mapping[str, str]) -> int:
    """Bytes of a tmpfs: the smallest of the node's memory, the pod's memory limit and the sizeLimit.

    0 if none of them is known: the kernel's default, half of the machine's memory.
    """
    wanted = quantity.value(size_limit) if size_limit else 0
    sizes = (quantity.value(allocatable.get(resources.MEMORY, "0")), resources.memory_limit(pod), wanted)
    return min((size for size in sizes if size > 0), default=0)


def find_page_size(pod: Pod, medium: str) -> str:
    """The page size such as `2Mi`: that of the medium, which the pod must request, or the requested one.

    Raises VolumeOperationError.
    """
    requested = {size: quantity.value(size) for size in _requested_page_sizes(pod)}
    if medium.startswith(HUGE_PAGES_OF):
        wanted = _page_bytes(medium)
        fitting = [size for size, value in requested.items() if value == wanted]
    elif medium == HUGE_PAGES:
        fitting = list(requested)
    else:
        raise VolumeOperationError(f'unknown storage medium "{medium}"')
    if not fitting:
        raise VolumeOperationError(
            f"medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        )
    if len({requested[size] for size in fitting}) > 1:
        raise VolumeOperationError(
            f"medium: {medium} can't be used if container requests multiple huge page sizes"
        )
    return fitting[0]


def _page_bytes(medium: str) -> int:
    try:
        return quantity.value(medium.removeprefix(HUGE_PAGES_OF))
    except ValueError as error:
        raise VolumeOperationError(f'unknown storage medium "{medium}"') from error


def _requested_page_sizes(pod: Pod) -> Iterator[str]:
    wanted = [container.resources.requests for container in (*pod.spec.containers, *pod.spec.init_containers)]
    if pod.spec.resources is not None:
        wanted.append(pod.spec.resources.requests)
    for requests in wanted:
        yield from (
            name.removeprefix(HUGE_PAGE_RESOURCE) for name in requests if name.startswith(HUGE_PAGE_RESOURCE)
        )


def _mount_huge_pages(path: str, page_size: str) -> None:
    if mounts.is_mount(path):
        return
    try:
        mounts.mount("nodev", path, "hugetlbfs", [f"pagesize={quantity.value(page_size)}"])
    except OSError as error:
        raise VolumeOperationError(
            f"this machine has no huge pages of {page_size}: {error.strerror}"
        ) from error
