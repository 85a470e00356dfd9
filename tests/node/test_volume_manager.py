"""The volume manager on a real node: what the plan alone does not show."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.loops.inprocess import until
from tests.node.node_env import DRIVER, NodeEnv, node_env, wait_briefly
from volplane.api.codec import convert
from volplane.api.storage import CSIDriver
from volplane.csi.outcome import CallError, Code

pytestmark = pytest.mark.root


async def with_two_pods(here: NodeEnv) -> None:
    await here.start()
    await here.start_driver()
    await here.wait_until_registered()
    await here.volume()
    for name in ("a", "b"):
        await here.pod(name, claim="data")
        await here.wait_until_ready(name)


async def test_an_unmount_that_takes_long_does_not_hold_up_the_next_pod() -> None:
    async with node_env() as here:
        await with_two_pods(here)
        both, first = asyncio.Barrier(2), asyncio.Event()

        async def meet(request: Any) -> None:
            first.set()
            await both.wait()

        here.disks.hooks["unpublish"] = meet
        await here.delete("a")
        await first.wait()
        await here.delete("b")
        for name in ("a", "b"):
            await here.wait_for_phase("gone", name)
        assert here.disks.count_calls()["unpublish"] == 2


async def test_pods_that_leave_together_are_unmounted_side_by_side_and_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with node_env() as here:
        await with_two_pods(here)
        both = asyncio.Barrier(2)

        async def meet(request: Any) -> None:
            await both.wait()

        here.disks.hooks["unpublish"] = meet
        for name in ("a", "b"):
            await here.delete(name)
        for name in ("a", "b"):
            await here.wait_for_phase("gone", name)

        async def out_of_use() -> bool:
            return not await here.in_use()

        await until(out_of_use)
        assert here.disks.count_calls() == {"stage": 1, "publish": 2, "unpublish": 2, "unstage": 1}
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def with_a_pod_that_needs_no_attach(here: NodeEnv) -> None:
    free = {"metadata": {"name": DRIVER}, "spec": {"attachRequired": False}}
    await here.client.create(convert(CSIDriver, free))
    await here.start()
    await here.start_driver()
    await here.wait_until_registered()
    await here.volume(attached=False)
    await here.pod(claim="data")
    await here.wait_until_ready()


async def test_a_csi_driver_that_comes_later_and_needs_no_attach_lets_the_pod_start() -> None:
    async with node_env() as here:
        await here.start()
        await here.start_driver()
        await here.wait_until_registered()
        await here.volume(attached=False)
        await here.client.delete(CSIDriver, DRIVER)
        await here.pod(claim="data")
        await wait_briefly()
        assert await here.in_use()  # without a CSIDriver, the volume waits to be attached
        free = {"metadata": {"name": DRIVER}, "spec": {"attachRequired": False}}
        await here.client.create(convert(CSIDriver, free))
        await here.wait_until_ready()


async def test_without_attach_a_pod_stays_until_its_volume_was_unstaged() -> None:
    async with node_env() as here:
        await with_a_pod_that_needs_no_attach(here)
        began, goes_on = asyncio.Event(), asyncio.Event()

        async def hold(request: Any) -> None:
            began.set()
            await goes_on.wait()

        here.disks.hooks["unstage"] = hold
        await here.delete()
        await began.wait()
        await wait_briefly()
        assert await here.phase() != "gone"
        goes_on.set()
        await here.wait_for_phase("gone")


async def test_without_attach_a_pod_stays_only_until_the_first_failed_unstage() -> None:
    async with node_env() as here:
        await with_a_pod_that_needs_no_attach(here)

        async def fail(request: Any) -> None:
            raise CallError(Code.INTERNAL, "no")

        here.disks.hooks["unstage"] = fail
        await here.delete()
        await here.wait_for_phase("gone")
        here.disks.hooks.clear()
