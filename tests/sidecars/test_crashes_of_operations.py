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
from tests.contract.provisioning.scene import Role, Stage, sizes, virtual
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
    stage: Stage, stop_point: StopPoint, run: Role, settings: Any
) -> AsyncIterator[None]:
    """Run a role that hangs at the stop point and is cancelled after the block."""
    caller = sdk.Local(stage.driver, component="stopping")
    client = Client(StoppingTransport(stage.client.transport, stop_point), component="stopping")
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
    async with virtual("expand") as stage:
        await stage.bound()
        stop_point = StopPoint(99, "after")
        async with run_until_stop(stage, stop_point, resizer.run, resizer.ResizerOptions()):
            await stage.ask(size="2Gi")
            await asyncio.sleep(5)
        assert stop_point.effects == GROWING


@WHEN
@pytest.mark.parametrize("at", range(1, len(GROWING) + 1))
@pytest.mark.parametrize("lowered", [False, True])
async def test_a_stop_while_a_volume_grows_is_made_up_for(at: int, when: str, lowered: bool) -> None:
    async with virtual("expand") as stage:
        await stage.bound()
        stop_point = StopPoint(at, when)
        async with run_until_stop(stage, stop_point, resizer.run, resizer.ResizerOptions()):
            await stage.ask(size="3Gi")
            await wait_for_stop(stop_point)
        if lowered:
            await stage.ask(size="2Gi")
        async with stage.sidecar(resizer.run, resizer.ResizerOptions()):
            claim = await stage.until_claim(lambda c: sizes(c)["state"] == "NodeResizePending")
        # What was written down is finished, whatever is asked for since; what was not, was never begun.
        wanted = "2Gi" if lowered and (at, when) == (1, "before") else "3Gi"
        assert sizes(claim)["allocated"] == wanted
        assert (await stage.volume()).spec.capacity["storage"] == wanted


# --- taking a snapshot: mark, call, status, unmark

TAKING = [
    "patch VolumeSnapshotContent",
    "CreateSnapshot",
    "patch VolumeSnapshotContent",
    "patch VolumeSnapshotContent",
]


async def test_these_are_the_effects_of_taking_a_snapshot() -> None:
    async with virtual("snapshots") as stage, stage.controllers(VolumeSnapshots):
        await snapping.snapshot_class(stage)
        await stage.bound()
        stop_point = StopPoint(99, "after")
        async with run_until_stop(stage, stop_point, snapshotter.run, snapshotter.SnapshotterOptions()):
            await snapping.take(stage)
            await snapping.ready(stage)
            await asyncio.sleep(5)
        assert stop_point.effects == TAKING


@WHEN
@pytest.mark.parametrize("at", range(1, len(TAKING) + 1))
@pytest.mark.parametrize("deleted", [False, True])
async def test_a_stop_while_a_snapshot_is_taken_leaks_nothing(at: int, when: str, deleted: bool) -> None:
    async with virtual("snapshots") as stage, stage.controllers(VolumeSnapshots):
        await snapping.snapshot_class(stage)
        await stage.bound()
        stop_point = StopPoint(at, when)
        async with run_until_stop(stage, stop_point, snapshotter.run, snapshotter.SnapshotterOptions()):
            made = await snapping.take(stage)
            await wait_for_stop(stop_point)
        if deleted:
            await snapping.drop(stage)
        async with stage.sidecar(snapshotter.run, snapshotter.SnapshotterOptions()):
            if deleted:
                await wait_until_gone(stage, made)
            else:
                await snapping.ready(stage)
                assert len(stage.driver.snapshots) == 1
                await asyncio.sleep(5)
                content = await stage.client.get(VolumeSnapshotContent, snapshots.content_name(made))
                assert snapshots.BEING_CREATED not in content.metadata.annotations


async def wait_until_gone(stage: Stage, made: VolumeSnapshot) -> None:
    await snapping.gone(stage)
    await stage.gone(VolumeSnapshotContent, snapshots.content_name(made))
    assert stage.driver.snapshots == {}
    await stage.until_claim(lambda c: snapshots.CLAIM_AS_SOURCE not in c.metadata.finalizers)


# --- deleting it: call, status, finalizer

ENDING = ["DeleteSnapshot", "patch VolumeSnapshotContent", "patch VolumeSnapshotContent"]


@WHEN
@pytest.mark.parametrize("at", range(1, len(ENDING) + 1))
async def test_a_stop_while_a_snapshot_goes_is_made_up_for(at: int, when: str) -> None:
    async with virtual("snapshots") as stage, stage.controllers(VolumeSnapshots):
        await snapping.snapshot_class(stage)
        await stage.bound()
        async with stage.sidecar(snapshotter.run, snapshotter.SnapshotterOptions()):
            made = await snapping.take(stage)
            await snapping.ready(stage)
            await asyncio.sleep(1)
        stop_point = StopPoint(at, when)
        async with run_until_stop(stage, stop_point, snapshotter.run, snapshotter.SnapshotterOptions()):
            await snapping.drop(stage)
            await wait_for_stop(stop_point)
        assert stop_point.effects == ENDING[:at]
        async with stage.sidecar(snapshotter.run, snapshotter.SnapshotterOptions()):
            await wait_until_gone(stage, made)


# --- the snapshot controller: finalizer and class, claim held, content, status; then the content's news


async def effects_of_controlling() -> list[str]:
    async with virtual("snapshots") as stage:
        await snapping.snapshot_class(stage)
        await stage.bound()
        stop_point = StopPoint(99, "after")
        async with (
            run_until_stop(stage, stop_point, controller, role.SnapshotControllerOptions()),
            stage.sidecar(snapshotter.run, snapshotter.SnapshotterOptions()),
        ):
            await snapping.take(stage)
            await snapping.ready(stage)
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
    async with virtual("snapshots") as stage:
        await snapping.snapshot_class(stage)
        await stage.bound()
        async with stage.sidecar(snapshotter.run, snapshotter.SnapshotterOptions()):
            stop_point = StopPoint(at, when)
            async with run_until_stop(stage, stop_point, controller, role.SnapshotControllerOptions()):
                made = await snapping.take(stage)
                await wait_for_stop(stop_point)
            if deleted:
                await snapping.drop(stage)
            async with stage.controllers(VolumeSnapshots):
                if deleted:
                    await wait_until_gone(stage, made)
                else:
                    await snapping.ready(stage)
                    await asyncio.sleep(5)
                    held = (snapshots.AS_SOURCE, snapshots.BOUND)
                    assert (await snapping.get(stage)).metadata.finalizers == held
                    claim = await stage.claim()
                    assert snapshots.CLAIM_AS_SOURCE not in claim.metadata.finalizers
                    assert len(stage.driver.snapshots) == 1
