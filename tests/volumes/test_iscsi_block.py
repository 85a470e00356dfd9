"""iscsi volumes of volumeMode Block: pods get the device, with an `iscsiadm` that makes loop devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support import machine
from tests.support.iscsi_target import IscsiTarget
from tests.volumes.test_iscsi import (
    IQN,
    LUN_0,
    OTHER,
    PORTAL,
    assert_nothing_left,
    inline,
    on_node,
    pod,
    release,
)
from volplane.api.codec import convert
from volplane.api.core import PersistentVolume
from volplane.host import NodePaths, mounts
from volplane.volumes.base import (
    NodeContext,
    PodVolumeSpec,
    StagedVolumeRef,
    UncertainProgressError,
    VolumeOperationError,
)
from volplane.volumes.iscsi import IscsiBlockPlugin, IscsiPlugin


def block(source: dict[str, Any], uid: str = "uid-1", *, readonly: bool = False) -> PodVolumeSpec:
    owner = pod(None, uid, None)
    body = {"metadata": {"name": "pv"}, "spec": {"iscsi": source, "volumeMode": "Block"}}
    volume = convert(PersistentVolume, body)
    context = NodeContext("n", cast("Any", None), NodePaths("/nonexistent"), cast("Any", None))
    plugin, given = IscsiBlockPlugin(context), owner.spec.volumes[0]
    assert plugin.supports(given, volume)
    assert not IscsiPlugin(context).supports(given, volume)
    unique = plugin.unique_name(owner, "pv", volume)
    return PodVolumeSpec(plugin.name, unique, "pv", owner, given, volume=volume, readonly=readonly)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IscsiTarget]:
    made = IscsiTarget(tmp_path, monkeypatch, {IQN: [0, 1], OTHER: [0]})
    yield made
    for entry in mounts.read_table().under(str(tmp_path)):
        mounts.unmount(entry.target)
    made.close()


def write_at_start(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_at_start(path: str, count: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(count)


@pytest.mark.root
async def test_pods_get_the_device_and_one_of_them_may_only_read(tmp_path: Path, target: IscsiTarget) -> None:
    root = tmp_path / "kubelet"
    async with on_node(root) as context:
        plugin = IscsiBlockPlugin(context, target.settings())
        one, two = block(LUN_0), block(LUN_0, "uid-2", readonly=True)
        assert one.unique_name == f"kubernetes.io/iscsi/{PORTAL}:{IQN}:0"
        await plugin.stage(one)
        await plugin.publish(one)
        await plugin.publish(one)  # again, after a crash
        await plugin.publish(two)
        assert plugin.path(one) == str(root / "pods/uid-1/volumeDevices/kubernetes.io~iscsi/pv")
        maps = root / f"plugins/kubernetes.io/iscsi/volumeDevices/iface-default/{PORTAL}-{IQN}-lun-0"
        assert sorted(os.listdir(maps)) == ["uid-1", "uid-2"]
        write_at_start(plugin.path(one), b"raw data")
        assert read_at_start(plugin.path(two), 8) == b"raw data"
        with pytest.raises(PermissionError):
            write_at_start(plugin.path(two), b"")
        # As a kubelet that was restarted: by what is on disk alone.
        again = IscsiBlockPlugin(context, target.settings())
        assert sorted(await again.find_other_volumes()) == [("uid-1", "pv"), ("uid-2", "pv")]
        assert await IscsiPlugin(context, target.settings()).find_staged_volumes() == []
        await again.unpublish(await again.reconstruct("uid-1", "pv"))
        with pytest.raises(UncertainProgressError, match=r"still referenced from other Pods \[uid-2\]"):
            await again.unstage(StagedVolumeRef(again.name, one.unique_name))
        assert target.sessions()
        await release(again, two)
        assert target.sessions() == []
        assert await again.find_other_volumes() == []
        assert_nothing_left(root)
        assert not machine.loop_devices(root)


@pytest.mark.root
async def test_the_directories_of_an_interface_go_with_its_volume(
    tmp_path: Path, target: IscsiTarget
) -> None:
    root = tmp_path / "kubelet"
    async with on_node(root) as context:
        plugin = IscsiBlockPlugin(context, target.settings())
        wanted = block(LUN_0 | {"initiatorName": "iqn.2026-01.com.example:worker"})
        await plugin.stage(wanted)
        await plugin.publish(wanted)
        assert list(root.rglob(f"iface-{PORTAL}:pv"))
        await release(plugin, wanted)
        assert not list(root.rglob(f"iface-{PORTAL}:pv"))


@pytest.mark.root
async def test_a_session_ends_only_when_no_node_of_the_machine_has_a_device_mapped(
    tmp_path: Path, target: IscsiTarget
) -> None:
    async with on_node(tmp_path / "a") as one, on_node(tmp_path / "b") as other:
        first, second = IscsiBlockPlugin(one, target.settings()), IscsiBlockPlugin(other, target.settings())
        held = block(LUN_0 | {"lun": 1})
        await second.stage(held)
        await second.publish(held)
        await first.stage(block(LUN_0))
        await release(first)
        assert target.sessions() == [f"{PORTAL}-{IQN}"]
        assert target.deletions() == ["0"]
        await release(second, held)
        assert target.sessions() == []


@pytest.mark.root
async def test_a_disk_is_not_mapped_while_it_is_mounted_nor_the_reverse(
    tmp_path: Path, target: IscsiTarget
) -> None:
    async with on_node(tmp_path / "kubelet") as context:
        files, devices = IscsiPlugin(context, target.settings()), IscsiBlockPlugin(context, target.settings())
        await files.stage(inline(LUN_0))
        with pytest.raises(VolumeOperationError, match="a pod of this node has it mounted"):
            await devices.stage(block(LUN_0))
        await release(files)
        wanted = block(LUN_0)
        await devices.stage(wanted)
        await devices.publish(wanted)
        with pytest.raises(UncertainProgressError, match="still referenced from other Pods"):
            await files.stage(inline(LUN_0))
        await release(devices, wanted)
        assert target.sessions() == []
