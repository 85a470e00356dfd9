"""How long operations on volumes take, in upstream's terms.

Upstream mounts the device and the pod's volume in one operation; here they are two steps, so the time of the
first is added to the second.
"""

from __future__ import annotations

from typing import assert_never

from msgspec import Struct

from volplane.base import clock
from volplane.loops.storage_metrics import observe_operation, observe_total
from volplane.node.volume_manager.plan import (
    AttachVolume,
    DetachVolume,
    ExpandInUseVolume,
    MountDevice,
    MountVolume,
    RejectMount,
    UnmountDevice,
    UnmountVolume,
)
from volplane.node.volume_manager.state import VolumeOperation

PodVolume = tuple[str, str]  # the volume's unique name, the pod's uid


class OperationNames(Struct, frozen=True):
    mount: str = "volume_mount"
    unmount: str = "volume_unmount"
    unmount_device: str = "unmount_device"


FILE_SYSTEM = OperationNames()
BLOCK = OperationNames("map_volume", "unmap_volume", "unmap_device")


class MountTimes:
    """When pods asked for their volumes, and how long the devices took that were mounted for them."""

    def __init__(self) -> None:
        self._requested: dict[PodVolume, float] = {}
        self._device: dict[PodVolume, float] = {}

    def note_request(self, volume: str, pod: str) -> None:
        self._requested[volume, pod] = clock.now()

    def forget(self, volume: str, pod: str) -> None:
        self._requested.pop((volume, pod), None)
        self._device.pop((volume, pod), None)

    def observe(
        self,
        volume: str,
        plugin: str,
        names: OperationNames,
        step: VolumeOperation,
        seconds: float,
        *,
        failed: bool,
    ) -> None:
        """An operation has ended."""
        match step:
            case MountDevice(pod) if not failed:
                self._device[volume, pod] = seconds  # the mount for the pod follows
            case MountDevice():
                observe_operation(plugin, names.mount, seconds, failed=True)
            case MountVolume(pod):
                seconds += self._device.pop((volume, pod), 0.0)
                observe_operation(plugin, names.mount, seconds, failed=failed)
                if not failed:
                    self._observe_total(volume, plugin, pod)
            case AttachVolume():
                observe_operation(plugin, "volume_attach", seconds, failed=failed)
            case DetachVolume():
                observe_operation(plugin, "volume_detach", seconds, failed=failed)
            case RejectMount(attach=attach):
                observe_operation(plugin, "volume_attach" if attach else names.mount, seconds, failed=True)
            case ExpandInUseVolume():
                observe_operation(plugin, "volume_fs_resize", seconds, failed=failed)
            case UnmountVolume():
                observe_operation(plugin, names.unmount, seconds, failed=failed)
            case UnmountDevice():
                observe_operation(plugin, names.unmount_device, seconds, failed=failed)
            case _:
                assert_never(step)

    def _observe_total(self, volume: str, plugin: str, pod: str) -> None:
        """Once for each pod: a remount is not requested by it."""
        requested = self._requested.pop((volume, pod), None)
        if requested is not None:
            observe_total(plugin, "overall_volume_mount", clock.now() - requested)
