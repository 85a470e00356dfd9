"""FlexVolumes are expanded by their drivers, with the real API server and a real executable."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.controllers.flexvolume.flex_env import FlexEnv, flex_env
from tests.controllers.flexvolume.test_flexvolume_controller import options, stopping_client
from tests.loops.inprocess import until
from tests.sidecars.stop_points import StopPoint
from tests.support.flex_script import DRIVER
from volplane.api.annotations import PRE_RESIZE_CAPACITY_ANNOTATION, STORAGE_RESIZER_ANNOTATION
from volplane.api.core import PersistentVolume, PersistentVolumeClaim

GIB = 1 << 30
PENDING = {"storage": "NodeResizePending"}
EXPAND = ["expandvolume", options(), f"{DRIVER}/mounts/pv", str(2 * GIB), str(GIB)]


async def finish_on_node(env: FlexEnv, size: str) -> None:
    """What the kubelet writes."""
    status = {"capacity": {"storage": size}, "allocatedResourceStatuses": None, "conditions": None}
    await env.client.patch(
        PersistentVolumeClaim, "data", "default", merge={"status": status}, subresource="status"
    )


async def volume_of(env: FlexEnv) -> PersistentVolume:
    return await env.client.get(PersistentVolume, "pv")


async def test_a_volume_is_expanded_and_then_left_to_its_node(tmp_path: Path) -> None:
    async with flex_env(tmp_path) as env, env.controllers():
        await env.pair()
        await env.grow("2Gi")
        claim = await env.wait_for_claim(allocatedResourceStatuses=PENDING)
        assert env.script.calls == [["getvolumename", options()], EXPAND]
        assert claim.status.allocated_resources == {"storage": "2Gi"}
        assert claim.status.capacity == {"storage": "1Gi"}
        assert {c.type for c in claim.status.conditions} == {"Resizing", "FileSystemResizePending"}
        assert claim.metadata.annotations[STORAGE_RESIZER_ANNOTATION] == DRIVER
        volume = await volume_of(env)
        assert volume.spec.capacity == {"storage": "2Gi"}
        assert volume.metadata.annotations[PRE_RESIZE_CAPACITY_ANNOTATION] == "1Gi"
        await finish_on_node(env, "2Gi")

        async def is_removed() -> bool:
            return PRE_RESIZE_CAPACITY_ANNOTATION not in (await volume_of(env)).metadata.annotations

        await until(is_removed)
        assert len(env.script.calls) == 2


async def test_a_driver_that_needs_no_node_finishes_the_expansion(tmp_path: Path) -> None:
    async with flex_env(tmp_path, requiresFSResize=False) as env, env.controllers():
        await env.pair()
        await env.grow("2Gi")
        claim = await env.wait_for_claim(capacity={"storage": "2Gi"})
        assert claim.status.conditions == ()
        assert claim.status.allocated_resource_statuses == {}
        assert (await volume_of(env)).spec.capacity == {"storage": "2Gi"}
        event = await env.event("VolumeResizeSuccessful", "ExpandVolume succeeded for volume default/data")
        assert event.source.component == "volume_expand"


async def test_a_block_volume_has_no_file_system_to_expand(tmp_path: Path) -> None:
    async with flex_env(tmp_path) as env, env.controllers():
        await env.pair(mode="Block")
        await env.grow("2Gi")
        claim = await env.wait_for_claim(capacity={"storage": "2Gi"})
        assert claim.status.allocated_resource_statuses == {}
        volume = await volume_of(env)
        assert volume.spec.capacity == {"storage": "2Gi"}
        assert PRE_RESIZE_CAPACITY_ANNOTATION not in volume.metadata.annotations


async def test_the_old_size_is_removed_from_a_volume_that_is_seen_after_its_claim(tmp_path: Path) -> None:
    async with flex_env(tmp_path) as env, env.controllers():
        await env.pair()
        annotations = {PRE_RESIZE_CAPACITY_ANNOTATION: "512Mi"}
        await env.client.patch(PersistentVolume, "pv", merge={"metadata": {"annotations": annotations}})

        async def is_removed() -> bool:
            return PRE_RESIZE_CAPACITY_ANNOTATION not in (await volume_of(env)).metadata.annotations

        await until(is_removed)


async def test_a_driver_that_does_not_expand_leaves_it_to_the_node(tmp_path: Path) -> None:
    async with flex_env(tmp_path) as env, env.controllers():
        env.script.do_not_support("getvolumename", "expandvolume")
        await env.pair()
        await env.grow("2Gi")
        await env.wait_for_claim(allocatedResourceStatuses=PENDING)
        assert (await volume_of(env)).spec.capacity == {"storage": "2Gi"}
        assert env.script.commands == ["getvolumename", "expandvolume"]


async def test_without_a_driver_in_the_controller_the_node_alone_expands(tmp_path: Path) -> None:
    async with flex_env(tmp_path, install=False) as env, env.controllers():
        await env.pair()
        await env.grow("2Gi")
        await env.wait_for_claim(allocatedResourceStatuses=PENDING)
        assert (await volume_of(env)).spec.capacity == {"storage": "2Gi"}


async def test_a_driver_may_make_it_larger_than_requested(tmp_path: Path) -> None:
    async with flex_env(tmp_path, requiresFSResize=False) as env, env.controllers():
        env.script.on("expandvolume", f"""answer '{{"status": "Success", "volumeNewSize": {3 * GIB}}}'""")
        await env.pair()
        await env.grow("2Gi")
        await env.wait_for_claim(capacity={"storage": "3Gi"})
        assert (await volume_of(env)).spec.capacity == {"storage": "3Gi"}


async def test_a_failure_is_reported_and_tried_again(tmp_path: Path) -> None:
    async with flex_env(tmp_path) as env, env.controllers():
        env.script.fail("expandvolume", "pool is full")
        await env.pair()
        await env.grow("2Gi")
        reason = "expandvolume command failed, status: Failure, reason: pool is full"
        event = await env.event("VolumeResizeFailed", f"error expanding pvc default/data: {reason}")
        assert (event.type, event.involved_object.name) == ("Warning", "data")
        in_progress = {"storage": "ControllerResizeInProgress"}
        claim = await env.wait_for_claim(allocatedResourceStatuses=in_progress)
        assert [c.type for c in claim.status.conditions] == ["Resizing"]
        assert (await volume_of(env)).spec.capacity == {"storage": "1Gi"}
        env.script.work("expandvolume")
        await env.wait_for_claim(allocatedResourceStatuses=PENDING)


async def test_a_call_that_hangs_keeps_only_its_own_claim_waiting(tmp_path: Path) -> None:
    async with flex_env(tmp_path) as env, env.controllers():
        await env.pair()
        await env.pair("other", "more")
        fifo = env.hang("expandvolume")
        await env.grow("2Gi")
        await env.called("expandvolume")
        env.script.work("expandvolume")
        spec = {"resources": {"requests": {"storage": "2Gi"}}}
        await env.client.patch(PersistentVolumeClaim, "more", "default", merge={"spec": spec})

        async def is_expanded() -> bool:
            return (await env.client.get(PersistentVolume, "other")).spec.capacity == {"storage": "2Gi"}

        await until(is_expanded)
        assert (await volume_of(env)).spec.capacity == {"storage": "1Gi"}
        env.script.on("expandvolume", "")
        env.release(fifo)
        await env.wait_for_claim(allocatedResourceStatuses=PENDING)


EFFECTS = ["patch PersistentVolumeClaim", "patch PersistentVolume", "patch PersistentVolumeClaim"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, len(EFFECTS) + 1))
async def test_a_stop_while_a_volume_is_expanded_is_made_good(tmp_path: Path, at: int, when: str) -> None:
    async with flex_env(tmp_path) as env:
        stop_point = StopPoint(at, when)
        async with env.controllers(stopping_client(env, stop_point)), asyncio.timeout(20):
            await env.pair()
            await env.grow("2Gi")
            await stop_point.stopped.wait()
        assert stop_point.effects == EFFECTS[:at]
        async with env.controllers():
            await env.wait_for_claim(allocatedResourceStatuses=PENDING)
            assert (await volume_of(env)).spec.capacity == {"storage": "2Gi"}
        assert all(call == EXPAND for call in env.script.calls if call[0] == "expandvolume")
