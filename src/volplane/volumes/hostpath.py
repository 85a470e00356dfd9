"""hostPath: a directory, file, socket or device of the node. Nothing is mounted or unmounted."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping

from volplane.api.core import HostPathVolumeSource, PersistentVolume, Volume
from volplane.volumes.base import PodVolumeRef, PodVolumeSpec, VolumeOperationError, VolumePlugin

DEVICES = "/dev"
STATE = "/var/lib/"

_CHECKS: Mapping[str, tuple[Callable[[int], bool], str]] = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


class HostPathPlugin(VolumePlugin):
    name = "kubernetes.io/host-path"

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        return _source(source, volume) is not None

    def path(self, spec: PodVolumeSpec) -> str:
        source = _source(spec.source, spec.volume)
        assert source is not None
        # The node's own directory of devices has only its disks. A pod that asks for all of /dev, as drivers
        # do, needs the machine's.
        if os.path.normpath(source.path) == DEVICES:
            return DEVICES
        real = self.context.paths.real(source.path)
        return (
            real if real != source.path or self.context.paths.is_machine else self._node_private_path(source)
        )

    def _node_private_path(self, source: HostPathVolumeSource) -> str:
        """A directory below /var/lib for this node alone, unless the machine has one there.

        Several nodes share this machine, and the driver on each expects to be the only one.
        """
        path = os.path.normpath(source.path)
        if not path.startswith(STATE) or os.path.exists(path):
            return source.path
        return f"{self.context.paths.root}/host{path}"

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        source = _source(spec.source, spec.volume)
        assert source is not None
        await self.run_in_thread(check_path_type, self.path(spec), source.type or "", source.path)

    async def unpublish(self, ref: PodVolumeRef) -> None:
        pass


def check_path_type(path: str, kind: str, shown: str) -> None:
    """Create what `…OrCreate` asks for, and check that the path has the type."""
    if kind == "DirectoryOrCreate":
        os.makedirs(path, mode=0o755, exist_ok=True)
    elif kind == "FileOrCreate":
        os.close(os.open(path, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o644))
    wanted = kind.removesuffix("OrCreate")
    if not wanted:
        return
    fits, what = _CHECKS[wanted]
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = 0
    if not fits(mode):
        raise VolumeOperationError(f"hostPath type check failed: {shown} is not {what}")


def _source(source: Volume, volume: PersistentVolume | None) -> HostPathVolumeSource | None:
    return volume.spec.host_path if volume is not None else source.host_path
