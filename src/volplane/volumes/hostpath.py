"""hostPath: a directory, file, socket or device of the node. Nothing is mounted or unmounted.

A path without a type is not checked. If nothing is there when a container starts, the container runtime
creates a directory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping

from volplane.api.core import HostPathVolumeSource, PersistentVolume, Volume
from volplane.host import DEVICES
from volplane.volumes.base import (
    PodVolumeRef,
    PodVolumeSpec,
    VolumeOperationError,
    VolumePlugin,
    check_no_backsteps,
)

STATE = "/var/lib/"

_CHECKS: Mapping[str, tuple[Callable[[int], bool], str]] = {
    "Directory": (stat.S_ISDIR, "a directory"),
    "File": (stat.S_ISREG, "a file"),
    "Socket": (stat.S_ISSOCK, "a socket file"),
    "CharDevice": (stat.S_ISCHR, "a character device"),
    "BlockDevice": (stat.S_ISBLK, "a block device"),
}


class HostPathPlugin(VolumePlugin):
    name = "kubernetes.io/host-path"
    runtime_creates_path = True

    def supports(self, source: Volume, volume: PersistentVolume | None) -> bool:
        is_block = volume is not None and volume.spec.volume_mode == "Block"
        return _source(source, volume) is not None and not is_block

    def path(self, spec: PodVolumeSpec) -> str:
        source, paths = _get_source(spec), self.context.paths
        if _is_device_path(source.path):
            return self.context.devices.find(os.path.normpath(source.path))
        real = paths.real(source.path)
        return real if real != source.path or paths.is_machine else self._node_private_path(source)

    def _node_private_path(self, source: HostPathVolumeSource) -> str:
        """A directory below /var/lib for this node alone, unless the machine has one there.

        Several nodes share this machine, and the driver on each expects to be the only one.
        """
        path = os.path.normpath(source.path)
        if not path.startswith(STATE) or os.path.exists(path):
            return source.path
        return f"{self.context.paths.private}{path}"

    async def publish(self, spec: PodVolumeSpec, *, again: bool = False) -> None:
        source = _get_source(spec)
        check_no_backsteps(source.path, f"invalid HostPath `{source.path}`:")
        # /dev itself is filled when a container gets it: built-in images run without.
        if _is_below_devices(source.path):
            await self.context.devices.fill()
        await self.run_in_thread(check_path_type, self.path(spec), source.type or "", source.path)

    async def unpublish(self, ref: PodVolumeRef) -> None:
        pass


def check_path_type(path: str, kind: str, shown: str) -> None:
    """Create what `…OrCreate` asks for if nothing is there, and check that the path has the type.

    `shown` is the path in errors. Raises VolumeOperationError.
    """
    if not kind:
        return
    wanted = kind.removesuffix("OrCreate")
    if wanted not in _CHECKS:
        raise VolumeOperationError(f"{kind} is an invalid volume type")
    try:
        if kind != wanted and not os.path.exists(path):
            _create(path, directory=wanted == "Directory")
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        if kind != wanted:
            raise VolumeOperationError(f"cannot create {shown}: {error.strerror}") from error
        mode = 0
    except OSError as error:
        raise VolumeOperationError(f"{shown}: {error.strerror}") from error
    fits, what = _CHECKS[wanted]
    if not fits(mode):
        raise VolumeOperationError(f"hostPath type check failed: {shown} is not {what}")


def _create(path: str, *, directory: bool) -> None:
    if directory:
        os.makedirs(path, mode=0o755, exist_ok=True)
        os.chmod(path, 0o755)  # whatever our umask is
        return
    descriptor = os.open(path, os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(descriptor, 0o644)
    finally:
        os.close(descriptor)


def _is_below_devices(path: str) -> bool:
    return os.path.normpath(path).startswith(f"{DEVICES}/")


def _is_device_path(path: str) -> bool:
    return f"{os.path.normpath(path)}/".startswith(f"{DEVICES}/")


def _get_source(spec: PodVolumeSpec) -> HostPathVolumeSource:
    source = _source(spec.source, spec.volume)
    assert source is not None
    return source


def _source(source: Volume, volume: PersistentVolume | None) -> HostPathVolumeSource | None:
    return volume.spec.host_path if volume is not None else source.host_path
