"""At every instant between two effects a role stops, while volumes grow or snapshots are taken; the next one
finishes the work and nothing is left over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.contract.provisioning import snapping
from tests.contract.provisioning.operations_env import OperationsEnv, Role, sizes, virtual
from tests.loops.inprocess import running
from tests.sidecars.stop_points import StoppingCaller, StoppingTransport, StopPoint
from volplane import sdk
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotContent
from volplane.client.client import Client
from volplane.controllers.snapshot import role
from volplane.controllers.snapshot.controller import VolumeSnapshots
from volplane.rules import snapshots
from volplane.sidecars.resizer import service as resizer
from volplane.sidecars.snapshotter import service as snapshotter

pytestmark = pytest.mark.virtual

WHEN = pytest.mark.parametrize("when", ["before", "after"])


@asynccontextmanager
async def run_until_stop(
    env: OperationsEnv, stop_point: StopPoint, run: Role, settings: Any
) -> AsyncIterator[None]:
    """Run a role that hangs at the stop point and is cancelled after the block."""
    caller = sdk.Local(env.driver, component="stopping")
    client = Client(StoppingTransport(env.client.transport, stop_point), component="stopping")
    async with running(run(client, settings, caller=StoppingCaller(caller, stop_point))):
        yield
    await client.close()
    await caller.close()


async def wait_for_stop(stop_point: StopPoint) -> None:
    async with asyncio.timeout(30):
        await stop_point.stopped.wait()


async def controller(client: Client, settings: Any, **_: Any) -> None:
    await role.run(client, settings, identity="me")


# --- growing: noted, asked, the volume's object, the claim

GROWING = [
    "patch PersistentVolumeClaim",
    "ControllerExpandVolume",
    "patch PersistentVolume",
    "patch PersistentVolumeClaim",
]


async def test_these_are_the_effects_of_growing() -> None:
    async with virtual("expand") as env:
        await env.bound()
        stop_point = StopPoint(99, "after")
        async with run_until_stop(env, stop_point, resizer.run, resizer.ResizerOptions()):
            await env.ask(size="2Gi")
            await asyncio.sleep(5)
        assert stop_point.effects == GROWING


@WHEN
@pytest.mark.parametrize("at", range(1, len(GROWING) + 1))
@pytest.mark.parametrize("lowered", [False, True])
async def test_a_stop_while_a_volume_grows_is_made_up_for(at: int, when: str, lowered: bool) -> None:
    async with virtual("expand") as env:
        await env.bound()
        stop_point = StopPoint(at, when)
        async with run_until_stop(env, stop_point, resizer.run, resizer.ResizerOptions()):
            await env.ask(size="3Gi")
            await wait_for_stop(stop_point)
        if lowered:
            await env.ask(size="2Gi")
        async with env.sidecar(resizer.run, resizer.ResizerOptions()):
            claim = await env.until_claim(lambda c: sizes(c)["state"] == "NodeResizePending")
        # What was written down is finished, whatever is asked for since; what was not, was never begun.
        wanted = "2Gi" if lowered and (at, when) == (1, "before") else "3Gi"
        assert sizes(claim)["allocated"] == wanted
        assert (await env.volume()).spec.capacity["storage"] == wanted


# --- taking a snapshot: mark, call, status, unmark

TAKING = [
    "patch VolumeSnapshotContent",
    "CreateSnapshot",
    "patch VolumeSnapshotContent",
    "patch VolumeSnapshotContent",
]


async def test_these_are_the_effects_of_taking_a_snapshot() -> None:
    async with virtual("snapshots") as env, env.controllers(VolumeSnapshots):
        await snapping.snapshot_class(env)
        await env.bound()
        stop_point = StopPoint(99, "after")
        async with run_until_stop(env, stop_point, snapshotter.run, snapshotter.SnapshotterOptions()):
            await snapping.take(env)
            await snapping.ready(env)
            await asyncio.sleep(5)
        assert stop_point.effects == TAKING


@WHEN
@pytest.mark.parametrize("at", range(1, len(TAKING) + 1))
@pytest.mark.parametrize("deleted", [False, True])
async def test_a_stop_while_a_snapshot_is_taken_leaks_nothing(at: int, when: str, deleted: bool) -> None:
    async with virtual("snapshots") as env, env.controllers(VolumeSnapshots):
        await snapping.snapshot_class(env)
        await env.bound()
        stop_point = StopPoint(at, when)
        async with run_until_stop(env, stop_point, snapshotter.run, snapshotter.SnapshotterOptions()):
            made = await snapping.take(env)
            await wait_for_stop(stop_point)
        if deleted:
            await snapping.drop(env)
        async with env.sidecar(snapshotter.run, snapshotter.SnapshotterOptions()):
            if deleted:
                await wait_until_gone(env, made)
            else:
                await snapping.ready(env)
                assert len(env.driver.snapshots) == 1
                await asyncio.sleep(5)
                content = await env.client.get(VolumeSnapshotContent, snapshots.content_name(made))
                assert snapshots.BEING_CREATED not in content.metadata.annotations


async def wait_until_gone(env: OperationsEnv, made: VolumeSnapshot) -> None:
    await snapping.gone(env)
    await env.gone(VolumeSnapshotContent, snapshots.content_name(made))
    assert env.driver.snapshots == {}
    await env.until_claim(lambda c: snapshots.CLAIM_AS_SOURCE not in c.metadata.finalizers)


# --- deleting it: call, status, finalizer

ENDING = ["DeleteSnapshot", "patch VolumeSnapshotContent", "patch VolumeSnapshotContent"]


@WHEN
@pytest.mark.parametrize("at", range(1, len(ENDING) + 1))
async def test_a_stop_while_a_snapshot_goes_is_made_up_for(at: int, when: str) -> None:
    async with virtual("snapshots") as env, env.controllers(VolumeSnapshots):
        await snapping.snapshot_class(env)
        await env.bound()
        async with env.sidecar(snapshotter.run, snapshotter.SnapshotterOptions()):
            made = await snapping.take(env)
            await snapping.ready(env)
            await asyncio.sleep(1)
        stop_point = StopPoint(at, when)
        async with run_until_stop(env, stop_point, snapshotter.run, snapshotter.SnapshotterOptions()):
            await snapping.drop(env)
            await wait_for_stop(stop_point)
        assert stop_point.effects == ENDING[:at]
        async with env.sidecar(snapshotter.run, snapshotter.SnapshotterOptions()):
            await wait_until_gone(env, made)


# --- the snapshot controller: finalizer and class, claim held, content, status; then the content's news


async def effects_of_controlling() -> list[str]:
    async with virtual("snapshots") as env:
        await snapping.snapshot_class(env)
        await env.bound()
        stop_point = StopPoint(99, "after")
        async with (
            run_until_stop(env, stop_point, controller, role.SnapshotControllerOptions()),
            env.sidecar(snapshotter.run, snapshotter.SnapshotterOptions()),
        ):
            await snapping.take(env)
            await snapping.ready(env)
            await asyncio.sleep(5)
        return stop_point.effects


async def test_these_are_the_effects_of_controlling() -> None:
    effects = await effects_of_controlling()
    assert effects[:4] == [
        "patch VolumeSnapshot",
        "patch PersistentVolumeClaim",
        "create VolumeSnapshotContent",
        "patch VolumeSnapshot",
    ]
    assert len(effects) == 7


@WHEN
@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("deleted", [False, True])
async def test_a_stop_of_the_snapshot_controller_is_made_up_for(at: int, when: str, deleted: bool) -> None:
    async with virtual("snapshots") as env:
        await snapping.snapshot_class(env)
        await env.bound()
        async with env.sidecar(snapshotter.run, snapshotter.SnapshotterOptions()):
            stop_point = StopPoint(at, when)
            async with run_until_stop(env, stop_point, controller, role.SnapshotControllerOptions()):
                made = await snapping.take(env)
                await wait_for_stop(stop_point)
            if deleted:
                await snapping.drop(env)
            async with env.controllers(VolumeSnapshots):
                if deleted:
                    await wait_until_gone(env, made)
                else:
                    await snapping.ready(env)
                    await asyncio.sleep(5)
                    held = (snapshots.AS_SOURCE, snapshots.BOUND)
                    assert (await snapping.get(env)).metadata.finalizers == held
                    claim = await env.claim()
                    assert snapshots.CLAIM_AS_SOURCE not in claim.metadata.finalizers
                    assert len(env.driver.snapshots) == 1
