"""How the operations of a kubelet appear in metrics."""

from __future__ import annotations

import asyncio

import pytest

from volplane.base import metrics
from volplane.node.volume_manager.operation_metrics import BLOCK, FILE_SYSTEM, MountTimes, OperationNames
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


def attempts(plugin: str, operation: str, status: str = "success", what: str = "count") -> float:
    labels = {"volume_plugin": plugin, "operation_name": operation, "status": status, "migrated": "false"}
    name = f"storage_operation_duration_seconds_{what}"
    return metrics.registry.get_sample_value(name, labels) or 0.0


def totals(plugin: str, what: str) -> float:
    labels = {"plugin_name": plugin, "operation_name": "overall_volume_mount"}
    return metrics.registry.get_sample_value(f"volume_operation_total_seconds_{what}", labels) or 0.0


@pytest.mark.parametrize(
    ("step", "names", "operation", "failed"),
    [
        (MountVolume("p"), FILE_SYSTEM, "volume_mount", False),
        (MountVolume("p"), BLOCK, "map_volume", False),
        (MountDevice("p"), FILE_SYSTEM, "volume_mount", True),
        (RejectMount("p", "no"), BLOCK, "map_volume", True),
        (RejectMount("p", "no", attach=True), FILE_SYSTEM, "volume_attach", True),
        (AttachVolume("p"), FILE_SYSTEM, "volume_attach", False),
        (DetachVolume(), FILE_SYSTEM, "volume_detach", True),
        (ExpandInUseVolume("p"), FILE_SYSTEM, "volume_fs_resize", False),
        (UnmountVolume("p"), FILE_SYSTEM, "volume_unmount", False),
        (UnmountVolume("p"), BLOCK, "unmap_volume", True),
        (UnmountDevice(), FILE_SYSTEM, "unmount_device", False),
        (UnmountDevice(), BLOCK, "unmap_device", False),
    ],
)
def test_steps_are_measured_as_upstreams_operations(
    step: VolumeOperation, names: OperationNames, operation: str, failed: bool
) -> None:
    plugin = f"{type(step).__name__} {operation}"
    MountTimes().observe("v", plugin, names, step, 0.5, failed=failed)
    status = "fail-unknown" if failed else "success"
    assert attempts(plugin, operation, status) == 1
    assert attempts(plugin, operation, status, "sum") == 0.5


def test_the_device_is_part_of_the_mount_that_follows() -> None:
    times, plugin = MountTimes(), "with a device"
    times.observe("v", plugin, FILE_SYSTEM, MountDevice("a"), 2.0, failed=False)
    assert attempts(plugin, "volume_mount") == 0
    times.observe("v", plugin, FILE_SYSTEM, MountVolume("a"), 0.5, failed=False)
    times.observe("v", plugin, FILE_SYSTEM, MountVolume("b"), 0.5, failed=False)
    assert (attempts(plugin, "volume_mount"), attempts(plugin, "volume_mount", what="sum")) == (2, 3.0)


@pytest.mark.virtual
async def test_the_total_runs_from_the_request_to_the_first_success() -> None:
    times, plugin = MountTimes(), "with a total"
    times.note_request("v", "a")
    await asyncio.sleep(5)
    times.observe("v", plugin, FILE_SYSTEM, MountVolume("a"), 1.0, failed=True)
    assert totals(plugin, "count") == 0
    await asyncio.sleep(5)
    times.observe("v", plugin, FILE_SYSTEM, MountVolume("a"), 1.0, failed=False)
    assert totals(plugin, "count") == 1
    assert totals(plugin, "sum") == pytest.approx(10.0)
    times.observe("v", plugin, FILE_SYSTEM, MountVolume("a"), 1.0, failed=False)  # a remount
    times.note_request("v", "b")
    times.forget("v", "b")
    times.observe("v", plugin, FILE_SYSTEM, MountVolume("b"), 1.0, failed=False)
    assert totals(plugin, "count") == 1
