"""Whatever users, drivers and crashes do, growth and snapshots come to rest: nothing is lost, nothing leaks.

Random scripts on the real API server and the real roles, in memory and in virtual time. At the end the driver
is well again, and what must hold then is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.provisioning import snapping
from tests.contract.provisioning.operations_env import GI, OperationsEnv, sizes, virtual
from tests.support.scripted import Fail, Lose
from volplane.api.core import PersistentVolumeClaim
from volplane.api.snapshot import VolumeSnapshot, VolumeSnapshotContent
from volplane.base.virtual_time_loop import VirtualLoop
from volplane.controllers.snapshot.controller import VolumeSnapshots
from volplane.csi.outcome import CallError, CallOutcome, Code, classify
from volplane.rules import resizing, snapshots
from volplane.rules.resizing import ResizeState
from volplane.sidecars.resizer import service as resizer
from volplane.sidecars.snapshotter import service as snapshotter

SCRIPTS = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
OUTCOMES = st.sampled_from(
    [
        Fail(Code.INTERNAL),
        Fail(Code.OUT_OF_RANGE),
        Fail(Code.UNAVAILABLE),
        Fail(Code.ABORTED),
        Lose(Code.DEADLINE_EXCEEDED),
        Lose(Code.UNAVAILABLE),
    ]
)


def run_script(script: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(script)


class Role:
    """A role that can be taken away and given back."""

    def __init__(self, make: Any) -> None:
        self._make, self._stack = make, AsyncExitStack()

    async def start(self) -> None:
        await self._stack.enter_async_context(self._make())

    async def stop(self) -> None:
        await self._stack.aclose()

    async def restart(self) -> None:
        await self.stop()
        await self.start()


@asynccontextmanager
async def snapshot_setup(*roles: Role) -> AsyncIterator[None]:
    for role in roles:
        await role.start()
    try:
        yield
    finally:
        for role in roles:
            await role.stop()


# --- growth

GROWTH = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(2, 9)),
        st.tuples(st.just("driver"), OUTCOMES),
        st.tuples(st.sampled_from(["node", "restart", "pause"]), st.integers(1, 400)),
    ),
    min_size=4,
    max_size=14,
)


@SCRIPTS
@given(script=GROWTH)
def test_growth_comes_to_rest_at_what_was_asked_for_or_could_not_be_taken_back(script: list[Any]) -> None:
    run_script(grow(script))


async def grow(script: list[Any]) -> None:
    async with virtual("expand") as env:
        await env.bound()
        _watch_targets(env)
        role = Role(lambda: env.sidecar(resizer.run, resizer.ResizerOptions()))
        async with snapshot_setup(role):
            for what, value in script:
                if what == "ask" and value * GI > resizing.actual_size(await env.claim()):
                    await env.ask(size=f"{value}Gi")
                elif what == "driver":
                    env.driver.script("ControllerExpandVolume", value)
                elif what == "node":
                    await node(env)
                elif what == "restart":
                    await role.restart()
                await asyncio.sleep(value if what == "pause" else 0.5)
            await _rest(env)


def _watch_targets(env: OperationsEnv) -> None:
    """A size whose outcome is open is the only one that may be asked for next."""
    driver, open_size = env.driver, [0]
    expand = driver.controller_expand_volume

    async def check_target(request: Any) -> Any:
        size = request.capacity_range.required_bytes
        assert open_size[0] in (0, size), f"{size} was asked for while {open_size[0]} was open"
        try:
            reply = await expand(request)
        except CallError as error:
            open_size[0] = 0 if classify(error) is CallOutcome.FINAL else size
            raise
        open_size[0] = 0
        return reply

    driver.controller_expand_volume = check_target


async def node(env: OperationsEnv) -> None:
    """What a kubelet does when it is its turn."""
    claim = await env.claim()
    if resizing.state(claim) not in (ResizeState.NODE_PENDING, ResizeState.NODE_IN_PROGRESS):
        return
    status = {
        "capacity": {"storage": claim.status.allocated_resources["storage"]},
        "conditions": resizing.conditions(claim, drop=resizing.CONDITIONS),
        "allocatedResourceStatuses": {"storage": None},
    }
    await env.client.patch(
        PersistentVolumeClaim, "data", "default", strategic={"status": status}, subresource="status"
    )


async def _rest(env: OperationsEnv) -> None:
    """The driver is well, the node works; after a while nothing is to do."""
    for _ in range(12):
        await asyncio.sleep(400)
        await node(env)
    claim, volume = await env.claim(), await env.volume()
    (disk,) = env.driver.volumes.values()
    assert resizing.actual_size(claim) >= int(sizes(claim)["request"].removesuffix("Gi")) * GI
    assert sizes(claim)["state"] == ""
    assert not claim.status.conditions
    assert volume.spec.capacity["storage"] == sizes(claim)["capacity"]
    assert disk.capacity_bytes == resizing.actual_size(claim)


# --- snapshots

NAMES = st.sampled_from(["a", "b", "c"])
SNAPSHOTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["take", "drop"]), NAMES),
        st.tuples(st.sampled_from(["CreateSnapshot", "DeleteSnapshot"]), OUTCOMES),
        st.tuples(st.sampled_from(["sidecar", "controller", "pause"]), st.integers(1, 60)),
    ),
    min_size=5,
    max_size=16,
)


@SCRIPTS
@given(script=SNAPSHOTS)
def test_snapshots_are_ready_or_gone_and_none_is_left_behind(script: list[Any]) -> None:
    run_script(snap(script))


async def snap(script: list[Any]) -> None:
    async with virtual("snapshots") as env:
        await snapping.snapshot_class(env)
        await env.bound()
        sidecar = Role(lambda: env.sidecar(snapshotter.run, snapshotter.SnapshotterOptions()))
        controller = Role(lambda: env.controllers(VolumeSnapshots))
        async with snapshot_setup(sidecar, controller):
            for what, value in script:
                match what:
                    case "take":
                        if await env.client.find(VolumeSnapshot, value, "default") is None:
                            await snapping.take(env, value)
                    case "drop":
                        await env.client.delete(VolumeSnapshot, value, "default", missing_ok=True)
                    case "sidecar":
                        await sidecar.restart()
                    case "controller":
                        await controller.restart()
                    case "CreateSnapshot" | "DeleteSnapshot":
                        env.driver.script(what, value)
                await asyncio.sleep(value if what == "pause" else 0.2)
            await asyncio.sleep(3600)
            await wait_until_settled(env)


async def wait_until_settled(env: OperationsEnv) -> None:
    left = await env.client.list(VolumeSnapshot)
    assert all(snapshots.is_ready(s) and not s.is_deleting for s in left)
    contents = {c.name: c for c in await env.client.list(VolumeSnapshotContent)}
    assert set(contents) == {snapshots.content_name(s) for s in left}
    handles = {c.status.snapshot_handle for c in contents.values() if c.status is not None}
    assert handles == {s.snapshot_id for s in env.driver.snapshots.values()}
    assert not any(snapshots.BEING_CREATED in c.metadata.annotations for c in contents.values())
    claim = await env.claim()
    assert snapshots.CLAIM_AS_SOURCE not in claim.metadata.finalizers
